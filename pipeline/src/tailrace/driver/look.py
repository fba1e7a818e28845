"""A look at the source: which topic partitions exist, which topics they belong to, and where they end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from tailrace import errors
from tailrace.config import Isolation, OnDataLoss, Pipeline
from tailrace.kafka import source
from tailrace.kafka.clients import TopicPartitions
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.topics import topic_ids
from tailrace.progress.plan import Place

TOPICS_EVERY = 1.0  # seconds between queries for the topics themselves


@dataclass(frozen=True)
class Seen:
    """The result of one look."""

    ends: TopicPartitions  # to which the source can read now
    topics: Mapping[str, str]  # source topics with their ids
    at: float  # monotonic
    short: frozenset[Place] = frozenset()  # whose logs end before the position; `ends` has where


class Look:
    """Asks the brokers, on behalf of the loop."""

    def __init__(self, pipeline: Pipeline, cluster: Cluster) -> None:
        self._pipeline = pipeline
        self._cluster = cluster
        self._committed = pipeline.source.isolation is Isolation.READ_COMMITTED
        self._asked = 0.0
        self._topics: dict[str, tuple[str, int]] = {}

    def topics(self) -> dict[str, tuple[str, int]]:
        """Return the id and the number of partitions of each source topic, at most a second old."""
        if not self._topics or time.monotonic() - self._asked > TOPICS_EVERY:
            names = {topic for topic, _ in source.partitions_of(self._pipeline, self._cluster)}
            self._topics = topic_ids(self._cluster.admin, names)
            self._asked = time.monotonic()
        return self._topics

    def __call__(self, positions: TopicPartitions) -> Seen:
        """Return the ends of the source's partitions, new ones included."""
        while True:
            seen, asked = self._look(positions), self._asked
            # The brokers may have answered only when a deleted topic existed again: the ends are those of the new one.
            if seen.at - asked <= TOPICS_EVERY or _ids(self.topics()) == seen.topics:
                return seen

    def _look(self, positions: TopicPartitions) -> Seen:
        topics = self.topics()
        places = {(topic, number) for topic, (_, count) in topics.items() for number in range(count)}
        gone = sorted(set(positions) - places)
        if gone and self._pipeline.source.on_data_loss is OnDataLoss.STOP:
            raise errors.SourceChanged(
                f"{', '.join(f'{topic}-{number}' for topic, number in gone[:5])} no longer exists",
                kept="everything that was delivered; nothing more was read",
                then="restore the topic, or set source.on_data_loss: reset to continue without it",
            )
        ends = self._cluster.latest(sorted(places), self._committed)
        known = {place: offset for place, offset in positions.items() if place in ends}
        tops = source.beyond(known, ends, self._cluster)
        short = frozenset(place for place, top in tops.items() if top < known[place])
        return Seen(ends | {place: tops[place] for place in short}, _ids(topics), time.monotonic(), short)


def _ids(topics: Mapping[str, tuple[str, int]]) -> dict[str, str]:
    return {topic: name for topic, (name, _) in topics.items()}
