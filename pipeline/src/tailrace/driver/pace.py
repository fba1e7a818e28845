"""How many records the next batch may take, and how wide it should be, learned from earlier batches."""

from __future__ import annotations

import math

from tailrace.config import Pipeline
from tailrace.driver.choose import FIRST_COST, Width
from tailrace.driver.engine import Cut
from tailrace.driver.rate import Bounds, Observed, Rate
from tailrace.driver.record_size import weight
from tailrace.kafka.clients import TopicPartitions

_LONG = 0.5  # seconds; a shorter batch does not need more tasks
_MANY = 2_000  # records per task from which even a quick batch measures their cost
_WORK = 0.5  # at least this share of a long batch's time went into its records
_OLD = 0.7  # weight of the previous estimate
_FORGOTTEN = 0.05  # decay per quick batch of few records, which does not measure their cost and need not be wide


class Pace:
    """The limit and the width of each batch of one run; its ledger has `places` partitions."""

    def __init__(self, pipeline: Pipeline, places: int) -> None:
        batch = pipeline.batch
        self._kafka = pipeline.kafka
        self._bounds = Bounds(batch.target, batch.max_records, batch.max_bytes)
        self._rate = Rate.starting(self._bounds, None)
        self._least, self._most = pipeline.source.partitions, pipeline.sink.partitions
        self._places = places
        self._cost = FIRST_COST
        self._fixed = math.inf  # seconds that a batch takes regardless of its records

    def begin(self, positions: TopicPartitions) -> None:
        """Sample the size of the first records."""
        self._rate = Rate.starting(self._bounds, weight(self._kafka, positions))

    @property
    def limit(self) -> int:
        """Records that the next batch may take."""
        return self._rate.limit

    def width(self, slots: int, cut: Cut) -> Width:
        """Return how many reading tasks the next batch may have.

        Each sink partition needs a partition of the ledger. Behind a shuffle a reading task is one only where it judges
        records, next to those of the outputs, which alone `sink.partitions` bounds.
        """
        most: int | None
        if not cut.shuffles:
            most = self._places if self._most is None else min(self._most, self._places)
        elif cut.judges:
            most = max(1, self._places - (cut.outputs or 0))
        else:
            most = None
        return Width(slots, most, self._least, self._cost)

    def learn(self, records: int, size: int | None, seconds: float, parts: int) -> None:
        """Learn from a batch that took this long."""
        self._rate = self._rate.after(Observed(records, seconds, size))
        self._fixed = min(seconds, self._fixed)
        if seconds >= _LONG and records:
            self._learn_cost(max(seconds - self._fixed, seconds * _WORK) * parts / records)
        elif records >= _MANY * parts:
            self._learn_cost((seconds - self._fixed) * parts / records)
        elif self._cost > FIRST_COST:
            self._cost += _FORGOTTEN * (FIRST_COST - self._cost)

    def _learn_cost(self, cost: float) -> None:
        self._cost = _OLD * self._cost + (1 - _OLD) * cost
