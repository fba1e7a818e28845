"""Answers of the brokers that contradict Kafka's own rules, and when to believe them. Everything here is pure.

While a topic keeps its id, no partition disappears and no end moves back, unless an unclean election has lost records.
An id that was replaced or deleted never comes back. A broker that lags or is cut off may answer otherwise for some
seconds. So an answer that says less than is known, or another id, counts only once the brokers have repeated it for
long enough, and more than once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from tailrace.kafka.source import CERTAIN_AFTER

T = TypeVar("T", bound=Hashable)
Topic = tuple[str, int]  # its id, and its number of partitions

_ANSWERS = 3  # two may be a minute apart, and a broker may lag twice


class Doubt(NamedTuple):
    """An answer that every look repeats."""

    begun: float
    answers: int


def since(before: Mapping[T, Doubt], doubts: Iterable[T], now: float) -> dict[T, Doubt]:
    """Return since when each doubt has lasted without a break, with the answer that came now."""
    known = {each: before.get(each, Doubt(now, 0)) for each in doubts}
    return {each: Doubt(begun, answers + 1) for each, (begun, answers) in known.items()}


def certain(lasting: Mapping[T, Doubt], now: float) -> frozenset[T]:
    """Return what was repeated so often, and for so long, that it is believed."""
    return frozenset(
        each for each, (begun, answers) in lasting.items() if answers >= _ANSWERS and now - begun >= CERTAIN_AFTER
    )


def longest(known: Mapping[str, Topic], found: Mapping[str, Topic]) -> dict[str, Topic]:
    """Return the topics as found, with no fewer partitions than are known of the same id."""
    return {
        topic: (name, max(count, known[topic][1]) if topic in known and known[topic][0] == name else count)
        for topic, (name, count) in found.items()
    }


@dataclass(frozen=True)
class Ids:
    """The id of each topic, as far as the brokers agree on it."""

    believed: Mapping[str, str] = field(default_factory=dict)
    disputed: Mapping[tuple[str, str], Doubt] = field(default_factory=dict)  # the last id of each topic in doubt
    former: frozenset[str] = frozenset()  # ids that were replaced or deleted: only a broker that lags shows one

    def sure(self, topic: str, name: str) -> bool:
        """Return whether a topic that was answered with this id is certainly that topic."""
        return self.believed.get(topic) == name and (topic, name) not in self.disputed

    def without(self, deleted: Iterable[str]) -> Ids:
        """Return the ids without those of topics that are certainly gone: any other id is of a new topic."""
        gone = {topic: self.believed[topic] for topic in deleted if topic in self.believed}
        left = {topic: name for topic, name in self.believed.items() if topic not in gone}
        return replace(self, believed=left, former=self.former.union(gone.values()))


def judged(before: Ids, found: Mapping[str, str], now: float) -> Ids:
    """Return the ids after this answer. While the brokers contradict each other, no id of the topic is certain."""
    known = {topic: name for topic, name in found.items() if name not in before.former}
    open_ = {topic for topic, _ in before.disputed}
    doubts = {each for each in known.items() if each[0] in open_ or before.believed.get(*each) != each[1]}
    lasting = since(before.disputed, doubts, now)
    lasting |= {each: doubt for each, doubt in before.disputed.items() if each[0] not in known}
    sure = dict(certain(lasting, now))
    replaced = {before.believed[topic] for topic, name in sure.items() if before.believed.get(topic, name) != name}
    return Ids(
        {**known, **before.believed, **sure},
        {each: doubt for each, doubt in lasting.items() if each[0] not in sure},
        before.former | replaced,
    )
