"""Answers about where topics end, refused if they may be those of a broker that is cut off from the others."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from tailrace.errors import KafkaFailed
from tailrace.kafka.cluster import Cluster

T = TypeVar("T")
_SHOWN = 5


def told_by_leaders(cluster: Cluster, places: Collection[tuple[str, int]], ask: Callable[[], T], kept: str) -> T:
    """Return an answer; refuse it if it may be of a broker that is cut off from the others."""
    agreed = cluster.agreed_latest(places)  # first: what arrives meanwhile makes the logs longer, never shorter
    found = ask()
    last = cluster.latest(places)
    if short := sorted(place for place in places if last[place] < agreed[place]):
        shown = ", ".join(f"{topic}-{number} at {last[topic, number]}" for topic, number in short[:_SHOWN])
        raise KafkaFailed(
            f"{len(short)} partitions end too early, as a broker says that is cut off from the others ({shown})",
            kept=kept,
            then="repeat the command; if this repeats, look for a broker that is cut off from the others",
        )
    return found
