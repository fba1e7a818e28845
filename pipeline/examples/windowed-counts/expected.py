"""The expected output for given words, in plain Python; the tests compare with it."""

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
    """Return the name by which an output record is counted: its window, language, word and count."""
    return f"{(output.key or b'').decode()}={json.loads(output.value or b'null')['count']}"


def expected(records: Iterable[Message]) -> Expected:
    """Return the counts of all windows closed once everything was read; the others are still state.

    A window closes when the latest event is past its end by the delay. The generator's disorder is smaller than the
    delay, so no event is too late, however the stream was cut into batches.
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
