"""The oracle of a world: what the readers got against what must have come out, in numpy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from faults.checker import Array, Seen
from faults.worlds.records import ABORTED, FILLER, numbered, wanted
from faults.worlds.world import Strike, Work, World

# What is counted at the end of a world besides its records, and must be 0.
COUNTS = ("lost", "duplicated", "reordered", "wrong", "unsteady", "lingering", "ids", "markers", "plans", "histories")


@dataclass(frozen=True)
class Outcome:
    """What was found at the end of a world; all counts but `records` must be 0."""

    records: int = 0
    lost: int = 0
    duplicated: int = 0  # with records that no input record leads to
    reordered: int = 0
    wrong: int = 0  # records with other bytes, another key or partition, or other headers than they must have
    unsteady: int = 0  # records that the reader beside the pipeline got differently
    lingering: int = 0  # transactions that stay open
    ids: int = 0  # transactional ids beyond one for each sink partition, the driver's and the replay's
    markers: int = 0  # markers that are wrong
    plans: int = 0  # ranges in the ledger that leave a gap, overlap, or are missing at the end
    histories: int = 0  # of the ledger and the markers: those that no order of what the drivers did explains
    stuck: str = ""  # what was waited for in vain, or the error that ended a driver
    examples: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether every promise was kept."""
        return not self.stuck and not any(getattr(self, name) for name in COUNTS)

    def plus(self, other: Outcome) -> Outcome:
        """Add the counts and examples of another topic's outcome."""
        counts = {name: getattr(self, name) + getattr(other, name) for name in ("records", *COUNTS)}
        return replace(self, **counts, examples=(*self.examples, *other.examples))

    def __str__(self) -> str:
        parts = [f"{self.records} records"]
        parts += [f"{getattr(self, name)} {name}" for name in COUNTS if getattr(self, name)]
        parts += [f"stuck: {self.stuck}"] if self.stuck else []
        return ", ".join([*parts, *self.examples])


@dataclass(frozen=True)
class Gap:
    """Records of a source partition that were deleted, perhaps before the pipeline read them."""

    partition: int
    first: int
    end: int


def judge(
    world: World, counts: Mapping[int, int], output: Seen, rejected: Seen, gaps: Iterable[Gap] = (),
    starts: Mapping[int, int] | None = None, again: Seen | None = None,
) -> Outcome:  # fmt: skip
    """Compare; `counts` are the records of each source partition in the end. What is in a gap may be missing.

    With `starts`, nothing may come out of the records before these. The records of `again` are rejected once more.
    """
    lost = duplicated = 0
    repeats = world.knobs.at_least_once
    examples: list[str] = []
    known = np.array(sorted(counts), dtype=np.int64)
    for name, seen, more_often, place in (("output", output, {}, 0), ("rejected", rejected, again or {}, 1)):
        for partition, count in counts.items():
            want = wanted(world, partition, count)[place]
            want[: (starts or {}).get(partition, 0) * (len(want) // max(count, 1))] = False
            times, beyond = _times(seen, partition, len(want), repeats, open_read(world))
            times -= _times(more_often, partition, len(want), repeats, False)[0]
            more = np.flatnonzero((times > 0) & ~want if repeats else times > want)
            needed = want & ~np.repeat(_deleted(world, gaps, partition, count), len(want) // max(count, 1))
            if world.work is Work.LIMIT and place == 0:
                needed[:] = False  # which ones are the first of a task is not known here
            missing = np.flatnonzero(needed & (times == 0))
            lost += len(missing)
            duplicated += int((times - want)[more].sum()) + beyond
            examples += [f"{name} lacks {partition}@{each}" for each in missing[:2]]
            examples += [f"{name} has {partition}@{each} {times[each]} times" for each in more[:2]]
            examples += (
                [f"{name} has {beyond} records of partition {partition} that were never committed"] if beyond else []
            )
        duplicated += sum(int((~np.isin(heads["partition"].astype(np.int64), known)).sum()) for heads in seen.values())
    reordered = 0
    if ordered(world):
        # A part's records at which the function raises follow those that were rejected before it.
        told = (output,) if world.knobs.raises else (output, rejected)
        reordered = sum(_disorder(heads, open_read(world)) for seen in told for heads in seen.values())
    return Outcome(sum(counts.values()), lost, duplicated, reordered, examples=tuple(examples[:6]))


def ordered(world: World) -> bool:
    """Whether the order of each source partition is promised."""
    moved = world.work in (Work.SHUFFLE, Work.LOOKUP, Work.DISTINCT) or world.process_partitions is not None
    moved = moved or world.knobs.at_least_once
    return world.source_partitions is None and not moved


def _deleted(world: World, gaps: Iterable[Gap], partition: int, count: int) -> Array:
    """Mark the numbers of which no record is left; a function with state has two of most, and one is enough."""
    gone = np.zeros(count, dtype=bool)
    for gap in gaps:
        if gap.partition == partition:
            gone[gap.first : gap.end] = True
    if world.work is not Work.DISTINCT:
        return gone
    return ~np.isin(np.arange(count), numbered(world, 0, count)[~gone])


def open_read(world: World) -> bool:
    """Whether the pipeline reads records of open transactions for a while, of which some are aborted in the end."""
    return Strike.ISOLATION in world.strikes


def _times(seen: Seen, partition: int, size: int, again: bool, aborted: bool) -> tuple[Array, int]:
    """Count how often each number of a source partition was read, and how many numbers are beyond the last.

    Aborted records may be there if `aborted` says so.
    """
    times, beyond = np.zeros(size, dtype=np.int64), 0
    for heads in seen.values():
        numbers = heads["number"].astype(np.int64)[heads["partition"] == partition]
        numbers = numbers[numbers < ABORTED] if aborted else numbers
        filler = numbers[(numbers >= FILLER) & (numbers < ABORTED)]
        beyond += int((numbers >= size).sum()) - (len(filler) if again else len(np.unique(filler)))
        times += np.bincount(numbers[numbers < size], minlength=size)
    return times, beyond


def _disorder(heads: Array, aborted: bool) -> int:
    """Count the records that came after a later one of their source partition; fillers are between any two.

    So are aborted records, if `aborted` says that they may be there.
    """
    found = 0
    heads = heads[(heads["number"] < FILLER) | ((heads["number"] >= ABORTED) & (not aborted))]
    for partition in np.unique(heads["partition"]):
        numbers = heads["number"].astype(np.int64)[heads["partition"] == partition]
        _, first = np.unique(numbers, return_index=True)
        numbers = numbers[np.sort(first)]
        found += int((numbers < np.maximum.accumulate(numbers)).sum()) if len(numbers) else 0
    return found
