"""How many records the next batch may take, and how wide it should be, learned from the batches before."""

from __future__ import annotations

import math

from tailrace.config import Pipeline
from tailrace.driver.choose import FIRST_COST, Width
from tailrace.driver.rate import Bounds, Observed, Rate
from tailrace.driver.record_size import weight
from tailrace.kafka.clients import TopicPartitions

_LONG = 0.5  # seconds; a batch that is quicker need not be made quicker by more tasks
_MANY = 2_000  # records of a task whose time tells what one costs, though the batch was quick
_WORK = 0.5  # at least this part of a long batch's time went into its records
_OLD = 0.7  # weight of what was known before
_FORGOTTEN = 0.05  # what a quick batch of few records takes off: it does not tell what one costs, and need not be wide


class Pace:
    """The limit and the width of each batch of one run."""

    def __init__(self, pipeline: Pipeline) -> None:
        batch = pipeline.batch
        self._kafka = pipeline.kafka
        self._bounds = Bounds(batch.target, batch.max_records, batch.max_bytes)
        self._rate = Rate.starting(self._bounds, None)
        self._least, self._most = pipeline.source.partitions, pipeline.sink.partitions
        self._cost = FIRST_COST
        self._fixed = math.inf  # seconds that a batch costs whatever it holds

    def begin(self, positions: TopicPartitions) -> None:
        """Look how large the records are that come first."""
        self._rate = Rate.starting(self._bounds, weight(self._kafka, positions))

    @property
    def limit(self) -> int:
        """Records that the next batch may take."""
        return self._rate.limit

    def width(self, slots: int, *, bounded: bool = True) -> Width:
        """Return how many sink partitions the next batch may have; `sink.partitions` bounds outputs, not reading."""
        return Width(slots, self._most if bounded else None, self._least, self._cost)

    def learn(self, records: int, size: int | None, seconds: float, parts: int) -> None:
        """Take note of a batch that took this long."""
        self._rate = self._rate.after(Observed(records, seconds, size))
        self._fixed = min(seconds, self._fixed)
        if seconds >= _LONG and records:
            self._tell(max(seconds - self._fixed, seconds * _WORK) * parts / records)
        elif records >= _MANY * parts:
            self._tell((seconds - self._fixed) * parts / records)
        elif self._cost > FIRST_COST:
            self._cost += _FORGOTTEN * (FIRST_COST - self._cost)

    def _tell(self, cost: float) -> None:
        self._cost = _OLD * self._cost + (1 - _OLD) * cost
