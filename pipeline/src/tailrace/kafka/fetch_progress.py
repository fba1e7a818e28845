"""How far librdkafka has fetched, from its statistics.

It hands over nothing of an aborted transaction, so a consumer that reads a long one looks as if it had stalled. Its
position moves all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Place = tuple[str, int]

_REPORTS = 6  # within the time without progress after which a reader gives up
_LEAST_MS = 100


def reporting(limit: float) -> dict[str, Any]:
    """Return the options of a consumer whose reader gives up after so many seconds without progress."""
    return {"statistics.interval.ms": max(int(limit * 1000 / _REPORTS), _LEAST_MS)}


def fetched(statistics: str | bytes) -> dict[Place, int]:
    """Return the offset that librdkafka fetches next, for each partition."""
    topics = json.loads(statistics).get("topics", {})
    return {
        (name, int(number)): int(each["next_offset"])
        for name, topic in topics.items()
        for number, each in topic.get("partitions", {}).items()
    }


@dataclass
class FetchProgress:
    """Whether a consumer has fetched further since it was last asked."""

    _now: dict[Place, int] = field(default_factory=dict)
    _known: dict[Place, int] = field(default_factory=dict)

    def heard(self, statistics: str) -> None:
        """Take a report of librdkafka."""
        self._now = fetched(statistics)

    def moved(self, places: Iterable[Place]) -> bool:
        """Return whether one of these partitions has been fetched further since the last call."""
        further = {each: self._now[each] for each in places if self._now.get(each, -1) > self._known.get(each, -1)}
        self._known |= further
        return bool(further)
