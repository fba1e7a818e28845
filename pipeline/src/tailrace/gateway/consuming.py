"""The consumer side of librdkafka's C ABI: fetched messages as an array of addresses, without a Python object each.

The consumer is librdkafka's own (rd_kafka_new), not confluent-kafka's: that one joins a group, merges all partitions
into one queue, and keeps its handle at an offset that changes between versions. This one is the simple consumer: it
has no group, commits nothing, and keeps a queue per partition, so threads read partitions independently and the
prefetch bound holds for each. The library is the one that confluent-kafka links, found through its extension module.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from confluent_kafka import KafkaError, KafkaException

from tailrace import errors
from tailrace.config.kafka_options import SECRET_OPTION
from tailrace.kafka.bindings import NUMBER, POINTER, SIZE, TEXT, Bindings
from tailrace.kafka.clients import address, freed

ADDRESS: Final = np.dtype(np.int64)
_PREFETCH_KB = 65_536  # over all partitions that the pipeline reads
_LEAST_PREFETCH_KB = 1_024  # per partition: one fetch of the default size
_PREFETCH_RECORDS = 400_000  # over all partitions: librdkafka adds about 300 bytes to each record
_LEAST_PREFETCH_RECORDS = 5_000
_CONSUMER, _CONF_OK = 1, 0
_EVENT_LOG, _EVENT_ERROR, _EVENT_STATISTICS = 0x4, 0x8, 0x40
_TEXT = 512

# The Java consumer's names in `source.options`, and librdkafka's; None: no counterpart.
_JAVA_NAMES: Final[Mapping[str, str | None]] = {
    "default.api.timeout.ms": None,
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
    "max.poll.records": None,
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
}
_DEFAULTS: Final[Mapping[str, Any]] = {
    "check.crcs": True,  # as in Java's consumer
    # A fetch that waits at the broker delays, by as much, a partition that starts or seeks meanwhile.
    "fetch.wait.max.ms": 20,
    "fetch.error.backoff.ms": 20,
    "fetch.queue.backoff.ms": 10,  # by default a full queue is refilled after a second
    "receive.message.max.bytes": 1_000_000_000,  # the topic's own limit decides how large a record may be
}
_OURS: Final[Mapping[str, Any]] = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "log.queue": True,
}


def consumer_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the Java consumer's options to librdkafka's; drop those that have no counterpart."""
    named = {_JAVA_NAMES.get(name, name): value for name, value in options.items()}
    if str(named.get("socket.receive.buffer.bytes")) == "-1":
        named["socket.receive.buffer.bytes"] = 0  # the system's default, which Java calls -1
    return {name: value for name, value in named.items() if name is not None}


