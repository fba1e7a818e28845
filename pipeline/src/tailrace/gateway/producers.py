"""The transactional producer of a sink partition.

librdkafka's producer retries a lost EndTxn forever and cannot tell its outcome from that of another one
(KAFKA-17754), so any doubt ends the producer: a fresh one takes a new epoch, and the marker shows what was written.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tailrace import crash_points, errors
from tailrace.config import TRANSACTION_TIMEOUT_MS, unfit_for_transactions
from tailrace.crash_points import Point
from tailrace.gateway import Assignment
from tailrace.gateway.librdkafka import Handover, available
from tailrace.gateway.markers import LIMIT, MarkerReader
from tailrace.gateway.sender import KEPT, TRANSACTIONAL, Sender
from tailrace.gateway.statistics import Listener
from tailrace.kafka.clients import add_offsets, broken, fatal, persist, told
from tailrace.kafka.errors import INVALID, code_of, is_fenced, translate
from tailrace.kafka.informed_reader import Informed
from tailrace.kafka.rights import Operation, on_groups, on_topic, on_transactions
from tailrace.progress.marker import Marker, transactional_id
from tailrace.progress.plan import BatchId
from tailrace.progress.states import Event, State, after, unfit

T = TypeVar("T")

_INIT_LIMIT = 60.0
_COMMIT_LIMIT = 60.0
_MARKER_LIMIT = 60.0  # longer than the brokers need to replace one that was killed, or to answer where they are slow
_SLOW_COMMIT_MS = 400.0  # below librdkafka's wait for a new coordinator, which is 500 ms
_GLANCE = 2.0
_QUEUE_WAIT = 0.05
_FLUSH_STEP = 0.5
_HEAR_LIMIT = 0.5


class SinkProducer(Sender):
    """The producer of one sink partition: its life follows `progress.states`."""

    def __init__(self, task: Assignment, ledger: MarkerReader, listener: Listener | None = None) -> None:
        name = transactional_id(task.pipeline, task.partition)
        self._ear = crash_points.Ear(Point.COMMIT_SENT)
        # A batch that was planned exactly-once may be finished by a configuration that says at-least-once now: its own
        # options are for the deliveries that follow. One that says exactly-once has none that are unfit.
        unfit_now = unfit_for_transactions({key: str(value) for key, value in task.options.items()})
        fit = {key: value for key, value in task.options.items() if key not in unfit_now}
        options = TRANSACTIONAL | fit | {"transactional.id": name} | self._ear.options
        super().__init__(options, name, listener)
        self.state = State.UNKNOWN
        self.last: BatchId | None = None  # the batch that this producer wrote last, without doubt
        self.run = task.run
        self._began = time.monotonic()
        self._timeout = int(task.options.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)) / 1000
        self._who = str(task)
        self._place = TopicPartition(task.ledger, task.partition)
        marking = on_groups(task.pipeline), on_topic(Operation.READ, task.ledger)
        self._rights = (on_transactions(task.pipeline), *marking)
        self.ledger = ledger  # may differ between tasks
        self.decided: BatchId | None = None  # the last batch for which it has decided whether to write
        self.informed: Consumer | None = None  # between fencing and reading the marker
        self.hearsay: Consumer | None = None  # the same, if it was told so before this producer fenced
        self._told: Marker | None = None  # the marker that was read last
        self._handover = Handover(self.producer) if available() else None

    def offer(self, topic: str, messages: Any) -> None:
        """Hand over a batch of messages (`librdkafka.messages`), in their order; wait while the queue is full."""
        if self._handover is None:
            raise errors.InvariantBroken(f"{self._who}: batches cannot be handed over in one call here")
        while len(messages):
            try:
                taken = self._handover.offer(topic, messages)
            except KafkaException as error:
                raise self._refused(error, f"{self._who}: writing to", topic) from error
            messages = messages[taken:]
            if len(messages):
                self._require_room(int(messages[0]["value_size"]), topic)
                self._serve(lambda: self.producer.poll(_QUEUE_WAIT))
                self.check()

    def _refused(self, error: KafkaException, what: str, topic: str) -> errors.TailraceError:
        self.poll()
        cause = broken(self.producer) or error
        if is_fenced(cause):
            return self._overtaken(f"{what} topic {topic!r}")
        lacking = on_topic(Operation.WRITE, topic), self._rights[0]
        return translate(cause, f"{what} topic {topic!r}", kept=KEPT, rights=lacking)

    def _ended(self) -> errors.TailraceError:
        self._step(Event.DOUBT)
        if self._heard.fenced:
            return self._overtaken("sending its records")
        return errors.CommitInDoubt(f"{self._who}: {self._heard.fatal}", kept=KEPT)

    @property
    def takes_batches(self) -> bool:
        """Whether `offer` can be used: it hands over a batch in one call."""
        return self._handover is not None

    def _step(self, event: Event) -> None:
        self.state = after(self.state, event)

    def fence(self) -> None:
        """Take the transactional id: this fences older owners and aborts what they left open."""
        doing = f"{self._who}: taking its transactional id"
        persist(lambda: self.producer.init_transactions(_INIT_LIMIT), doing, 120, self._rights)
        self._step(Event.FENCE)

    def inform(self) -> tuple[Informed, str]:
        """Find a broker that knows what older owners of the transactional id have committed; right after `fence`.

        Return also why the next transaction may not use the same epoch; empty if it may.
        """
        doing = "asking for its marker"
        informed = self._attempt(doing, lambda: self.ledger.inform(self.producer, self._place.partition, self._who))
        started = time.perf_counter()
        self._attempt(doing, lambda: self.producer.abort_transaction(_COMMIT_LIMIT))
        self.listen()
        self._heard.doubt = self._heard.doubt or self._slow((time.perf_counter() - started) * 1000)
        return informed, self._heard.doubt

    def marker(self) -> Marker | None:
        """Read the marker from the ledger; only a producer that has just fenced waits for open transactions."""
        fenced = self.state is State.FENCED
        self._require_informed()
        try:
            limit = LIMIT if fenced else _GLANCE
            found = self.ledger.markers([self._place.partition], self._who, limit, self.informed)
        except errors.KafkaError as error:
            if fenced:
                raise
            self._step(Event.DOUBT)
            raise errors.Contested(
                f"{self._who}: its marker could not be read within {_GLANCE:.0f} s: another attempt may hold it open",
                kept=KEPT,
            ) from error
        return self._read(found)

    def markers(self) -> dict[int, Marker]:
        """Read the markers of all sink partitions."""
        self._require_informed()
        found = self.ledger.all(self._who, self._place.partition, self.informed)
        self._read(found)
        return found

    def _read(self, found: dict[int, Marker]) -> Marker | None:
        self.informed = None
        self._step(Event.READ)
        self._told = found.get(self._place.partition)
        return self._told

    def _require_informed(self) -> None:
        if self.state is State.FENCED and self.informed is None:
            informed, doubt = self.inform()
            if doubt:
                self._step(Event.DOUBT)
                raise errors.Contested(f"{self._who}: asking for its marker: {doubt}", kept=KEPT)
            self.informed = informed.consumer

    @staticmethod
    def _slow(took: float) -> str:
        """Return why a transaction that took so many milliseconds to end is in doubt; empty if it is not."""
        # When the coordinator moves, its connection closes silently, and librdkafka looks for the new one after 500 ms.
        return f"slow commit: its last commit took more than {_SLOW_COMMIT_MS:.0f} ms" if took > _SLOW_COMMIT_MS else ""

    def begin(self) -> None:
        """Open the transaction."""
        self._began = time.monotonic()
        self._times.clear()  # those of earlier batches were taken
        self._attempt("beginning its transaction", self.producer.begin_transaction)
        self._step(Event.BEGIN)

    def seal(self, marker: Marker) -> None:
        """Put the marker into the transaction."""
        self.poll()
        place = TopicPartition(self._place.topic, self._place.partition, marker.next, marker.metadata)
        group = self.ledger.group
        producer = self.producer
        adding = functools.partial(add_offsets, producer, [place], group, _MARKER_LIMIT, "the brokers")
        self._attempt("adding its marker", adding)
        self._step(Event.SEAL)
        hearsay, self.hearsay = self.hearsay, None
        if hearsay is not None and not self.ledger.confirms(hearsay, self._place.partition, self._told):
            raise errors.CommitInDoubt(
                f"{self._who}: the broker that told its marker may have lost the markers' group before", kept=KEPT
            )

    def commit(self, batch: BatchId) -> float:
        """Commit, trusting the result only if nothing is in doubt; return the milliseconds it took."""
        started = time.perf_counter()
        self._attempt("sending its records", self._send_remaining)
        self._step(Event.COMMIT)
        sent = time.perf_counter()
        with self._ear.listening(self.producer, batch, self._place.partition):
            self._attempt("committing its transaction", lambda: self.producer.commit_transaction(_COMMIT_LIMIT))
        crash_points.at(Point.COMMIT_ACKNOWLEDGED, batch, self._place.partition)
        self.poll()  # failures of records are reported only here
        self._step(Event.COMMITTED)
        self.last = batch
        ended = time.perf_counter()
        self._heard.doubt = self._heard.doubt or self._slow((ended - sent) * 1000)
        return (ended - started) * 1000

    def _send_remaining(self) -> None:
        """Wait as long as records are being sent; if one is stuck, the commit reports why."""
        left, before = len(self.producer), 0
        while left and left != before:
            before, left = left, self.flush(_FLUSH_STEP)

    @property
    def doubt(self) -> str:
        """Why the next transaction may not use the same epoch; empty if it may."""
        return unfit(self.state, super().doubt or self._heard.doubt)

    def _attempt(self, doing: str, act: Callable[[], T]) -> T:
        try:
            return told(self.producer, act)
        except KafkaException as error:
            committing = self.state is State.COMMITTING
            self._step(Event.DOUBT)
            if code_of(error) in INVALID:  # the record's report, which names the topic, comes after this error
                self.flush(_HEAR_LIMIT)
            self.check()  # the error of a refused record says more than that of the transaction it broke
            if is_fenced(error):
                raise self._overtaken(doing) from error
            if committing and not error.args[0].txn_requires_abort():
                raise errors.CommitInDoubt(
                    f"{self._who}: {doing}: {error.args[0].str()}",
                    kept="the next attempt takes a new epoch, reads the marker, and then skips or writes",
                ) from error
            raise translate(error, f"{self._who}: {doing}", kept=KEPT, rights=self._rights) from error

    def _overtaken(self, doing: str) -> errors.CommitInDoubt:
        """Return the error for a transactional id that is no longer this producer's; Kafka has one for two reasons."""
        spent, allowed = time.monotonic() - self._began, self._timeout
        if spent > allowed:
            return errors.CommitInDoubt(
                f"{self._who}: {doing}: it took {spent:.0f} s, and a transaction may take {allowed:.0f} s",
                kept=KEPT,
                # The batch is open: it is written again as it was planned, however small later ones may be.
                then=f"raise sink.options: transaction.timeout.ms above {allowed * 1000:.0f} (the brokers allow at "
                "most transaction.max.timeout.ms); a lower batch.max_records helps from the next batch on",
            )
        return errors.Contested(f"{self._who}: {doing}: another attempt has taken the transactional id", kept=KEPT)

    def close(self) -> None:
        """Abort an open transaction, if the broker answers quickly, and drop the connections."""
        unfinished = self.state in {State.OPEN, State.SEALED}
        if unfinished and fatal(self.producer, lambda: self.producer.abort_transaction(5.0)) is not None:
            self._step(Event.DOUBT)  # the next owner's fence, or the transaction's timeout, aborts it
        if self._handover is not None:
            self._handover.close()
        super().close()
