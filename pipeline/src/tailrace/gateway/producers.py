"""The transactional producer of a sink partition, and the at-least-once producer that tasks share.

librdkafka's producer retries a lost EndTxn forever and cannot tell its outcome from that of another one
(KAFKA-17754), so any doubt ends the producer: a fresh one takes a new epoch, and the marker shows what was written.
"""

from __future__ import annotations

import functools
import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from tailrace import crash_points, errors
from tailrace.config import redact
from tailrace.crash_points import Point
from tailrace.gateway import Assignment
from tailrace.gateway.librdkafka import Handover, available
from tailrace.gateway.markers import LIMIT, MarkerReader
from tailrace.gateway.statistics import Listener
from tailrace.kafka.clients import add_offsets, broken, fatal, persist, told
from tailrace.kafka.errors import PURGED, is_fenced, translate
from tailrace.kafka.rights import Operation, on_groups, on_topic, on_transactions
from tailrace.progress.marker import Marker, transactional_id
from tailrace.progress.plan import BatchId
from tailrace.progress.states import Event, State, after, unfit

log = logging.getLogger(__name__)
T = TypeVar("T")

TRANSACTION_TIMEOUT_MS = 120_000
_INIT_LIMIT = 60.0
_COMMIT_LIMIT = 60.0
_MARKER_LIMIT = 20.0  # longer than the brokers need to replace one that was killed
_SLOW_COMMIT_MS = 400.0  # below librdkafka's wait for a new coordinator, which is 500 ms
_GLANCE = 2.0
_QUEUE_WAIT = 0.05
_FLUSH_STEP = 0.5
_LOG_INFO = 6  # librdkafka's number: from this level on it logs that a connection was closed with a request in flight
# The states of a connection that has not carried a request yet; its errors cannot hide one of a later state.
_NEVER_THERE = re.compile(r"in state (TRY_CONNECT|CONNECT)\b")
_KEPT = "nothing of this attempt is visible to a read_committed reader; the task is tried again"

TRANSACTIONAL = {
    "partitioner": "murmur2_random",  # Java's: the same key goes to the same partition as from any other producer
    "linger.ms": 5,
    "retry.backoff.ms": 5,
    "compression.type": "lz4",
    "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
    "queue.buffering.max.kbytes": 131_072,
    "delivery.report.only.error": True,
}
AT_LEAST_ONCE = {**TRANSACTIONAL, "enable.idempotence": True}
del AT_LEAST_ONCE["transaction.timeout.ms"]


class _Heard:
    """What a producer's callbacks reported. It has no reference to the producer, which can then be freed at once."""

    def __init__(self, other: logging.Logger | None = None) -> None:
        self._other = other  # another logger that also gets the log
        self.failed: KafkaError | None = None
        self.topic = ""
        self.doubt = ""
        self.fatal = ""
        self.fenced = False  # the fatal error is that of a newer owner

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """Take a delivery report: only failures are reported."""
        if error is not None and self.failed is None and error.code() not in PURGED:
            self.failed, self.topic = error, message.topic() or ""

    def error(self, error: KafkaError) -> None:
        """Take an error of the client; errors of single connections are in the log too, more completely."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN and not _NEVER_THERE.search(error.str()):
            self.doubt = self.doubt or f"connection: {error.name()}: {error.str()}"

    def log(self, level: int, form: str, *arguments: str) -> None:
        """Take a line of librdkafka's log: only there does it say that requests may have been sent twice."""
        (self._other or log).log(level if self._other else logging.DEBUG, form, *arguments)
        if level > logging.DEBUG and arguments and resent(arguments[0], arguments[-1]):
            self.doubt = self.doubt or "connection: a request was not answered, and may have been sent twice"


def resent(kind: str, text: str) -> bool:
    """Return whether a line of librdkafka's log says that requests may have been sent twice (docs/decisions/0015)."""
    return kind == "REQTMOUT" or (kind == "FAIL" and not _NEVER_THERE.search(text))


class Sender:
    """The base of both kinds of producers: takes records, and notices the ones that fail."""

    def __init__(self, options: Mapping[str, Any], name: str, listener: Listener | None = None) -> None:
        self.name = name
        self._heard = _Heard(options.get("logger"))
        self._listener = listener
        self.producer = Producer(
            {
                **options,
                "on_delivery": self._heard.delivered,
                "error_cb": self._heard.error,
                "logger": self._heard,
                "log_level": max(_LOG_INFO, int(options.get("log_level", 0))),
                **(listener.options if listener is not None else {}),
            }
        )
        log.info("created a producer for %s: %s", name, redact({key: str(value) for key, value in options.items()}))

    def send(self, **record: Any) -> None:
        """Hand one record to librdkafka; wait while its queue is full."""
        while True:
            try:
                self.producer.produce(**record)
                return
            except BufferError:
                self._serve(lambda: self.producer.poll(0.1))
                self.check()
            except KafkaException as error:
                size = len(record.get("value") or b"") + len(record.get("key") or b"")
                raise self._refused(error, f"a record of {size} bytes for", record["topic"]) from error

    def _refused(self, error: KafkaException, what: str, topic: str) -> errors.TailraceError:
        """Return the error for records that librdkafka did not take."""
        self.poll()  # a fatal error, or that of a record, is told only there
        return translate(error, f"{what} topic {topic!r}", kept=_KEPT, rights=[on_topic(Operation.WRITE, topic)])

    def _serve(self, call: Callable[[], object]) -> None:
        """Run a call that runs librdkafka's callbacks, and keep a fatal error, which ends the producer."""
        error = fatal(self.producer, call)
        if error is not None and not self._heard.fatal:
            self._heard.fatal, self._heard.fenced = f"fatal: {error.args[0].str()}", is_fenced(error)

    def listen(self) -> None:
        """Run librdkafka's callbacks."""
        self._serve(lambda: self.producer.poll(0))

    def flush(self, limit: float = _COMMIT_LIMIT) -> int:
        """Wait until the broker has acknowledged what was sent so far; return how much it has not."""
        self._serve(lambda: self.producer.flush(limit))
        return len(self.producer)

    def poll(self) -> None:
        """Run librdkafka's callbacks, and raise the first failure: it ends the task."""
        self.listen()
        self.check()

    def check(self) -> None:
        """Raise the failure that a delivery report brought, or the fatal error that ended the producer, if any."""
        if self._heard.failed is not None:
            topic = self._heard.topic
            lacking = [on_topic(Operation.WRITE, topic)]
            raise translate(self._heard.failed, f"writing to topic {topic!r}", kept=_KEPT, rights=lacking)
        if self._heard.fatal:  # delivery reports that came with it may have been lost
            raise self._ended()

    def _ended(self) -> errors.TailraceError:
        """Return the error for a fatal error of the producer."""
        return errors.KafkaFailed(f"{self.name}: {self._heard.fatal}", kept="the task is tried again")

    @property
    def doubt(self) -> str:
        """Why this producer should not be used again; empty if it may be."""
        self.listen()
        if self._heard.failed is not None:
            return f"not delivered: a record was not ({self._heard.failed.name()})"
        return self._heard.fatal

    @property
    def queued(self) -> int:
        """The number of records and reports that wait."""
        return len(self.producer)

    def close(self) -> None:
        """Drop the records that are still queued, and the connections."""
        self.producer.purge()
        if self._listener is not None:
            self._listener.forget()


