"""One sink partition's transactional producer, and the at-least-once producer that tasks share.

librdkafka's producer retries a lost EndTxn without end and cannot tell its outcome from another's
(KAFKA-17754), so whatever is not certain ends the producer: a fresh one takes a new epoch, and the marker tells.
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
from tailrace.kafka.clients import add_offsets, persist
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
_MARKER_LIMIT = 20.0  # longer than brokers need until another takes the place of one that was killed
_SLOW_COMMIT_MS = 400.0  # below librdkafka's wait for another coordinator, which is 500 ms
_GLANCE = 2.0
_QUEUE_WAIT = 0.05
_FLUSH_STEP = 0.5
_LOG_INFO = 6  # librdkafka's number: from there on it tells that a connection was closed with a request under way
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
    """What a producer's callbacks have said; it knows nothing of the producer, which can so be freed at once."""

    def __init__(self, other: logging.Logger | None = None) -> None:
        self._other = other  # somebody else who wants to hear the log
        self.failed: KafkaError | None = None
        self.topic = ""
        self.doubt = ""
        self.fatal = ""

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """A delivery report: only failures are reported."""
        if error is not None and self.failed is None and error.code() not in PURGED:
            self.failed, self.topic = error, message.topic() or ""

    def error(self, error: KafkaError) -> None:
        """An error of the whole client; those of single connections are in the log too, where more of them are."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN and not _NEVER_THERE.search(error.str()):
            self.doubt = self.doubt or f"connection: {error.name()}: {error.str()}"

    def log(self, level: int, form: str, *told: str) -> None:
        """A line of librdkafka's log: the one place where it says that requests may have been sent twice."""
        (self._other or log).log(level if self._other else logging.DEBUG, form, *told)
        if level > logging.DEBUG and told and resent(told[0], told[-1]):
            self.doubt = self.doubt or "connection: a request was not answered, and may have been sent twice"


def resent(kind: str, text: str) -> bool:
    """Whether a line of librdkafka's log says that requests may have been sent twice (docs/decisions/0015)."""
    return kind == "REQTMOUT" or (kind == "FAIL" and not _NEVER_THERE.search(text))


