"""The proof: what came out is compared with what must come out, record by record, in plain Python.

An example says what must come out (`expected`) and by which name an output is counted (`identity`). Everything here is
pure; `tailrace.kafka.reader` brings the records.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.kafka.reader import Message
from tailrace.kafka.rejected_headers import HEADER_OFFSET, HEADER_PARTITION, HEADER_TOPIC

SHOWN = 5  # how many of the wrong records are named


class Place(NamedTuple):
    """Where an input record stands; a rejected record names it in its headers."""

    topic: str
    partition: int
    offset: int

    @classmethod
    def of(cls, record: Message) -> Place:
        """The record's own place."""
        return cls(record.topic, record.partition, record.offset)


@dataclass
class Expected:
    """What must come out: how often each output, by its identity, and the place of each rejected record."""

    outputs: Counter[str] = field(default_factory=Counter)
    rejected: Counter[Place] = field(default_factory=Counter)


@dataclass(frozen=True)
class Verdict:
    """What the comparison found."""

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
        """The closing line."""
        counts = (
            f"{self.read} in, {self.written} out, {self.lost} lost, {self.duplicated} duplicated,"
            f" {self.rejected} rejected"
        )
        if self.holds:
            return f"verified: {counts}"
        return f"not verified: {counts}" + (f", {self.unexpected} unexpected" if self.unexpected else "")


def source_of(rejected: Message) -> Place:
    """Where a rejected record came from, by its headers; a place that no record has if they do not say."""
    topic, partition, offset = (rejected.text(name) or "" for name in (HEADER_TOPIC, HEADER_PARTITION, HEADER_OFFSET))
    if not (partition.isdecimal() and offset.isdecimal()):
        return Place(topic, -1, rejected.offset)
    return Place(topic, int(partition), int(offset))


def compare(read: int, expected: Expected, outputs: Counter[str], rejected: Counter[Place]) -> Verdict:
    """Count what is missing, what is there too often, and what should not be there at all."""
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
