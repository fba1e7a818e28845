"""The proof: actual against expected output, record by record, in plain Python.

An example defines its expected output (`expected`) and the name by which an output is counted (`identity`). Everything
here is pure; `tailrace.kafka.reader` reads the records.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.kafka.reader import Message
from tailrace.kafka.rejected_headers import HEADER_OFFSET, HEADER_PARTITION, HEADER_TOPIC

SHOWN = 5  # wrong records named, at most


class Place(NamedTuple):
    """An input record's place; a rejected record names it in its headers."""

    topic: str
    partition: int
    offset: int

    @classmethod
    def of(cls, record: Message) -> Place:
        """Return the record's own place."""
        return cls(record.topic, record.partition, record.offset)


@dataclass
class Expected:
    """The expected output: a count per output identity, and the place of each rejected record."""

    outputs: Counter[str] = field(default_factory=Counter)
    rejected: Counter[Place] = field(default_factory=Counter)


@dataclass(frozen=True)
class Verdict:
    """The result of the comparison."""

    read: int
    written: int
    lost: int
    duplicated: int
    unexpected: int
    rejected: int
    wrong: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether each record came out exactly once, and nothing else did."""
        return self.lost == self.duplicated == self.unexpected == 0

    def line(self) -> str:
        """Return the closing line."""
        counts = (
            f"{self.read} in, {self.written} out, {self.lost} lost, {self.duplicated} duplicated,"
            f" {self.rejected} rejected"
        )
        if self.holds:
            return f"verified: {counts}"
        return f"not verified: {counts}" + (f", {self.unexpected} unexpected" if self.unexpected else "")


def source_of(rejected: Message) -> Place:
    """Return a rejected record's source, from its headers; an impossible place if they do not name it."""
    topic, partition, offset = (rejected.text(name) or "" for name in (HEADER_TOPIC, HEADER_PARTITION, HEADER_OFFSET))
    if not (partition.isdecimal() and offset.isdecimal()):
        return Place(topic, -1, rejected.offset)
    return Place(topic, int(partition), int(offset))


def compare(read: int, expected: Expected, outputs: Counter[str], rejected: Counter[Place]) -> Verdict:
    """Count the records that are missing, the surplus copies, and the records that should not exist."""
    lost: Counter[str] = Counter()
    duplicated: Counter[str] = Counter()
    unexpected: Counter[str] = Counter()
    pairs: tuple[tuple[str, Counter[str], Counter[str]], ...] = (
        ("output", expected.outputs, outputs),
        ("rejected", _named(expected.rejected), _named(rejected)),
    )
    for kind, wanted, found in pairs:
        lost.update({f"{kind} {name}": count for name, count in (wanted - found).items()})
        for name, count in (found - wanted).items():
            (duplicated if name in wanted else unexpected)[f"{kind} {name}"] += count
    wrong = [
        f"{what}: {name}" + (f" ({count} times)" if count > 1 else "")
        for what, names in (("lost", lost), ("duplicated", duplicated), ("unexpected", unexpected))
        for name, count in names.most_common(SHOWN)
    ]
    return Verdict(
        read=read,
        written=outputs.total(),
        lost=lost.total(),
        duplicated=duplicated.total(),
        unexpected=unexpected.total(),
        rejected=rejected.total(),
        wrong=tuple(wrong),
    )


def _named(places: Counter[Place]) -> Counter[str]:
    return Counter({f"{place.topic}-{place.partition}@{place.offset}": count for place, count in places.items()})