class Sender:
    """What both kinds of producers have in common: taking rows, and noticing the ones that fail."""

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
                self.producer.poll(0.1)
                self.check()
            except KafkaException as error:
                size = len(record.get("value") or b"") + len(record.get("key") or b"")
                raise translate(error, f"a record of {size} bytes for topic {record['topic']!r}", kept=_KEPT) from error

    def listen(self) -> None:
        """Let librdkafka tell what has happened; a fatal error is one that ends the producer."""
        try:
            self.producer.poll(0)
        except KafkaException as error:
            self._heard.fatal = self._heard.fatal or f"fatal: {error.args[0].str()}"

    def poll(self) -> None:
        """Let librdkafka report failures; the first one ends the task."""
        self.listen()
        self.check()

    def check(self) -> None:
        """Raise what a delivery report has said."""
        if self._heard.failed is not None:
            topic = self._heard.topic
            lacking = [on_topic(Operation.WRITE, topic)]
            raise translate(self._heard.failed, f"writing to topic {topic!r}", kept=_KEPT, rights=lacking)

    @property
    def doubt(self) -> str:
        """Why this producer should not be used again; empty where nothing speaks against it."""
        self.listen()
        if self._heard.failed is not None:
            return f"not delivered: a record was not ({self._heard.failed.name()})"
        return self._heard.fatal

    @property
    def queued(self) -> int:
        """Records and reports that wait."""
        return len(self.producer)

    def close(self) -> None:
        """Let go of what is still queued, and of the connections."""
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
        self.last: BatchId | None = None  # the batch that this producer has written, without doubt
        self.run = task.run
        self._began = time.monotonic()
        self._timeout = int(task.options.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)) / 1000
        self._who = str(task)
        self._place = TopicPartition(task.ledger, task.partition)
        marking = on_groups(task.pipeline), on_topic(Operation.READ, task.ledger)
        self._rights = (on_transactions(task.pipeline), *marking)
        self.ledger = ledger  # may be another one for each task
        self._handover = Handover(self.producer) if available() else None

    def offer(self, topic: str, messages: Any) -> None:
        """Hand over a batch of messages (`librdkafka.messages`), in their order; wait while the queue is full."""
        if self._handover is None:
            raise errors.InvariantBroken(f"{self._who}: whole batches cannot be handed over here")
        while len(messages):
            try:
                taken = self._handover.offer(topic, messages)
            except KafkaException as error:
                self.check()
                raise translate(error, f"{self._who}: writing to topic {topic!r}", kept=_KEPT) from error
            messages = messages[taken:]
            if len(messages):
                self.producer.poll(_QUEUE_WAIT)
                self.check()

    @property
    def whole_batches(self) -> bool:
        """Whether `offer` can be used."""
        return self._handover is not None

    def _step(self, event: Event) -> None:
        self.state = after(self.state, event)

    def flush(self) -> None:
        """Wait until the broker has what was sent so far."""
        self.producer.flush(_COMMIT_LIMIT)

    def fence(self) -> None:
        """Take the transactional id: older owners are fenced, what they left open is aborted."""
        doing = f"{self._who}: taking its transactional id"
        persist(lambda: self.producer.init_transactions(_INIT_LIMIT), doing, 120, self._rights)
        self._step(Event.FENCE)

    def marker(self) -> Marker | None:
        """What the ledger says was written last; only who has just fenced the others waits for their transactions."""
        fenced = self.state is State.FENCED
        try:
            found = self.ledger.markers([self._place.partition], self._who, LIMIT if fenced else _GLANCE)
        except errors.KafkaError as error:
            if fenced:
                raise
            self._step(Event.DOUBT)
            raise errors.CommitInDoubt(
                f"{self._who}: its marker was not told within {_GLANCE:.0f} s: another attempt may hold it open",
                kept=_KEPT,
            ) from error
        self._step(Event.READ)
        return found.get(self._place.partition)

    def markers(self) -> dict[int, Marker]:
        """The markers of all sink partitions."""
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
        if self._heard.fatal:
            self._step(Event.DOUBT)
            raise errors.CommitInDoubt(f"{self._who}: a doubt before its marker: {self._heard.fatal}", kept=_KEPT)
        place = TopicPartition(self._place.topic, self._place.partition, marker.next, marker.metadata)
        group = self.ledger.group
        producer = self.producer
        adding = functools.partial(add_offsets, producer, [place], group, _MARKER_LIMIT, "the brokers")
        self._attempt("adding its marker", adding)
        self._step(Event.SEAL)

    def commit(self, batch: BatchId) -> float:
        """Commit, and believe it only without any doubt; how many milliseconds it took."""
        started = time.perf_counter()
        self._attempt("sending its records", self._send_rest)
        self._step(Event.COMMIT)
        sent = time.perf_counter()
        with self._ear.listening(self.producer, batch, self._place.partition):
            self._attempt("committing its transaction", lambda: self.producer.commit_transaction(_COMMIT_LIMIT))
        crash_points.at(Point.COMMIT_ACKNOWLEDGED, batch, self._place.partition)
        self.poll()  # what went wrong on the way is only told here
        self._step(Event.COMMITTED)
        self.last = batch
        ended = time.perf_counter()
        # Where the coordinator moves, its connection ends without a word, and the next is looked for after 500 ms.
        if (ended - sent) * 1000 > _SLOW_COMMIT_MS:
            self._heard.doubt = (
                self._heard.doubt or f"slow commit: its last commit took more than {_SLOW_COMMIT_MS:.0f} ms"
            )
        return (ended - started) * 1000

    def _send_rest(self) -> None:
        """Wait for the records, while they go; why one does not go is for the commit to say."""
        left, before = len(self.producer), 0
        while left and left != before:
            before, left = left, self.producer.flush(_FLUSH_STEP)

    @property
    def doubt(self) -> str:
        """Why the next transaction may not take the same epoch."""
        return unfit(self.state, super().doubt or self._heard.doubt)

    def _attempt(self, doing: str, act: Callable[[], T]) -> T:
        try:
            return act()
        except KafkaException as error:
            committing = self.state is State.COMMITTING
            self._step(Event.DOUBT)
            self.check()  # a record that was refused says more than the transaction that it broke
            if is_fenced(error):
                spent, allowed = time.monotonic() - self._began, self._timeout
                raise errors.CommitInDoubt(
                    f"{self._who}: {doing}: it took {spent:.0f} s, and a transaction may take {allowed:.0f} s"
                    if spent > allowed
                    else f"{self._who}: {doing}: another attempt has taken the transactional id",
                    kept=_KEPT,
                    then="lower batch.max_records, or raise sink.options: transaction.timeout.ms"
                    if spent > allowed
                    else "",
                ) from error
            if committing and not error.args[0].txn_requires_abort():
                raise errors.CommitInDoubt(
                    f"{self._who}: {doing}: {error.args[0].str()}",
                    kept="the next attempt takes a new epoch, reads the marker, and then skips or writes",
                ) from error
            raise translate(error, f"{self._who}: {doing}", kept=_KEPT, rights=self._rights) from error

    def close(self) -> None:
        """Abort what is open, if the broker answers quickly, and let go of the connections."""
        if self.state in {State.OPEN, State.SEALED}:
            try:
                self.producer.abort_transaction(5.0)
            except KafkaException:
                self._step(Event.DOUBT)  # the next owner's fence, or the transaction's timeout, aborts it
        if self._handover is not None:
            self._handover.close()
        super().close()
