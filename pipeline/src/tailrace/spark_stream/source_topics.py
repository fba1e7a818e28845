"""The ids of a stateful pipeline's source topics: offsets mean nothing in a topic that was deleted and created again.

Spark's reader knows topics by their names alone. So the plan names the ids, a start compares them, and so does the
driver once a second while the query runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping

from tailrace.config import OnDataLoss, Pipeline
from tailrace.errors import PlanOfAnother, SourceChanged, TailraceError
from tailrace.kafka import source
from tailrace.kafka.clients import TopicPartitions
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.errors import denied
from tailrace.kafka.rights import Operation, on_topic
from tailrace.kafka.topics import recreation
from tailrace.progress.plan import BatchId, Place
from tailrace.progress.stream_plan import StreamPlan

EVERY = 1.0  # seconds between two requests
_DELIVERED = "everything that was delivered; nothing more was read"
_NOTHING = "nothing was read or written"
_AGAIN = "start the pipeline again"
_NEW_NAME = (
    "check the output for what the batch delivered; then give the pipeline a new name and a new checkpoint: it begins "
    "by auto.offset.reset, or at the offsets that you choose (`offsets`, with a file)"
)


class SourceTopics:
    """The source topics of one run; `planned` are the ids that the last plan names."""

    def __init__(
        self,
        pipeline: Pipeline,
        cluster: Cluster,
        planned: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pipeline, self._cluster, self._clock = pipeline, cluster, clock
        now = source.ids(pipeline, cluster, planned)
        self.again = frozenset(topic for topic, name in now.items() if planned.get(topic, name) != name)
        self.ids = {**planned, **now}
        self._sure = set(planned)  # topics whose ids nobody need ask for
        self.lost: frozenset[str] = frozenset()  # those that were created again while the pipeline ran
        self._asked = clock()
        self._waits = False

    def of(self, places: Iterable[Place]) -> dict[str, str]:
        """Return the ids of the topics of these partitions."""
        return {topic: self.ids[topic] for topic in sorted({topic for topic, _ in places}) if topic in self.ids}

    def moved(self, stored: TopicPartitions) -> tuple[TopicPartitions, list[str]]:
        """Return the positions in the topics that were created again, and notes on them; refuse unless allowed."""
        if self.again and self._pipeline.source.on_data_loss is OnDataLoss.STOP:
            raise recreation(
                self.again,
                "since the last batch",
                _DELIVERED,
                "set source.on_data_loss: reset to read it from its beginning; the state stays as it is",
            )
        if not self.again:
            return stored, []
        places = [place for place in source.partitions_of(self._pipeline, self._cluster) if place[0] in self.again]
        notes = [
            f"{topic} was deleted and created again; reading it from its beginning" for topic in sorted(self.again)
        ]
        kept = {place: offset for place, offset in stored.items() if place[0] not in self.again}
        return kept | self._cluster.earliest(places), notes

    def open(self, batch: BatchId) -> PlanOfAnother:
        """Return the refusal of an open batch that Spark would read again, now from another topic."""
        return self._reopened(batch, self.again)

    @staticmethod
    def _reopened(batch: BatchId, again: Collection[str]) -> PlanOfAnother:
        why = f"since batch {batch}, which Spark has not noted as done, was planned to read it"
        return recreation(again, why, _NOTHING, _NEW_NAME)

    def refuse_gone(self, plan: StreamPlan, positions: TopicPartitions) -> None:
        """Refuse an open batch that reads topics which no longer exist: Spark would wait for them in each try."""
        left = {topic for topic, _ in plan.ends} - {topic for topic, _ in positions}
        read = {topic for topic in left if plan.reads_of({topic})}
        if not read:
            return
        found, hidden = source.described(read, self._cluster)
        what = f"batch {plan.batch}, which Spark has not noted as done,"
        if hidden:
            rights = [on_topic(Operation.READ, topic) for topic in sorted(hidden)]
            raise denied(f"{what} reads {', '.join(sorted(hidden)[:5])}, which may not be described", rights, _NOTHING)
        ids = source.ids_of(found, self._cluster, plan.topics or {})
        if again := {topic for topic, name in ids.items() if (plan.topics or {}).get(topic, name) != name}:
            raise self._reopened(plan.batch, again)
        if gone := sorted(read - found.keys()):
            raise SourceChanged(
                f"{what} reads {', '.join(gone[:5])}, which no longer exists",
                kept=_NOTHING,
                then=_NEW_NAME,
            )

    def wait(self) -> None:
        """Let an open batch be finished that reads nothing of the topics that were created again."""
        self._waits = True

    def finished(self, batch: BatchId) -> PlanOfAnother:
        """Return the end of the run that has finished such a batch: the next start moves the offsets."""
        return recreation(self.again, f"since batch {batch}, which is finished now", _DELIVERED, _AGAIN)

    def learn(self, topics: Collection[str], read: Collection[str] = ()) -> None:
        """Make sure of the ids of the topics that the last batch had not `read`, or had no sure id of.

        One of the same name may have been deleted, and given up.

        Spark has heard of a topic from another broker than this driver, and one that lags names the former topic, or
        none. An id that is wrong in the plan would show the topic as created again, or hide that it was.
        """
        new = {topic for topic in topics if topic not in self._sure or topic not in read}
        agreed = source.sure_ids(new, self._cluster)
        begun = {topic for topic, name in agreed.items() if self.ids.get(topic, name) != name}
        if others := begun - self._sure:
            raise recreation(others, "while the pipeline started, or a broker lags", _DELIVERED, _AGAIN)
        self.ids = {**self.ids, **agreed}
        self._sure |= new

    def look(self) -> None:
        """Raise PlanOfAnother if a topic has another id than before; ask at most once a second.

        One answer is enough: the next start asks until the brokers agree.
        """
        if self._clock() - self._asked < EVERY:
            return
        self._asked = self._clock()
        try:
            found = source.topics(self._pipeline, self._cluster, self.ids).found
        except TailraceError:  # if that matters, the query fails by itself
            return
        left = self.again if self._waits else frozenset()
        self.lost = frozenset(topic for topic, (name, _) in found.items() if self.ids.get(topic, name) != name) - left
        if self.lost:
            raise recreation(self.lost, "while the pipeline ran", _DELIVERED, _AGAIN)
        self.ids = {**{topic: name for topic, (name, _) in found.items()}, **self.ids}
