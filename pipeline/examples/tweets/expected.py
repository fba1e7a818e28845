"""What must come out of the tweets that went in, said in plain Python: the proof compares with this.

Nothing here knows Spark or Tailrace's stages, so a mistake there cannot hide itself here.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import fastavro

from tailrace.demo.proof import Expected, Place
from tailrace.kafka.reader import Message

SCHEMA = fastavro.schema.load_schema(str(Path(__file__).with_name("tweet.avsc")))


def identity(output: Message) -> str:
    """The name by which an output record is counted: its key, `<tweet>#<position>`."""
    return (output.key or b"").decode()


def tweet(value: bytes | None) -> dict[str, object] | None:
    """The tweet in the bytes, or None if there is none."""
    try:
        found = fastavro.schemaless_reader(io.BytesIO(value or b""), SCHEMA, None)
    except (EOFError, ValueError, IndexError, OverflowError):
        return None
    return found if isinstance(found, dict) else None


def expected(records: Iterable[Message]) -> Expected:
    """The hashtags of all tweets, and the places of what is no tweet."""
    result = Expected()
    for record in records:
        found = tweet(record.value)
        if found is None:
            result.rejected[Place.of(record)] += 1
            continue
        tags = found["hashtags"]
        for position in range(len(tags) if isinstance(tags, list) else 0):
            result.outputs[f"{found['id']}#{position}"] += 1
    return result
