"""Answers of the brokers that contradict Kafka's own rules, and when to believe them. Everything here is pure.

While a topic keeps its id, no partition disappears and no end moves back, unless an unclean election has lost records.
A broker that lags or is cut off may answer otherwise for some seconds. So an answer that says less than is known counts
only once the brokers have repeated it for long enough, and more than once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
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
