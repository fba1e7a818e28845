"""The expected output for given tweets, in plain Python; the proof compares with it.

Nothing here uses Spark or Tailrace's stages, so it cannot repeat a mistake made there.
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
    """Return the name by which an output record is counted: its key, `<tweet>#<position>`."""
    return (output.key or b"").decode()


def tweet(value: bytes | None) -> dict[str, object] | None:
    """Decode a tweet; None if the bytes are not one."""
    try:
        found = fastavro.schemaless_reader(io.BytesIO(value or b""), SCHEMA, None)
    except (EOFError, ValueError, IndexError, OverflowError):
        return None
    return found if isinstance(found, dict) else None


def expected(records: Iterable[Message]) -> Expected:
    """Return the hashtags of all tweets, and the places of records that are not tweets."""
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
