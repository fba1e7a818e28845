"""The ledger: where the driver writes each batch's plan before any of it may be delivered.

The driver's producer is transactional: a second driver of the same pipeline fences the first, whose next plan then
fails. The same transaction holds the input offsets of the earlier batches, so that every Kafka tool shows the lag.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tailrace import crash_points, errors
from tailrace.config import Kafka, Pipeline
from tailrace.crash_points import Point
from tailrace.kafka.clients import add_offsets, client_options, committed, freed, lost_id, taken, told
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.errors import PURGED, is_fenced, translate
from tailrace.kafka.informed_end import informed_end
from tailrace.kafka.informed_reader import InformedReader
from tailrace.kafka.rights import Operation, Right, on_group, on_groups, on_topic, on_transactions
from tailrace.progress import fences, ledger_topic, planned_topics
from tailrace.progress.group_note import GroupNote
from tailrace.progress.marker import Marker, driver_id, lead_group, markers_group, offsets_group
from tailrace.progress.plan import Place, Plan, SinkPartition
from tailrace.progress.plan_lookup import PlanLookup, place_of
from tailrace.progress.stream_plan import AnyPlan

_COMMIT_LIMIT = 30.0
_SOON = 0.1  # seconds; 0 would mean without a limit
_OFFSETS_LIMIT = 15.0  # longer than the brokers need to replace one that was killed
_PROMPT = 0.5  # seconds for which topics are believed to be the same ones
_ABORT_LIMIT = 5.0
_HEAR_LIMIT = 0.5  # the report of a refused record has arrived, or is about to


class Ledger:
    """One pipeline's view of the ledger, held by its driver."""

    def __init__(self, name: str, topic: str, kafka: Kafka, partitions: int, replication: int) -> None:
        self._name = name
        self._topic = topic
        self._base = client_options(kafka)
        self._cluster = Cluster(kafka)
        self.partitions = ledger_topic.ensure(self._cluster, topic, partitions, replication)
        self._prepared: list[Producer] = []  # one that has not taken its id
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._lead: Consumer | None = None  # for questions whether this driver still leads
        self._ear = crash_points.Ear(Point.PLAN_SENT)
        self._asked: float | None = None  # when a question or a plan began a transaction that may not have ended
        self._planned = False  # whether that one may hold a plan
        self._informed: dict[Place, int] = {}  # the end that this driver's look for its last plan must reach
        self._lock = threading.Lock()  # Spark's callback and the driver's own thread both write

    @classmethod
    def of(cls, pipeline: Pipeline) -> Self:
        """Return the ledger that a pipeline's configuration names."""
        ledger = pipeline.ledger
        return cls(pipeline.pipeline, ledger.topic, pipeline.kafka, ledger.partitions, ledger.replication)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def prepare(self) -> None:
        """Create the producer that `take` needs, without taking anything over."""
        if not self._prepared:
            options = {
                "transactional.id": driver_id(self._name),
                "retry.backoff.ms": 5,
                "linger.ms": 0,
                "message.max.bytes": 100_000_000,  # the brokers limit the size of a plan
                "transaction.timeout.ms": int(fences.TRANSACTION_TIMEOUT * 1000),
            }
            self._prepared.append(Producer(self._base | options | self._ear.options))

    def take(self) -> None:
        """Become the pipeline's driver: this fences every older driver."""
        self.prepare()
        doing = f"taking over the transactional id {driver_id(self._name)!r}"
        producer = self._producer = taken(self._prepared, doing, _COMMIT_LIMIT, [on_transactions(self._name)])
        self._asked, self._planned = None, False  # of an earlier producer
        self._consumer = self._reader(offsets_group(self._name))
        # A standby may have waited for days: an older driver, fenced now, may have used partitions that were added. A
        # smaller number is of a broker that does not know them yet.
        self.partitions = max(self.partitions, self._cluster.topics().get(self._topic, 0))
        self._inform(producer)

    def _inform(self, producer: Producer) -> None:
        """Learn where the log of this pipeline's plans ends, from a broker that has all that was committed."""
        doing, began = "asking for the end of the ledger", time.monotonic()
        try:
            place = self._topic, self._partition
            self._informed = {place: informed_end(producer, *place, _COMMIT_LIMIT)}
        except KafkaException as error:
            self._asked = began  # a later question ends it
            if is_fenced(error) and time.monotonic() - began <= fences.TRANSACTION_TIMEOUT:
                raise self._fenced(doing) from error
            rights = [self._right(Operation.WRITE), on_transactions(self._name)]
            raise translate(error, doing, kept="nothing was read or written", rights=rights) from error

    def overtaken(self, *, sure: bool = False) -> bool:
        """Ask whether a newer driver has taken over; with `sure`, raise KafkaFailed if no broker tells."""
        producer = self._producer
        if producer is None:
            return False
        with self._lock:
            lost = self._lost(producer, _OFFSETS_LIMIT)
            if sure:
                self._require_ended("asking whether a newer driver has taken over")
            return lost

    def _lost(self, producer: Producer, limit: float) -> bool:
        """Ask it with a transaction, or with an earlier one that may still be open."""
        began = self._asked or time.monotonic()
        self._lead = self._lead or self._reader(lead_group(self._name))
        place, group = TopicPartition(self._topic, self._partition, 0), self._lead.consumer_group_metadata()
        lost = lost_id(producer, place, group, limit, commit=not self._planned)
        # Brokers abort a transaction that stays open for too long, and report that as a newer driver.
        expired = time.monotonic() - began > fences.TRANSACTION_TIMEOUT
        open_ = lost is None or (lost and expired)
        self._asked, self._planned = began if open_ else None, self._planned and open_
        return bool(lost) and not expired

    def _settle(self, producer: Producer, doing: str, limit: float = _OFFSETS_LIMIT) -> None:
        """End a transaction that the brokers stopped answering; it stands in the way of the next one."""
        if self._asked is not None and self._lost(producer, limit):
            raise self._fenced(doing)
        self._require_ended(doing)

    def _require_ended(self, doing: str) -> None:
        if self._asked is not None:
            raise fences.unended(doing, time.monotonic() - self._asked)

    def _fenced(self, doing: str) -> errors.DriverFenced:
        return errors.DriverFenced(
            f"{doing} of pipeline {self._name!r}: a newer driver has taken over",
            kept="what this driver committed stays; the newer driver writes the remaining records",
            then="if no second driver should be running, find it: it has the same pipeline name",
        )

    @property
    def _partition(self) -> int:
        return place_of(self._name, self.partitions)

    def _reader(self, group: str) -> Consumer:
        return Consumer(
            self._base
            | {
                "group.id": group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,  # the ledger's end is reported after this; the default is half a second
            }
        )

    # -- plans -----------------------------------------------------------------------------------

    def latest(self, of: str | None = None) -> AnyPlan | None:
        """Return the last plan that was written, of this pipeline or of another one that uses the same ledger.

        It is in the pipeline's own partition of the ledger. If that holds none, search every partition: version 0.1
        chose another one, and the choice changes when a ledger grows from fewer partitions.
        """
        name = of or self._name
        reader = partial(self._reader, f"tailrace.{self._name}.reader")
        search = PlanLookup(reader, self._topic, self._cluster.earliest, self._ends, self._name)
        with contextlib.closing(search) as lookup:
            return lookup.latest(name, place_of(name, self.partitions), self.partitions)

    def _ends(self, places: Sequence[Place]) -> dict[Place, int]:
        ends = self._cluster.latest(places)
        return {place: max(end, self._informed.get(place, 0)) for place, end in ends.items()}

    def write(self, plan: AnyPlan, positions: dict[Place, int]) -> None:
        """Write a plan, and how far the earlier batches have read, in one transaction."""
        if plan.sinks > self.partitions:
            raise errors.LedgerUnusable(
                f"batch {plan.batch} has {plan.sinks} sink partitions, and the ledger {self._topic!r} has "
                f"{self.partitions} partitions",
                kept="nothing of the batch was written",
                then=f"give the ledger topic at least {plan.sinks} partitions, or set sink.partitions",
            )
        crash_points.at(Point.PLAN_UNWRITTEN, plan.batch)
        with self._lock:
            self._commit(plan, positions, Point.PLAN_OPEN)
        crash_points.at(Point.PLAN_WRITTEN, plan.batch)

    def settle(self, plan: AnyPlan | None, positions: dict[Place, int]) -> None:
        """Note the last plan as done and write its positions, if no further batch will do that."""
        if plan is not None:
            with self._lock:
                self._commit(plan.finished(), positions, Point.DONE_OPEN)
            crash_points.at(Point.DONE_NOTED, plan.batch)

    def _commit(self, plan: AnyPlan, positions: dict[Place, int], point: Point) -> None:
        producer, consumer = self._producer, self._consumer
        if producer is None or consumer is None:
            raise errors.InvariantBroken("the ledger was written before the driver took it over")
        doing = f"writing the plan of batch {plan.batch}"
        own = rights = [self._right(Operation.WRITE), on_transactions(self._name)]
        refused: list[KafkaError] = []

        def heard(error: KafkaError | None, _: object) -> None:
            if error is not None and error.code() not in PURGED:
                refused.append(error)

        self._settle(producer, doing)
        began = time.monotonic()
        try:
            producer.begin_transaction()
            producer.produce(self._topic, plan.to_bytes(), self._name.encode(), self._partition, on_delivery=heard)
            if positions:
                note = GroupNote.of(plan).metadata
                places = [TopicPartition(*place, offset, note) for place, offset in positions.items()]
                read = sorted({topic for topic, _ in positions})
                topics = [on_topic(Operation.READ, topic) for topic in read]
                rights = [*topics, on_group(offsets_group(self._name)), on_transactions(self._name)]
                group, asked = consumer.consumer_group_metadata(), time.monotonic()
                add_offsets(producer, places, group, _OFFSETS_LIMIT, "adding the positions")
                if time.monotonic() - asked > _PROMPT:
                    self._require_same_topics(plan, read, producer)
            crash_points.at(point, plan.batch, first=producer.flush)
            rights = own
            with self._ear.listening(producer, plan.batch):
                told(producer, lambda: producer.commit_transaction(_COMMIT_LIMIT))
        except KafkaException as error:
            spent = time.monotonic() - began
            if is_fenced(error) and spent <= fences.TRANSACTION_TIMEOUT:  # Kafka has one error for both
                raise self._fenced(doing) from error
            self._asked, self._planned = began, True
            if is_fenced(error):
                raise errors.KafkaFailed(
                    f"{doing}: it took {spent:.0f} s, and the brokers abort a transaction after "
                    f"{fences.TRANSACTION_TIMEOUT:.0f} s",
                    kept="nothing of the batch was written",
                    then="start the pipeline again; if this repeats: tailrace doctor FILE",
                ) from error
            with contextlib.suppress(KafkaException):
                told(producer, lambda: producer.flush(_HEAR_LIMIT))
            # The plan's record broke the transaction, whichever call failed; its report may come later.
            if refused or "add partition" in error.args[0].str():
                rights = own
            if error.args[0].txn_requires_abort():
                with contextlib.suppress(KafkaException):  # otherwise its offsets block every reader until it times out
                    told(producer, lambda: producer.abort_transaction(_ABORT_LIMIT))
                    self._asked, self._planned = None, False
            raise translate(error, doing, kept="nothing of the batch was written", rights=rights) from error

    def _require_same_topics(self, plan: AnyPlan, read: Sequence[str], producer: Producer) -> None:
        """Abort if a source topic was deleted and created again: its positions say nothing about the new one."""
        if isinstance(plan, Plan) and (again := planned_topics.changed(plan, read, self._cluster)):
            with contextlib.suppress(KafkaException):
                told(producer, lambda: producer.abort_transaction(_ABORT_LIMIT))
            raise planned_topics.refusal(plan, again, self._cluster)

    def _right(self, operation: Operation) -> Right:
        return on_topic(operation, self._topic)

    def positions(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return how far the pipeline has read these partitions, according to the stored offsets."""
        return {place: each.offset for place, each in self.stored(places).items()}

    def stored(self, places: Iterable[Place]) -> dict[Place, TopicPartition]:
        """Return the stored offsets of these partitions, with their notes."""
        group, asked = offsets_group(self._name), [TopicPartition(*place) for place in places]
        consumer = self._reader(group)
        topics = [on_topic(Operation.DESCRIBE, topic) for topic in sorted({each.topic for each in asked})]
        try:
            found = committed(consumer, asked, "reading the stored offsets", [on_group(group), *topics])
        finally:
            freed("a consumer", consumer.close)
        return {(each.topic, each.partition): each for each in found if each.offset >= 0}

    def note(self, group: str, text: str, limit: float) -> None:
        """Commit a text as the metadata of an offset, in a transaction of the driver: one that was fenced cannot.

        All of it together takes at most `limit` seconds.
        """
        producer = self._producer
        if producer is None:
            return
        consumer, doing = self._reader(group), f"writing a note to the group {group!r}"
        try:
            with self._lock:
                end = time.monotonic() + limit
                self._settle(producer, doing, limit / 4)
                producer.begin_transaction()
                place = TopicPartition(self._topic, 0, 0, text)
                add_offsets(producer, [place], consumer.consumer_group_metadata(), limit, doing)
                producer.commit_transaction(max(_SOON, end - time.monotonic()))
        except KafkaException as error:
            raise translate(error, doing, rights=[on_groups(self._name), on_transactions(self._name)]) from error
        finally:
            freed("a consumer", consumer.close)

    # -- markers ---------------------------------------------------------------------------------

    def markers(self, limit: float = 60.0, *, fenced: bool = False) -> dict[SinkPartition, Marker]:
        """Return every marker of the pipeline; whoever has fenced its sinks is told by a broker that knows all."""
        if fenced:
            with contextlib.closing(InformedReader(self._base, markers_group(self._name))) as reader:
                return fences.markers(self._base, self._name, reader, self._topic, self.partitions)
        consumer = self._reader(markers_group(self._name))
        places = [TopicPartition(self._topic, number) for number in range(self.partitions)]
        try:
            rights = [on_groups(self._name), self._right(Operation.READ)]
            found = committed(consumer, places, "reading the markers", rights, limit)
        finally:
            freed("a consumer", consumer.close)
        read = {SinkPartition(each.partition): Marker.read(each.offset, each.metadata) for each in found}
        return {partition: marker for partition, marker in read.items() if marker is not None}

    def fence(self, sinks: int) -> None:
        """Take each sink partition's transactional id once: gateways of older drivers can commit no more."""
        fences.fence(self._base, self._name, range(sinks))

    def give_up(self, parts: Sequence[SinkPartition], marker: Marker, known: Mapping[SinkPartition, Marker]) -> None:
        """Commit this marker in each sink partition, unless another one than is known was written meanwhile."""
        with contextlib.closing(InformedReader(self._base, markers_group(self._name))) as reader:
            fences.give_up(self._base, self._name, reader, self._topic, parts, marker, known)

    def close(self) -> None:
        """Close the clients; the transactional id stays taken until the next driver takes it."""
        for consumer in (self._consumer, self._lead):
            if consumer is not None:
                freed("a consumer", consumer.close)
        self._producer = self._consumer = self._lead = None
        self._prepared.clear()
