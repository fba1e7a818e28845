"""How many records the next batch may take, learned from the batches before it. Pure: `ratecontrol` acts on it.

A batch costs a fixed time and a time for each record. The records get what the fixed time leaves of the target, and
at least as much as the fixed time itself: where that alone is beyond the target, smaller batches would win nothing
and cost all throughput. Disturbances only ever make a batch slower, so the faster ones are believed. Bytes are counted
apart: a limit that fits small records would be terabytes of large ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

FIRST = 1_000  # records of the first batches: nothing is known, and the executors are cold
BLIND = 100  # records of a batch as long as nobody knows how large they are
FLOOR = 10  # time alone never brings a batch below this; bytes do
GROWTH, CAREFUL = 4, 2  # at most so many times as many records: far from the target, and near to it
SHRINKING = 4  # at most so many times fewer
_KEPT = 5  # batches that are remembered of each size, sizes going by powers of two
_TELLING = 4  # a batch of less than this part of the limit tells nothing of what a full one would cost
_ALIKE = 1.5  # two batches are of about one size if neither has so many times the records of the other
_STEADY = 0.1  # smaller changes are not worth making


@dataclass(frozen=True)
class Bounds:
    """What a batch is to stay within."""

    target: float  # seconds; 0: the time does not count
    max_records: int
    max_bytes: int


@dataclass(frozen=True)
class Observed:
    """What a batch took: the seconds are those of the whole batch, Spark's planning included."""

    records: int
    seconds: float
    size: int | None = None  # bytes of keys and values; None where they were not counted


@dataclass(frozen=True)
class Rate:
    """What is known so far, and the limit that follows from it."""

    bounds: Bounds
    paced: int  # as many records as fit into the target
    weight: float | None = None  # bytes of a record
    fixed: float = 0.0  # seconds that a batch costs whatever it holds
    cold: bool = True
    seen: tuple[Observed, ...] = ()

    @classmethod
    def starting(cls, bounds: Bounds, weight: float | None) -> Rate:
        """Before the first batch; `weight` is the size of a record as far as that is known."""
        paced = min(FIRST, bounds.max_records) if bounds.target else bounds.max_records
        return cls(bounds, paced, weight)

    @property
    def limit(self) -> int:
        """As many records as the next batch may take."""
        most = BLIND if self.weight is None else int(self.bounds.max_bytes / max(self.weight, 1.0))
        return max(1, min(self.paced, self.bounds.max_records, most))

    def after(self, batch: Observed) -> Rate:
        """What is known after one more batch."""
        if batch.records < 1:
            return self
        known = replace(self, weight=self._weighed(batch), cold=False)
        # The first batch loads classes, starts workers and connects producers: its time says nothing of the next.
        # Nor does that of a nearly empty one.
        if self.cold or not self.bounds.target or batch.records * _TELLING < self.limit:
            return known
        same = [each for each in self.seen if each.records.bit_length() == batch.records.bit_length()]
        dropped = same[0] if len(same) == _KEPT else None
        seen = (*(each for each in self.seen if each is not dropped), batch)
        fixed = _fixed(seen, batch.records)
        return replace(known, seen=seen, fixed=fixed, paced=self._paced(batch, seen, fixed))

    def _weighed(self, batch: Observed) -> float | None:
        """Up at once and down by halves: a few small records must not open the door to many large ones."""
        if batch.size is None:
            return self.weight
        now = batch.size / batch.records
        return now if self.weight is None else max(now, (self.weight + now) / 2)

    def _paced(self, batch: Observed, seen: tuple[Observed, ...], fixed: float) -> int:
        room = max(self.bounds.target - fixed, fixed)
        each = (max(one.seconds - fixed, one.seconds / 10) / one.records for one in _recent(seen, batch.records))
        wanted = room / max(_low(each), 1e-9)
        if batch.seconds - fixed > 2 * room:  # do not wait for others to agree; an outlier is soon made good
            wanted = min(wanted, self.limit / 2)
        elif abs(wanted - self.limit) < _STEADY * self.limit:
            return self.limit
        growth = GROWTH if batch.seconds - fixed < room / 2 else CAREFUL
        bounded = min(max(wanted, self.limit / SHRINKING), self.limit * growth)
        return max(min(FLOOR, self.bounds.max_records), min(int(bounded), self.bounds.max_records))


def _recent(seen: tuple[Observed, ...], records: int) -> list[Observed]:
    """The last batches of about this size or more: a larger one says more exactly what a record costs."""
    return [each for each in seen if each.records * _ALIKE >= records][-_KEPT:]


def _fixed(seen: tuple[Observed, ...], records: int) -> float:
    """The fixed time: where the line from other batches, through those of this size, meets an empty one."""
    now = _low(each.seconds for each in _recent(seen, records))
    smaller = [each for each in seen if each.records * _ALIKE < records]
    # Larger ones say it only where nothing smaller was tried; then, whether fewer records were of any use.
    larger = [each for each in seen if each.records > records * _ALIKE]
    crossings = [now - records * (now - each.seconds) / (records - each.records) for each in smaller or larger]
    found = (_low(crossings) if smaller else max(crossings)) if crossings else 0.0
    return min(max(0.0, found), 0.9 * now)


def _low(values: Iterable[float]) -> float:
    """The lower quartile."""
    ordered = sorted(values)
    return ordered[len(ordered) // 4]
