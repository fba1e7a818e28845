"""A producer that takes records and notices the ones that fail: the base of both kinds, and the at-least-once one."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tailrace import errors
from tailrace.config import TRANSACTION_TIMEOUT_MS, redact
from tailrace.gateway.statistics import Listener
from tailrace.kafka.clients import fatal
from tailrace.kafka.errors import INVALID, PURGED, UNKNOWN_TOPIC, invalid, is_fenced, translate
from tailrace.kafka.handles import handle
from tailrace.kafka.leaders import most_partitions
from tailrace.kafka.rights import Operation, on_topic

log = logging.getLogger(__name__)

_FLUSH_LIMIT = 60.0
_LOOKS, _LOOK_EVERY, _LOOK_LIMIT = 4, 0.5, 5.0  # for a topic or a partition that a row names
_SETTLED = 10.0  # seconds for which one look suffices, after several
_LOG_INFO = 6  # librdkafka's number: from this level on it logs that a connection was closed with a request in flight
# The states of a connection that has not carried a request yet; its errors cannot hide one of a later state.
_NEVER_THERE = re.compile(r"in state (TRY_CONNECT|CONNECT)\b")
KEPT = "nothing of this attempt is visible to a read_committed reader; the task is tried again"

_QUEUE_SIZE = "queue.buffering.max.kbytes"
TRANSACTIONAL = {
    "partitioner": "murmur2_random",  # Java's: the same key goes to the same partition as from any other producer
    "linger.ms": 5,
    "retry.backoff.ms": 5,
    "compression.type": "lz4",
    "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
    _QUEUE_SIZE: 131_072,
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
        if error is None or error.code() in PURGED:
            return
        if self.failed is None or self.failed.code() == KafkaError._INVALID_DIFFERENT_RECORD:  # not why itself
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


def never_fits(size: int, options: Mapping[str, Any]) -> bool:
    """Return whether a producer's queue refuses a value of this size even if it is empty.

    librdkafka counts the values alone, and applies this limit after that of `message.max.bytes`.
    """
    return size > int(options[_QUEUE_SIZE]) * 1024


class Sender:
    """The base of both kinds of producers: takes records, and notices the ones that fail."""

    def __init__(self, options: Mapping[str, Any], name: str, listener: Listener | None = None) -> None:
        self.name = name
        self._heard = _Heard(options.get("logger"))
        self._listener = listener
        self._queue = {_QUEUE_SIZE: options.get(_QUEUE_SIZE, TRANSACTIONAL[_QUEUE_SIZE])}
        self._there: set[str] = set()  # topics that rows named, and that exist
        self._counts: dict[str, int] = {}  # of their partitions
        self._times: dict[str, tuple[int, int]] = {}  # the earliest and latest timestamp that rows had, by topic
        self._settled: dict[str, float] = {}  # when more than one look has confirmed a topic's count
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
        if (at := record.get("timestamp")) is not None:
            first, last = self._times.get(record["topic"], (at, at))
            self._times[record["topic"]] = min(first, at), max(last, at)
        while True:
            try:
                self.producer.produce(**record)
                return
            except BufferError:
                self._require_room(len(record.get("value") or b""), record["topic"])
                self._serve(lambda: self.producer.poll(0.1))
                self.check()
            except KafkaException as error:
                size = len(record.get("value") or b"") + len(record.get("key") or b"")
                raise self._refused(error, f"a record of {size} bytes for", record["topic"]) from error

    def _require_room(self, size: int, topic: str) -> None:
        """Raise RecordTooLarge for a value that the queue has refused and will always refuse."""
        if never_fits(size, self._queue):
            raise errors.RecordTooLarge(
                f"a record of {size} bytes for topic {topic!r} is larger than the producer's queue "
                f"({_QUEUE_SIZE}={self._queue[_QUEUE_SIZE]})",
                kept=KEPT,
                then=f"set sink.options: {_QUEUE_SIZE} to {-(-size // 1024)} or more, or emit smaller records",
            )

    def require(self, topic: str, usual: str | None) -> None:
        """Refuse a topic that does not exist: librdkafka would look for it for half a minute, and then not name it.

        `usual` is the sink's own topic, which was there at the start.
        """
        if topic == usual or topic in self._there:
            return
        for _ in range(_LOOKS):
            try:
                found = self.producer.list_topics(topic, _LOOK_LIMIT).topics.get(topic)
            except KafkaException:
                return  # whatever it is, writing shows it
            if found is None or found.error is None or found.error.code() not in UNKNOWN_TOPIC:
                self._there.add(topic)
                return
            time.sleep(_LOOK_EVERY)  # a topic that was just created
        raise errors.TopicUnknown(
            f"{self.name}: a row's column `topic` names {topic!r}, which does not exist",
            kept="the batch's open transactions were aborted; the batch is read again at the next start",
            then="create the topic; or name those that rows may go to in sink.topics: a row with another is rejected",
        )

    def lacking(self, topic: str, partition: int, *, again: bool) -> int | None:
        """Return how many partitions a topic has if this one is not among them; None if it is.

        With `again` the brokers are asked: the partition may have been added a moment ago.
        """
        known = self._counts.get(topic)
        if known is not None and (partition < known or not again):
            return None if partition < known else known
        for look in range(_LOOKS):
            if look:
                time.sleep(_LOOK_EVERY)
            try:
                found = self.producer.list_topics(topic, _LOOK_LIMIT).topics.get(topic)
            except KafkaException:
                return None  # whatever it is, writing shows it
            if found is None or found.error is not None:
                return None
            # A broker that lags behind may show fewer than there are.
            self._counts[topic] = known = max(self._counts.get(topic, 0), len(found.partitions))
            if partition < known:
                return None
            if time.monotonic() < self._settled.get(topic, 0.0) + _SETTLED:
                break
        else:
            self._counts[topic] = known = max(known or 0, self._most(topic))
            self._settled[topic] = time.monotonic()
        return None if partition < known else known

    def _most(self, topic: str) -> int:
        """Return the most partitions that a broker knows: the looks may all have been at one that is cut off."""
        instance = handle(self.producer)
        if instance is None:  # this confluent-kafka cannot ask one broker
            return 0
        try:
            brokers = self.producer.list_topics(topic, _LOOK_LIMIT).brokers
            most = most_partitions(instance, brokers, topic, _LOOK_LIMIT)
        except KafkaException as error:
            raise translate(error, f"asking for the partitions of {topic!r}", kept=KEPT) from error
        if most is None:
            raise errors.KafkaFailed(
                f"half of the {len(brokers)} brokers or more do not tell how many partitions {topic!r} has, and a row "
                "names one that the others do not know",
                kept=KEPT,
                then="nothing, if the next try passes; otherwise look for brokers that are away",
            )
        return most

    def _refused(self, error: KafkaException, what: str, topic: str) -> errors.TailraceError:
        """Return the error for records that librdkafka did not take."""
        self.poll()  # a fatal error, or that of a record, is told only there
        return translate(error, f"{what} topic {topic!r}", kept=KEPT, rights=[on_topic(Operation.WRITE, topic)])

    def _serve(self, call: Callable[[], object]) -> None:
        """Run a call that runs librdkafka's callbacks, and keep a fatal error, which ends the producer."""
        error = fatal(self.producer, call)
        if error is not None and not self._heard.fatal:
            self._heard.fatal, self._heard.fenced = f"fatal: {error.args[0].str()}", is_fenced(error)

    def listen(self) -> None:
        """Run librdkafka's callbacks."""
        self._serve(lambda: self.producer.poll(0))

    def flush(self, limit: float = _FLUSH_LIMIT) -> int:
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
            if self._heard.failed.code() in INVALID:
                now = int(time.time() * 1000)
                raise invalid(self._heard.failed, topic, self._times.get(topic), now, kept=KEPT)
            lacking = [on_topic(Operation.WRITE, topic)]
            raise translate(self._heard.failed, f"writing to topic {topic!r}", kept=KEPT, rights=lacking)
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
