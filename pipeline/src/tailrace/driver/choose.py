"""Choosing a batch: which offsets it takes, and which sink partition reads which of them. Everything here is pure.

The limit on records is shared fairly: each source partition gets an equal share, and what it does not need goes to
the others. Shares that do not divide evenly rotate with the batch number, so no partition waits forever. A range is
never split (unless `source.partitions` asks for more tasks than there are ranges), so each source partition keeps its
order.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from tailrace.progress.plan import Away, Place, Range, unseen

PART_SECONDS = 0.1  # work that is worth a task of its own
FIRST_COST = 20e-6  # seconds per record, until a batch has been measured


@dataclass(frozen=True)
class Width:
    """How many sink partitions a batch may have."""

    slots: int  # tasks that run at the same time
    most: int | None = None  # `sink.partitions`, and what the ledger has room for
    least: int | None = None  # `source.partitions`: split long ranges until there are this many
    cost: float = FIRST_COST  # task seconds per record, learned from earlier batches

    def of(self, records: int, ranges: int) -> int:
        """Return the number of sink partitions for this many records in this many ranges."""
        wanted = min(self.slots, max(1, round(records * self.cost / PART_SECONDS)), max(1, ranges))
        if self.least is not None:
            wanted = max(wanted, min(self.least, records))
        return max(1, wanted if self.most is None else min(wanted, self.most))


def choose(
    positions: Mapping[Place, int], ends: Mapping[Place, int], limit: int, batch: int, width: Width
) -> tuple[tuple[Range, ...], ...]:
    """Return the ranges of each sink partition; empty if there is nothing to read."""
    waiting = {place: ends[place] - start for place, start in sorted(positions.items()) if ends.get(place, 0) > start}
    taken = allot(waiting, limit, batch)
    ranges = [Range(*place, positions[place], positions[place] + count) for place, count in taken.items() if count]
    if not ranges:
        return ()
    parts = width.of(sum(taken.values()), len(ranges))
    if width.least is not None and parts > len(ranges):
        ranges = split(ranges, parts)
    return group(ranges, parts)


def reached(positions: Mapping[Place, int], until: Mapping[Place, int], away: Away) -> bool:
    """Return whether everything before the bound has been read, of topics that are hidden now, too.

    Positions count offsets, so it does not matter whether the last ones hold records.
    """
    return read_whole(positions, until, away) == {topic for topic, _ in until}


def read_whole(positions: Mapping[Place, int], until: Mapping[Place, int], away: Away) -> set[str]:
    """Return the topics of which everything before the bound has been read: they may be taken out, or deleted."""
    known = {**unseen(away), **positions}
    return {topic for topic, _ in until} - {place[0] for place, end in until.items() if known.get(place, 0) < end}


def allot(waiting: Mapping[Place, int], limit: int, batch: int) -> dict[Place, int]:
    """Share `limit` records equally between the waiting places; what one does not need goes to the others."""
    left, level = limit, 0
    needs = sorted(waiting.values())
    for number, need in enumerate(needs):
        level = left // (len(needs) - number)
        if need > level:
            break
        left -= need
    taken = {place: min(waiting[place], level) for place in sorted(waiting)}
    left = limit - sum(taken.values())
    # The remainder: one record each, starting at a different place in each batch.
    places = [place for place in taken if taken[place] < waiting[place]]
    start = batch * limit % len(places) if places else 0
    for place in (places[start:] + places[:start])[: max(0, left)]:
        taken[place] += 1
    return taken


def split(ranges: list[Range], parts: int) -> list[Range]:
    """Split the longest ranges until there are `parts` of them, as far as their records allow."""
    pieces = dict.fromkeys(ranges, 1)
    heap = [(-(each.end - each.start), each) for each in ranges]
    heapq.heapify(heap)
    for _ in range(parts - len(ranges)):
        _, longest = heap[0]
        if pieces[longest] >= longest.end - longest.start:
            break
        pieces[longest] += 1
        heapq.heapreplace(heap, (-((longest.end - longest.start) // pieces[longest]), longest))
    found: list[Range] = []
    for each, count in pieces.items():
        size = each.end - each.start
        cuts = [each.start + size * number // count for number in range(count + 1)]
        found += [Range(each.topic, each.partition, start, end) for start, end in pairwise(cuts)]
    return found


def group(ranges: list[Range], parts: int) -> tuple[tuple[Range, ...], ...]:
    """Spread the ranges over the sink partitions: longest first, each to the one with the fewest records.

    Two pieces of one source partition never share a sink partition: ranges are split only if there are as many sink
    partitions as pieces.
    """
    bins: list[list[Range]] = [[] for _ in range(min(parts, len(ranges)))]
    heap = [(0, number) for number in range(len(bins))]
    for each in sorted(ranges, key=lambda one: (-(one.end - one.start), one)):
        size, number = heapq.heappop(heap)
        bins[number].append(each)
        heapq.heappush(heap, (size + each.end - each.start, number))
    return tuple(tuple(sorted(each)) for each in sorted(bins, key=min))
