"""The reader of one pipeline's markers: one client for all its sink partitions on an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tailrace.errors import ProgressMissing
from tailrace.gateway import Assignment
from tailrace.kafka.clients import connection, persist
from tailrace.kafka.informed_reader import Informed, InformedReader
from tailrace.kafka.rights import Operation, on_groups, on_topic
from tailrace.progress import expiry
from tailrace.progress.elsewhere import Elsewhere, elsewhere
from tailrace.progress.marker import Marker, markers_group
from tailrace.progress.plan import BatchId

LIMIT = 60.0
_TRY = 10.0


class MarkerReader:
    """Asks for the offsets of the markers' group."""

    def __init__(self, task: Assignment) -> None:
        self.name = f"the markers of {task.pipeline}"
        self._pipeline = task.pipeline
        self._topic = task.ledger
        self._options = connection(task.options)
        self._elsewhere: Elsewhere | None = None
        self._retention: expiry.Retention | None = None
        self._rights = (on_groups(task.pipeline), on_topic(Operation.READ, task.ledger))
        self._reader = InformedReader(self._options, markers_group(task.pipeline))

    @property
    def queued(self) -> int:
        """Always 0: each question waits for its answer."""
        return 0

    @property
    def group(self) -> Any:
        """The metadata that a transaction needs to commit offsets for the group."""
        return self._reader.metadata

    def inform(self, producer: Producer, partition: int, who: str, limit: float = LIMIT) -> Informed:
        """Return a client that is told all markers that were committed before `producer` fenced.

        Its transaction is left open, and must be aborted.
        """
        return self._reader.inform(
            producer, TopicPartition(self._topic, partition), limit, f"{who}: asking for its marker"
        )

    def confirms(self, consumer: Consumer, partition: int, told: Marker | None) -> bool:
        """Return whether a broker that knows of the next marker, in an open transaction, has committed this one."""
        places = [TopicPartition(self._topic, partition)]
        return self._reader.confirms(
            consumer, places, LIMIT, lambda found: Marker.read(found.offset, found.metadata) == told
        )

    def markers(
        self, partitions: Iterable[int], who: str, limit: float = LIMIT, informed: Consumer | None = None
    ) -> dict[int, Marker]:
        """Return the markers of these sink partitions; one that was never written has none.

        A marker in an open transaction is reported only once the transaction ends, so this may wait until the limit.
        """
        places = [TopicPartition(self._topic, number) for number in partitions]
        found = self._reader.read(places, f"{who}: reading its marker", self._rights, limit, informed)
        read = {each.partition: Marker.read(each.offset, each.metadata) for each in found}
        return {number: marker for number, marker in read.items() if marker is not None}

    def all(self, who: str, own: int, informed: Consumer | None = None) -> dict[int, Marker]:
        """Return the markers of all sink partitions, with `own` among them: a broker may show fewer than there are."""
        found = persist(
            lambda: self._reader.consumer.list_topics(self._topic, timeout=_TRY), f"{who}: looking at the ledger", LIMIT
        )
        most = max(len(found.topics[self._topic].partitions), own + 1)
        return self.markers(range(most), who, LIMIT, informed)

    def refuse_elsewhere(self, batch: BatchId, known: Callable[[], Iterable[Marker]]) -> None:
        """Refuse a batch of a query without plans that has markers in another ledger topic; `known` reads its own."""
        if self._elsewhere is None:  # what is there was written before this query was started with this one
            self._elsewhere = elsewhere(AdminClient(self._options), self._pipeline, self._topic)
        if self._elsewhere.last:
            self._elsewhere.refuse(batch, continuing=any(each.next in {batch, batch + 1} for each in known()))

    def refuse_expired(self, planned: float, who: str, now: float) -> None:
        """Refuse a sink partition without a marker if the plan is so old that the brokers may have deleted one.

        The start has asked the same. This driver may have been suspended since, and another one may have delivered the
        batch, noted it, and been idle until its markers expired.
        """
        if not planned or now - planned < expiry.YOUNG:
            return
        if self._retention is None:
            self._retention = expiry.retention(AdminClient(self._options))
        if now - planned >= self._retention.certain:
            raise ProgressMissing(
                f"{who}: it has no marker, its batch was planned {expiry.duration(now - planned)} ago, and the brokers "
                f"delete a marker {expiry.duration(self._retention.seconds)} after it was committed "
                f"({self._retention.setting}): another driver may have delivered the batch meanwhile",
                kept="nothing was written to this sink partition, which may have written the batch before",
                then="start the pipeline again: it reads on where the last driver has stopped; if it is refused, check "
                "the output; `tailrace explain TR-306` lists the choices",
            )

    def listen(self) -> None:
        """Do nothing: a failed request raises at once."""

    def close(self) -> None:
        """Close the connections."""
        self._reader.close()
