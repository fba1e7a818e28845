"""A look at the source: which topic partitions exist, which topics they belong to, and where they end."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from tailrace import errors
from tailrace.config import Isolation, Pipeline
from tailrace.driver.doubts import Doubt, Ids, Topic, certain, judged, longest, since
from tailrace.kafka import source
from tailrace.kafka.clients import TopicPartitions
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.source import CERTAIN_AFTER
from tailrace.progress.plan import Place

log = logging.getLogger(__name__)

TOPICS_EVERY = 1.0  # seconds between queries for the topics themselves


@dataclass(frozen=True)
class Seen:
    """The result of one look."""

    ends: TopicPartitions  # to which the source can read now
    topics: Mapping[str, str]  # source topics with their ids
    at: float  # monotonic
    short: frozenset[Place] = frozenset()  # whose logs certainly end before the position; `ends` has where
    deleted: frozenset[str] = frozenset()  # topics that are certainly no longer there; others may only be hidden
    disputed: frozenset[str] = frozenset()  # topics left out because their ids are in doubt

    def without(self, topics: Collection[str]) -> Seen:
        """Return what was seen of other topics than these."""
        return replace(
            self,
            ends={place: end for place, end in self.ends.items() if place[0] not in topics},
            topics={topic: name for topic, name in self.topics.items() if topic not in topics},
            deleted=self.deleted.difference(topics),
        )


class Look:
    """Asks the brokers, on behalf of the loop; `ids` are those of the topics that were read until now."""

    def __init__(self, pipeline: Pipeline, cluster: Cluster, ids: Mapping[str, str] | None = None) -> None:
        self._pipeline = pipeline
        self._cluster = cluster
        self._committed = pipeline.source.isolation is Isolation.READ_COMMITTED
        self._asked = 0.0
        self._topics: dict[str, Topic] = {}
        self._known: dict[str, Topic] = {}  # every topic that was found, also if it is missing now
        self._absent: dict[str, Doubt] = {}  # topics that no longer seem to exist
        self._ids = Ids(dict(ids or {}))
        self._disputed: frozenset[str] = frozenset()
        self._doubts: dict[Place, Doubt] = {}  # what the brokers say less of than is known

    def topics(self) -> dict[str, Topic]:
        """Return the id and the number of partitions of each source topic, at most a second old.

        A topic whose id is in doubt is left out: its offsets might be those of another one.
        """
        if not self._topics or time.monotonic() - self._asked > TOPICS_EVERY:
            found = source.topics(self._pipeline, self._cluster, self._known)
            self._asked = time.monotonic()
            self._absent = since(self._absent, found.unknown, self._asked)
            self._ids = judged(self._ids, _ids(found.found), self._asked)
            sure = {topic: each for topic, each in found.found.items() if self._ids.sure(topic, each[0])}
            self._topics, self._disputed = longest(self._known, sure), frozenset(found.found.keys() - sure.keys())
            self._known |= self._topics
        return self._topics

    def __call__(self, positions: TopicPartitions) -> Seen:
        """Return the ends of the source's partitions, new ones included."""
        again = False
        while True:
            try:
                seen, asked = self._look(positions), self._asked
            except (errors.NotAuthorized, errors.TopicUnknown):
                if again:
                    raise
                again, self._asked = True, 0.0  # a topic may be hidden, or deleted, since they were listed
                continue
            # The brokers may have answered only when a deleted topic existed again: the ends are those of the new one.
            if seen.at - asked <= TOPICS_EVERY or _ids(self.topics()) == seen.topics:
                return seen

    def _look(self, positions: TopicPartitions) -> Seen:
        topics = self.topics()
        places = {(topic, number) for topic, (_, count) in topics.items() for number in range(count)}
        ends = self._cluster.latest(sorted(places), self._committed)
        known = {place: offset for place, offset in positions.items() if place in ends}
        tops = source.beyond(known, ends, self._cluster)
        now = time.monotonic()
        self._doubts = since(self._doubts, [place for place, top in tops.items() if top < known[place]], now)
        sure = certain(self._doubts, now)
        short = frozenset(place for place in tops if place in sure)
        if short:  # a broker that is cut off repeats its answer for as long as that lasts
            tops |= self._agreed(short, known)
            refuted = {place for place in short if tops[place] >= known[place]}
            self._doubts = {each: doubt for each, doubt in self._doubts.items() if each not in refuted}
            short -= refuted
        deleted = certain(self._absent, self._asked)  # by answers that are as far apart, however many looks use them
        self._ids = self._ids.without(deleted)
        ends |= {place: tops[place] for place in short}
        return Seen(ends, _ids(topics), now, short, deleted, self._disputed)

    def _agreed(self, short: Collection[Place], known: TopicPartitions) -> TopicPartitions:
        """Return the ends that the brokers agree on, or what is known: other partitions are read on meanwhile."""
        try:
            return self._cluster.agreed_latest(short)
        except (errors.BrokerUnreachable, errors.KafkaFailed) as error:
            log.warning("%s; asking again in %g s, until then nothing of it is read", error.what, CERTAIN_AFTER)
            return {place: known[place] for place in short}


def _ids(topics: Mapping[str, Topic]) -> dict[str, str]:
    return {topic: name for topic, (name, _) in topics.items()}
