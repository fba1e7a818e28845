"""The oracle: a pure, record-by-record comparison of the input with what readers got, in numpy.

It knows nothing of Tailrace's source and sink, so it cannot share their mistakes. Its own tests plant losses,
duplicates, reorderings and torn transactions (tests/unit/faults/test_checker.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from faults.records import HEAD, Fed, is_bad

Array = np.ndarray[Any, Any]
Seen = Mapping[int, Array]  # partition of a topic → the heads in the order in which a reader got them


@dataclass(frozen=True)
class Cut:
    """The content of one transaction, for one sink partition of one batch: spans of each source partition's numbers."""

    batch: int
    sink: int
    spans: tuple[tuple[int, int, int], ...]  # source partition, start, end
    parted: bool = False  # the good and the rejected records of the spans are in two separate transactions


@dataclass
class Counts:
    """The errors in a part of the input."""

    records: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    torn: int = 0

    def __iadd__(self, other: Counts) -> Counts:
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    @property
    def wrong(self) -> int:
        """The total number of errors."""
        return self.lost + self.duplicated + self.reordered + self.torn


@dataclass(frozen=True)
class Verdict:
    """For every input record: how often it is lost, duplicated, or after a record that should follow it."""

    fed: Fed
    lost: Mapping[int, Array]
    duplicated: Mapping[int, Array]
    reordered: Mapping[int, Array]
    seen: Mapping[int, Array]  # whether it came out at all
    unexpected: int = 0  # records that never went in
    examples: tuple[str, ...] = field(default=())

    def of(self, cuts: Iterable[Cut]) -> Counts:
        """Count the errors in these transactions."""
        found = Counts()
        for cut in cuts:
            visible = {True: 0, False: 0}  # of the records to be rejected, and of the others
            wanted = {True: 0, False: 0}
            for partition, start, end in cut.spans:
                span = slice(start, end)
                found.records += end - start
                found.lost += int(self.lost[partition][span].sum())
                found.duplicated += int(self.duplicated[partition][span].sum())
                found.reordered += int(self.reordered[partition][span].sum())
                seen, bad = self.seen[partition][span], is_bad(np.arange(start, end), self.fed.bad_every)
                for kind in visible:
                    visible[kind] += int(seen[bad == kind].sum())
                    wanted[kind] += int((bad == kind).sum())
            if cut.parted:
                found.torn += sum(0 < visible[kind] < wanted[kind] for kind in visible)
            else:
                found.torn += 0 < sum(visible.values()) < sum(wanted.values())
        return found

    def all(self) -> Counts:
        """Count the errors in the complete input, without torn transactions; unexpected records count as duplicated."""
        kinds = (self.lost, self.duplicated, self.reordered)
        lost, duplicated, reordered = (sum(int(each.sum()) for each in kind.values()) for kind in kinds)
        return Counts(self.fed.total, lost, duplicated + self.unexpected, reordered)

    def __str__(self) -> str:
        found = self.all()
        return (
            f"{found.records} in, {found.lost} lost, {found.duplicated} duplicated, {found.reordered} reordered"
            + "".join(f"; {each}" for each in self.examples)
        )


def check(fed: Fed, output: Seen, rejected: Seen) -> Verdict:
    """Check that every good record is once in the output and every bad one once in the rejected topic, in order."""
    numbers = {partition: np.arange(count) for partition, count in fed.counts.items()}
    should = {partition: is_bad(each, fed.bad_every) for partition, each in numbers.items()}
    good, unexpected = _times(fed, output)
    bad, strange = _times(fed, rejected)
    lost, duplicated, seen, examples = {}, {}, {}, []
    for partition in fed.counts:
        wanted = should[partition]
        # A bad record in the output is lost from the rejected topic and duplicated in the output, and vice versa.
        lost[partition] = ((~wanted & (good[partition] == 0)) | (wanted & (bad[partition] == 0))).astype(np.int64)
        duplicated[partition] = np.maximum(good[partition] - ~wanted, 0) + np.maximum(bad[partition] - wanted, 0)
        seen[partition] = (good[partition] + bad[partition]) > 0
        for name, kind in (("lost", lost), ("duplicated", duplicated)):
            first = np.flatnonzero(kind[partition])[:3]
            examples += [f"{name}: {partition}@{each}" for each in first]
    reordered = _disorder(fed, output)
    return Verdict(fed, lost, duplicated, reordered, seen, unexpected + strange, tuple(examples[:6]))


def _times(fed: Fed, seen: Seen) -> tuple[dict[int, Array], int]:
    """Count how often each input record was read, and how many records were read that are not in the input."""
    times = {partition: np.zeros(count, dtype=np.int64) for partition, count in fed.counts.items()}
    strange = 0
    for heads in seen.values():
        origins, numbers = heads["partition"].astype(np.int64), heads["number"].astype(np.int64)
        known = np.isin(origins, list(fed.counts))
        strange += int((~known).sum())
        for partition, count in fed.counts.items():
            mine = numbers[origins == partition]
            strange += int((mine >= count).sum())
            times[partition] += np.bincount(mine[mine < count], minlength=count)
    return times, strange


def _disorder(fed: Fed, seen: Seen) -> dict[int, Array]:
    """Mark records that first came after a record of the same source partition with a higher number.

    A repeated record is a duplicate, not out of order; only its first position counts.
    """
    found = {partition: np.zeros(count, dtype=np.int64) for partition, count in fed.counts.items()}
    for heads in seen.values():
        origins, numbers = heads["partition"].astype(np.int64), heads["number"].astype(np.int64)
        for partition, count in fed.counts.items():
            mine = numbers[origins == partition]
            mine = mine[mine < count]
            if not len(mine):
                continue
            _, first = np.unique(mine, return_index=True)
            mine = mine[np.sort(first)]
            late = mine < np.maximum.accumulate(mine)
            np.add.at(found[partition], mine[late], 1)
    return found


def heads(values: Sequence[bytes]) -> Array:
    """Cut the heads off the values, in order."""
    return np.frombuffer(b"".join([each[: HEAD.itemsize] for each in values]), dtype=HEAD)
