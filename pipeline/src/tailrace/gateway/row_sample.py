"""A sample of a sink partition's rows, by which a task without a plan recognises rows that another one delivered.

The digest of all rows finds a sink partition that moved as a whole. If a replay has fewer or more tasks, a sink
partition becomes a part of another one, or several parts. PySpark does not tell a task the number of tasks, so the rows
have to show it: docs/decisions/0002 weighs the alternatives.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Self

SIZE = 128  # rows of a sample: a kilobyte of a marker's metadata
ENOUGH = 3  # rows that a task shares with a delivered sink partition, and that show that they have moved
_WIDTH = 6  # bytes of a hash; the lowest bit says that the row is repeated


@dataclass(frozen=True)
class Sample:
    """The distinct rows with the smallest hashes, so that two samples contain the same ones of the rows they share."""

    once: frozenset[int] = frozenset()
    repeated: frozenset[int] = frozenset()  # a row that one task has several times may be in other tasks as well

    @property
    def rows(self) -> frozenset[int]:
        """All rows of the sample."""
        return self.once | self.repeated

    @property
    def bound(self) -> int:
        """The hash up to which the sample has all rows of its sink partition."""
        return max(self.rows) if len(self.rows) == SIZE else 1 << 8 * _WIDTH

    @property
    def text(self) -> str:
        """What the marker holds."""
        flagged = sorted([each << 1 for each in self.once] + [each << 1 | 1 for each in self.repeated])
        return base64.b64encode(b"".join(each.to_bytes(_WIDTH, "big") for each in flagged)).decode()

    @classmethod
    def of(cls, text: str) -> Self:
        """Read a marker's sample; it is empty in the marker of an earlier version."""
        data = base64.b64decode(text)
        flagged = [int.from_bytes(data[start : start + _WIDTH], "big") for start in range(0, len(data), _WIDTH)]
        return cls(
            frozenset(each >> 1 for each in flagged if not each & 1),
            frozenset(each >> 1 for each in flagged if each & 1),
        )


class Sampling:
    """Takes a sample of the rows of a task, and counts those that samples of other sink partitions contain."""

    def __init__(self, others: Iterable[Sample] = ()) -> None:
        self._kept: dict[int, int] = {}
        self._largest: list[int] = []  # a heap of the negated hashes in `_kept`
        self._found = {each: 0 for other in others for each in other.rows}

    def add(self, row: bytes) -> None:
        """Add a row."""
        number = int.from_bytes(hashlib.blake2b(row, digest_size=_WIDTH).digest(), "big") >> 1
        if number in self._found:
            self._found[number] += 1
        if number in self._kept:
            self._kept[number] += 1
        elif len(self._kept) < SIZE:
            self._kept[number] = 1
            heapq.heappush(self._largest, -number)
        elif number < -self._largest[0]:
            del self._kept[-heapq.heapreplace(self._largest, -number)]
            self._kept[number] = 1

    @property
    def sample(self) -> Sample:
        """The sample of the rows so far."""
        return Sample(
            frozenset(each for each, count in self._kept.items() if count == 1),
            frozenset(each for each, count in self._kept.items() if count > 1),
        )

    def overlaps(self, other: Sample, common: Set[int]) -> bool:
        """Return whether the task has rows of another sink partition, of whose run `common` rows prove nothing.

        A few equal rows may be in both by chance, such as heartbeats; unless one of the two has no other rows.
        """
        shared = sum(self._found[each] == 1 for each in other.once - common)
        mine = self.sample
        within = sum(each <= other.bound for each in mine.rows - common)
        if mine.bound < other.bound:  # more of the task's rows may lie within than its sample has
            within = max(within, ENOUGH)
        return shared >= max(1, min(ENOUGH, len(other.rows - common), within))


def common_rows(samples: Iterable[Sample]) -> frozenset[int]:
    """Return the rows that several of these samples contain, all of one run: each was delivered for itself."""
    counted = Counter(each for sample in samples for each in sample.rows)
    return frozenset(each for each, count in counted.items() if count > 1)


def overlapping(task: Sampling, run: Mapping[int, Sample]) -> int | None:
    """Return the number of a sink partition, of those that one run delivered, whose rows the task has."""
    common = common_rows(run.values())
    return next((number for number, sample in sorted(run.items()) if task.overlaps(sample, common)), None)
