"""The rate controller: how many records the next batch may take, learned from earlier batches. Pure: callers act on it.

A batch takes a fixed time plus a time per record. The records get what the fixed time leaves of the target, and at
least as much as the fixed time itself: if that alone exceeds the target, smaller batches would gain nothing and cost
all throughput. Disturbances only ever make a batch slower, so the faster batches are trusted. Bytes are limited
separately: a limit that fits small records would be terabytes of large ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

FIRST = 1_000  # records of the first batches: nothing is known, and the executors are cold
BLIND = 100  # records of a batch while their size is unknown
FLOOR = 10  # records; time alone never brings a batch below this, bytes do
GROWTH, CAREFUL = 4, 2  # maximum growth factor per batch: far from the target, and near it
SHRINKING = 4  # maximum reduction factor per batch
_KEPT = 5  # batches remembered per size class; the classes are powers of two
_TELLING = 4  # a batch smaller than the limit divided by this says nothing about the cost of a full one
_ALIKE = 1.5  # two batches are of similar size if their record counts differ by less than this factor
_STEADY = 0.1  # smaller relative changes are not made


@dataclass(frozen=True)
class Bounds:
    """The limits of a batch."""

    target: float  # seconds; 0: no limit on time
    max_records: int
    max_bytes: int


@dataclass(frozen=True)
class Observed:
    """What a batch took; `seconds` is its total time, Spark's planning included."""

    records: int
    seconds: float
    size: int | None = None  # bytes of keys and values; None if not counted


@dataclass(frozen=True)
class Rate:
    """What is known so far, and the limit that follows from it."""

    bounds: Bounds
    paced: int  # records that fit into the target
    weight: float | None = None  # bytes of a record
    fixed: float = 0.0  # seconds that a batch takes regardless of its records
    cold: bool = True
    seen: tuple[Observed, ...] = ()

    @classmethod
    def starting(cls, bounds: Bounds, weight: float | None) -> Rate:
        """Return the state before the first batch; `weight` is the size of a record, if known."""
        paced = min(FIRST, bounds.max_records) if bounds.target else bounds.max_records
        return cls(bounds, paced, weight)

    @property
    def limit(self) -> int:
        """The maximum number of records of the next batch."""
        most = BLIND if self.weight is None else int(self.bounds.max_bytes / max(self.weight, 1.0))
        return max(1, min(self.paced, self.bounds.max_records, most))

    def after(self, batch: Observed) -> Rate:
        """Return the state after one more batch."""
        if batch.records < 1:
            return self
        known = replace(self, weight=self._weighed(batch), cold=False)
        # The first batch loads classes, starts workers and connects producers: its time says nothing about the next.
        # Nor does the time of a nearly empty one.
        if self.cold or not self.bounds.target or batch.records * _TELLING < self.limit:
            return known
        same = [each for each in self.seen if each.records.bit_length() == batch.records.bit_length()]
        dropped = same[0] if len(same) == _KEPT else None
        seen = (*(each for each in self.seen if each is not dropped), batch)
        fixed = _fixed(seen, batch.records)
        return replace(known, seen=seen, fixed=fixed, paced=self._paced(batch, seen, fixed))

    def _weighed(self, batch: Observed) -> float | None:
        """Raise the weight at once, lower it by halves: a few small records must not let many large ones in."""
        if batch.size is None:
            return self.weight
        now = batch.size / batch.records
        return now if self.weight is None else max(now, (self.weight + now) / 2)

    def _paced(self, batch: Observed, seen: tuple[Observed, ...], fixed: float) -> int:
        floor = min(FLOOR, self.bounds.max_records)
        room = max(self.bounds.target - fixed, fixed)
        each = (max(one.seconds - fixed, one.seconds / 10) / one.records for one in _recent(seen, batch.records))
        wanted = room / max(_low(each), 1e-9)
        if batch.seconds - fixed > 2 * room:  # do not wait for confirmation; an outlier is soon corrected
            wanted = min(wanted, self.limit / 2)
        elif abs(wanted - self.limit) < _STEADY * self.limit:
            return max(floor, self.limit)
        growth = GROWTH if batch.seconds - fixed < room / 2 else CAREFUL
        bounded = min(max(wanted, self.limit / SHRINKING), self.limit * growth)
        return max(floor, min(int(bounded), self.bounds.max_records))


def _recent(seen: tuple[Observed, ...], records: int) -> list[Observed]:
    """Return the last batches of about this size or larger, which measure the cost of a record more exactly."""
    return [each for each in seen if each.records * _ALIKE >= records][-_KEPT:]


def _fixed(seen: tuple[Observed, ...], records: int) -> float:
    """Return the fixed time per batch: the intercept of time over size, through batches of this size and others."""
    now = _low(each.seconds for each in _recent(seen, records))
    smaller = [each for each in seen if each.records * _ALIKE < records]
    # Larger ones count only if nothing smaller was tried; they then show whether fewer records helped.
    larger = [each for each in seen if each.records > records * _ALIKE]
    crossings = [now - records * (now - each.seconds) / (records - each.records) for each in smaller or larger]
    found = (_low(crossings) if smaller else max(crossings)) if crossings else 0.0
    return min(max(0.0, found), 0.9 * now)


def _low(values: Iterable[float]) -> float:
    """Return the lower quartile."""
    ordered = sorted(values)
    return ordered[len(ordered) // 4]