class SinkProducer(Sender):
    """The producer of one sink partition: its life follows `progress.states`."""

    def __init__(self, task: Assignment, ledger: MarkerReader, listener: Listener | None = None) -> None:
        name = transactional_id(task.pipeline, task.partition)
        self._ear = crash_points.Ear(Point.COMMIT_SENT)
        options = TRANSACTIONAL | task.options | {"transactional.id": name} | self._ear.options
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
                self._serve(lambda: self.producer.poll(_QUEUE_WAIT))
                self.check()

    def _refused(self, error: KafkaException, what: str, topic: str) -> errors.TailraceError:
        self.poll()
        cause = broken(self.producer) or error
        if is_fenced(cause):
            return self._overtaken(f"{what} topic {topic!r}")
        lacking = on_topic(Operation.WRITE, topic), self._rights[0]
        return translate(cause, f"{what} topic {topic!r}", kept=_KEPT, rights=lacking)

    def _ended(self) -> errors.TailraceError:
        self._step(Event.DOUBT)
        if self._heard.fenced:
            return self._overtaken("sending its records")
        return errors.CommitInDoubt(f"{self._who}: {self._heard.fatal}", kept=_KEPT)

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

    def marker(self) -> Marker | None:
        """Read the marker from the ledger; only a producer that has just fenced waits for open transactions."""
        fenced = self.state is State.FENCED
        try:
            found = self.ledger.markers([self._place.partition], self._who, LIMIT if fenced else _GLANCE)
        except errors.KafkaError as error:
            if fenced:
                raise
            self._step(Event.DOUBT)
            raise errors.CommitInDoubt(
                f"{self._who}: its marker could not be read within {_GLANCE:.0f} s: another attempt may hold it open",
                kept=_KEPT,
            ) from error
        self._step(Event.READ)
        return found.get(self._place.partition)

    def markers(self) -> dict[int, Marker]:
        """Read the markers of all sink partitions."""
        found = self.ledger.all(self._who)
        self._step(Event.READ)
        return found

    def begin(self) -> None:
        """Open the transaction."""
        self._began = time.monotonic()
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
        # When the coordinator moves, its connection closes silently, and librdkafka looks for the new one after 500 ms.
        if (ended - sent) * 1000 > _SLOW_COMMIT_MS:
            self._heard.doubt = (
                self._heard.doubt or f"slow commit: its last commit took more than {_SLOW_COMMIT_MS:.0f} ms"
            )
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
            self.check()  # the error of a refused record says more than that of the transaction it broke
            if is_fenced(error):
                raise self._overtaken(doing) from error
            if committing and not error.args[0].txn_requires_abort():
                raise errors.CommitInDoubt(
                    f"{self._who}: {doing}: {error.args[0].str()}",
                    kept="the next attempt takes a new epoch, reads the marker, and then skips or writes",
                ) from error
            raise translate(error, f"{self._who}: {doing}", kept=_KEPT, rights=self._rights) from error

    def _overtaken(self, doing: str) -> errors.CommitInDoubt:
        """Return the error for a transactional id that is no longer this producer's; Kafka has one for two reasons."""
        spent, allowed = time.monotonic() - self._began, self._timeout
        if spent > allowed:
            return errors.CommitInDoubt(
                f"{self._who}: {doing}: it took {spent:.0f} s, and a transaction may take {allowed:.0f} s",
                kept=_KEPT,
                then="lower batch.max_records, or raise sink.options: transaction.timeout.ms",
            )
        return errors.CommitInDoubt(f"{self._who}: {doing}: another attempt has taken the transactional id", kept=_KEPT)

    def close(self) -> None:
        """Abort an open transaction, if the broker answers quickly, and drop the connections."""
        unfinished = self.state in {State.OPEN, State.SEALED}
        if unfinished and fatal(self.producer, lambda: self.producer.abort_transaction(5.0)) is not None:
            self._step(Event.DOUBT)  # the next owner's fence, or the transaction's timeout, aborts it
        if self._handover is not None:
            self._handover.close()
        super().close()
