"""How many executors there are to be, by how long it would take to read what waits. Pure: `scaler` acts on it.

More come as soon as the backlog would take too long with those that are there, once those asked for before have come
and have shown what they can do. Fewer only one at a time, and only when it has long been calm: an executor too many
costs a little, and one too few would be asked for again. Between the two lies a wide band in which nothing happens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

SPARKS_OWN = 2  # how many there are where nobody says (spark.executor.instances)
CALM = 4  # it is calm while the backlog takes less than this part of the limit
GROWTH = 2  # at most so many times as many at once


@dataclass(frozen=True)
class Bounds:
    """What there may be, and when that changes."""

    least: int
    most: int
    backlog: float  # seconds that it may take to read what waits
    settle: float  # seconds that it must have been calm before one goes

    def within(self, count: int) -> int:
        """The nearest number that there may be."""
        return max(self.least, min(self.most, count))


@dataclass(frozen=True)
class Seen:
    """What is known after a batch: when, how much still waits, how many executors are there, and what it took."""

    at: float
    waiting: int
    present: int
    records: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Scaling:
    """How many are wanted, and since when it has been calm."""

    bounds: Bounds
    wanted: int
    rate: float | None = None  # records a second with as many as are wanted; None: not seen yet
    calm: float | None = None

    def after(self, seen: Seen) -> Scaling:
        """What is wanted now."""
        complete = seen.present >= self.wanted
        rate = self.rate
        if seen.records and seen.seconds > 0 and complete:
            now = seen.records / seen.seconds
            rate = now if rate is None else (rate + now) / 2
        takes = 0.0 if not seen.waiting else seen.waiting / rate if rate else None
        if takes is None:
            return replace(self, rate=rate, calm=None)
        if takes > self.bounds.backlog:
            asked = math.ceil(self.wanted * min(takes / self.bounds.backlog, GROWTH))
            wanted = self.bounds.within(asked) if complete else self.wanted
            # What more executors do is not known before they have done it.
            return replace(self, wanted=wanted, rate=rate if wanted == self.wanted else None, calm=None)
        if takes * CALM > self.bounds.backlog:
            return replace(self, rate=rate, calm=None)
        calm = seen.at if self.calm is None else self.calm
        if seen.at - calm < self.bounds.settle or self.wanted == self.bounds.least:
            return replace(self, rate=rate, calm=calm)
        fewer = self.wanted - 1
        return replace(self, wanted=fewer, rate=rate and rate * fewer / self.wanted, calm=seen.at)