def settings(options: Mapping[str, Any], isolation: str, share: int) -> dict[str, Any]:
    """Complete the configuration of a consumer whose pipeline has this number of queues, one per lane and partition."""
    bounds = {
        "queued.max.messages.kbytes": max(_PREFETCH_KB // max(share, 1), _LEAST_PREFETCH_KB),
        "queued.min.messages": max(min(_PREFETCH_RECORDS // max(share, 1), 1_000_000), _LEAST_PREFETCH_RECORDS),
    }
    return {**_DEFAULTS, **bounds, **consumer_options(options), **_OURS, "isolation.level": isolation}


@dataclass(frozen=True)
class Event:
    """A log line of librdkafka, its statistics as JSON, or an error of the entire client."""

    text: str
    error: KafkaError | None = None
    statistics: bool = False


class _Topic(ctypes.Structure):
    """rd_kafka_metadata_topic."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("partition_count", ctypes.c_int),
        ("partitions", ctypes.c_void_p),
        ("error", ctypes.c_int),
    )


class _Broker(ctypes.Structure):
    """rd_kafka_metadata_broker."""

    _fields_ = (("id", ctypes.c_int32), ("host", ctypes.c_char_p), ("port", ctypes.c_int))


class _Metadata(ctypes.Structure):
    """The first fields of rd_kafka_metadata."""

    _fields_ = (
        ("broker_count", ctypes.c_int),
        ("brokers", ctypes.POINTER(_Broker)),
        ("topic_count", ctypes.c_int),
        ("topics", ctypes.POINTER(_Topic)),
    )


class Library(Bindings):
    """librdkafka's functions, with their types."""

    def __init__(self) -> None:
        super().__init__()
        free, held, pointer, text, number, size = self.free, self.held, POINTER, TEXT, NUMBER, SIZE
        partition, offset = ctypes.c_int32, ctypes.c_int64
        self.version = held("version", number)
        self.conf_new = held("conf_new", pointer)
        self.conf_destroy = held("conf_destroy", None, pointer)
        self.conf_set = held("conf_set", number, pointer, text, text, text, size)
        self.conf_set_events = held("conf_set_events", None, pointer, number)
        self.new = free("new", pointer, number, pointer, text, size)
        self.destroy = free("destroy", None, pointer)
        self.set_log_queue = free("set_log_queue", number, pointer, pointer)
        self.queue_get_main = free("queue_get_main", pointer, pointer)
        self.queue_get_partition = held("queue_get_partition", pointer, pointer, text, partition)
        self.queue_length = held("queue_length", size, pointer)
        self.event_type = held("event_type", number, pointer)
        self.event_stats = held("event_stats", text, pointer)
        self.event_log = held("event_log", number, pointer, pointer, pointer, pointer)
        self.topic_new = free("topic_new", pointer, pointer, text, pointer)
        self.topic_destroy = free("topic_destroy", None, pointer)
        self.consume_start = free("consume_start", number, pointer, partition, offset)
        self.consume_stop = free("consume_stop", number, pointer, partition)
        self.consume_batch = free("consume_batch", ctypes.c_ssize_t, pointer, partition, number, pointer, size)
        self.last_error = held("last_error", number)
        watermarks = pointer, text, partition, pointer, pointer, number
        self.query_watermark_offsets = free("query_watermark_offsets", number, *watermarks)
        self.metadata = free("metadata", number, pointer, number, pointer, pointer, number)
        self.metadata_destroy = held("metadata_destroy", None, pointer)
        self.message_destroy = held("message_destroy", None, pointer)
        self.message_errstr = held("message_errstr", text, pointer)
        self.message_timestamp = held("message_timestamp", offset, pointer, pointer)
        self.message_headers = held("message_headers", number, pointer, pointer)
        self.header_get_all = held("header_get_all", number, pointer, size, pointer, pointer, pointer)


@functools.cache
def library() -> Library:
    """Return librdkafka, as confluent-kafka loaded it."""
    try:
        return Library()
    except (OSError, AttributeError) as error:
        raise errors.InvariantBroken(
            f"librdkafka's functions cannot be reached through confluent-kafka: {error}"
        ) from error


def release(pointers: np.ndarray) -> None:
    """Give messages back to librdkafka; their addresses are invalid from here on."""
    collections.deque(map(library().message_destroy, pointers.tolist()), maxlen=0)


def message(pointer: int) -> str:
    """Return the text of a message that is an error."""
    return (library().message_errstr(pointer) or b"").decode(errors="replace")


class Consumer:
    """One instance of librdkafka's simple consumer; each partition is used by one thread at a time."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._library = library()
        self._handle = self._create(options)
        self._library.set_log_queue(self._handle, None)
        self._events = self._library.queue_get_main(self._handle)
        self._topics: dict[str, int] = {}
        self._lock = threading.Lock()

    def _create(self, options: Mapping[str, Any]) -> int:
        conf, reason = self._library.conf_new(), ctypes.create_string_buffer(_TEXT)
        for name, value in options.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if self._library.conf_set(conf, name.encode(), text.encode(), reason, _TEXT) != _CONF_OK:
                self._library.conf_destroy(conf)
                why = "" if SECRET_OPTION.search(name) else f": {reason.value.decode(errors='replace')}"
                raise errors.OptionRefused(
                    f"librdkafka does not take the option {name!r}{why}",
                    kept="nothing was read or written",
                    then="correct kafka.options or source.options",
                )
        self._library.conf_set_events(conf, _EVENT_LOG | _EVENT_ERROR | _EVENT_STATISTICS)
        handle = self._library.new(_CONSUMER, conf, reason, _TEXT)
        if not handle:
            self._library.conf_destroy(conf)
            raise errors.KafkaFailed(
                f"librdkafka cannot create a consumer: {reason.value.decode(errors='replace')}",
                kept="nothing was read or written",
                then="tailrace doctor FILE",
            )
        return int(handle)

    @property
    def handle(self) -> int:
        """The instance, for requests that are not a consumer's; it is valid until the consumer is closed."""
        return self._handle

    def start(self, topic: str, partition: int, offset: int) -> None:
        """Start fetching a partition at this offset."""
        if self._library.consume_start(self._topic(topic), partition, offset):
            raise KafkaException(KafkaError(self._library.last_error()))

    def stop(self, topic: str, partition: int) -> None:
        """Stop fetching a partition and free the messages in its queue."""
        self._library.consume_stop(self._topic(topic), partition)  # fails only for a partition that no longer exists

    def receive(self, topic: str, partition: int, most: int, wait: float) -> np.ndarray:
        """Return the addresses of up to `most` messages; wait for the first one only."""
        found = np.empty(most, dtype=ADDRESS)
        handle, address = self._topic(topic), found.ctypes.data
        count = self._library.consume_batch(handle, partition, 0, address, most)
        if count == 0 and wait:
            # Asked to wait for more than one, librdkafka would wait for all of them.
            count = self._library.consume_batch(handle, partition, int(wait * 1000), address, 1)
            if count == 1 and most > 1:
                count += max(0, self._library.consume_batch(handle, partition, 0, address + ADDRESS.itemsize, most - 1))
        if count < 0:
            raise KafkaException(KafkaError(self._library.last_error()))
        return found[:count]

    def queued(self, topic: str, partition: int) -> int:
        """Return how many messages of a partition were fetched and not received, its end counted as one."""
        queue = self._library.queue_get_partition(self._handle, topic.encode(), partition)
        if not queue:
            return 0
        try:
            return int(self._library.queue_length(queue))
        finally:
            self._library.queue_destroy(queue)

    def watermarks(self, topic: str, partition: int, limit: float) -> tuple[int, int]:
        """Ask the leader for the log start, and for the end at this consumer's isolation level."""
        low, high = self._watermarks(topic, partition, limit)
        # Of two answers that come together, librdkafka 2.16 forgets the error of the first, and takes the end for the
        # start too. A leader that has just been elected gives such answers, but not twice.
        if low == high and self._watermarks(topic, partition, limit) != (low, high):
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return low, high

    def _watermarks(self, topic: str, partition: int, limit: float) -> tuple[int, int]:
        low, high = ctypes.c_int64(), ctypes.c_int64()
        code = self._library.query_watermark_offsets(
            self._handle, topic.encode(), partition, ctypes.byref(low), ctypes.byref(high), int(limit * 1000)
        )
        if code:
            raise KafkaException(KafkaError(code))
        return low.value, high.value

    def topic_error(self, topic: str, limit: float) -> KafkaError | None:
        """Ask a broker what is wrong with a topic; None if nothing is."""
        try:
            with self._metadata(self._topic(topic), limit) as listed:
                code = listed.topics[0].error if listed.topic_count else KafkaError.UNKNOWN_TOPIC_OR_PART
        except KafkaException as error:
            return error.args[0]  # type: ignore[no-any-return]
        return KafkaError(code) if code else None

    def brokers(self, limit: float) -> dict[int, str]:
        """Ask a broker for the addresses of all, by their ids."""
        with self._metadata(None, limit) as listed:
            found = [listed.brokers[place] for place in range(listed.broker_count)]
            return {each.id: address(each.host.decode(), each.port) for each in found}

    @contextlib.contextmanager
    def _metadata(self, topic: int | None, limit: float) -> Iterator[_Metadata]:
        found = ctypes.POINTER(_Metadata)()
        code = self._library.metadata(self._handle, 0, topic, ctypes.byref(found), int(limit * 1000))
        if code:
            raise KafkaException(KafkaError(code))
        try:
            yield found.contents
        finally:
            self._library.metadata_destroy(found)

    def events(self) -> Iterator[Event]:
        """Yield what librdkafka has reported since the last call."""
        while event := self._library.queue_poll(self._events, 0):
            try:
                kind = self._library.event_type(event)
                if kind == _EVENT_ERROR:
                    text = (self._library.event_error_string(event) or b"").decode(errors="replace")
                    yield Event(text, KafkaError(self._library.event_error(event), text))
                elif kind == _EVENT_LOG:
                    yield Event(self._log_line(event))
                elif kind == _EVENT_STATISTICS:
                    yield Event((self._library.event_stats(event) or b"").decode(errors="replace"), statistics=True)
            finally:
                self._library.event_destroy(event)

    def _log_line(self, event: int) -> str:
        facility, text, level = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_int()
        self._library.event_log(event, ctypes.byref(facility), ctypes.byref(text), ctypes.byref(level))
        return f"{(facility.value or b'').decode()}: {(text.value or b'').decode(errors='replace')}"

    def close(self) -> None:
        """Stop all threads of this instance; every message must have been released."""
        for handle in self._topics.values():
            self._library.topic_destroy(handle)
        self._topics.clear()
        self._library.queue_destroy(self._events)
        freed("a consumer", lambda: self._library.destroy(self._handle))

    def _topic(self, name: str) -> int:
        with self._lock:
            if name not in self._topics:
                handle = self._library.topic_new(self._handle, name.encode(), None)
                if not handle:
                    raise KafkaException(KafkaError(self._library.last_error()))
                self._topics[name] = int(handle)
            return self._topics[name]
