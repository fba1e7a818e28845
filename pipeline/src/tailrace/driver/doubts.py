"""Answers of the brokers that contradict Kafka's own rules, and when to believe them. Everything here is pure.

While a topic keeps its id, no partition disappears and no end moves back, unless an unclean election has lost records.
A broker that lags or is cut off may answer otherwise for some seconds. So an answer that says less than is known counts
only once the brokers have repeated it for long enough.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from tailrace.kafka.source import CERTAIN_AFTER

T = TypeVar("T", bound=Hashable)
Topic = tuple[str, int]  # its id, and its number of partitions


def since(before: Mapping[T, float], doubts: Iterable[T], now: float) -> dict[T, float]:
    """Return since when each doubt has lasted without a break."""
    return {each: before.get(each, now) for each in doubts}


def certain(lasting: Mapping[T, float], now: float) -> frozenset[T]:
    """Return what has lasted for so long that it is believed."""
    return frozenset(each for each, begun in lasting.items() if now - begun >= CERTAIN_AFTER)


def longest(known: Mapping[str, Topic], found: Mapping[str, Topic]) -> dict[str, Topic]:
    """Return the topics as found, with no fewer partitions than are known of the same id."""
    return {
        topic: (name, max(count, known[topic][1]) if topic in known and known[topic][0] == name else count)
        for topic, (name, count) in found.items()
    }
