"""What must come out of the words that went in, said in plain Python; the tests compare with this."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta

from tailrace.demo.proof import Expected, Place
from tailrace.kafka.reader import Message

WINDOW = timedelta(minutes=1)  # as in pipeline.yaml
DELAY = timedelta(seconds=30)  # as in pipeline.yaml


def identity(output: Message) -> str:
    """The name by which an output record is counted: its window, language and word, with the count that it holds."""
    return f"{(output.key or b'').decode()}={json.loads(output.value or b'null')['count']}"


def expected(records: Iterable[Message]) -> Expected:
    """The counts of all windows that have ended when everything was read; the others are still state.

    A window has ended when it lies behind the latest event by the delay. The generator's disorder is smaller than
    the delay, so no event is too late, however the stream was cut into batches.
    """
    result = Expected()
    counts: Counter[tuple[datetime, str, str]] = Counter()
    latest: datetime | None = None
    for record in records:
        try:
            event = json.loads(record.value or b"")
            at = datetime.fromisoformat(event["at"])
        except (ValueError, KeyError, TypeError):
            result.rejected[Place.of(record)] += 1
            continue
        latest = at if latest is None else max(latest, at)
        counts[(at.replace(second=0, microsecond=0), event["lang"], event["word"])] += 1
    for (start, lang, word), count in counts.items():
        if latest is not None and start + WINDOW <= latest - DELAY:
            result.outputs[f"{start:%Y-%m-%dT%H:%M:%SZ}/{lang}/{word}={count}"] += 1
    return result
