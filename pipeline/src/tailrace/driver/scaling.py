"""The scaling policy: how many executors to have, by how long the backlog would take. Pure: `scaler` acts on it.

It scales up as soon as the backlog would take too long with the present executors, once those requested before have
registered and been measured. It scales down one at a time, after a long calm: one executor too many costs little, and
one too few would be requested again. Between the two is a wide band in which nothing happens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

SPARKS_OWN = 2  # Spark's own default number of executors (spark.executor.instances)
CALM = 4  # calm means that the backlog takes less than the limit divided by this
GROWTH = 2  # maximum growth factor per step


@dataclass(frozen=True)
class Bounds:
    """How many executors there may be, and when that changes."""

    least: int
    most: int
    backlog: float  # seconds that reading the backlog may take
    settle: float  # seconds of calm before one is released

    def within(self, count: int) -> int:
        """Return the nearest allowed number."""
        return max(self.least, min(self.most, count))


@dataclass(frozen=True)
class Seen:
    """One observation after a batch: the time, the backlog, the executors present, and what the batch took."""

    at: float
    waiting: int
    present: int
    records: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Scaling:
    """How many executors are wanted, and since when it has been calm."""

    bounds: Bounds
    wanted: int
    rate: float | None = None  # records per second with the wanted number; None: not measured yet
    calm: float | None = None

    def set(self, count: int) -> Scaling:
        """Return the decision after a person asked for a number; scaling continues from there."""
        return Scaling(self.bounds, self.bounds.within(count))

    def after(self, seen: Seen) -> Scaling:
        """Return the decision after one more observation."""
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
            # The rate of more executors is unknown until it is measured.
            return replace(self, wanted=wanted, rate=rate if wanted == self.wanted else None, calm=None)
        if takes * CALM > self.bounds.backlog:
            return replace(self, rate=rate, calm=None)
        calm = seen.at if self.calm is None else self.calm
        if seen.at - calm < self.bounds.settle or self.wanted == self.bounds.least:
            return replace(self, rate=rate, calm=calm)
        fewer = self.wanted - 1
        return replace(self, wanted=fewer, rate=rate and rate * fewer / self.wanted, calm=seen.at)
