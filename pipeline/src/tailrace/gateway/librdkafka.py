"""The producer side of librdkafka's C ABI: an Arrow batch in one call, without a Python object for each record.

confluent-kafka's `produce` costs about three times as much per record as Kafka does (docs/decisions/0010). So the
addresses and lengths of an Arrow column go to `rd_kafka_produce_batch` as they are; it copies the data and releases the
GIL meanwhile. The handle is confluent-kafka's own; with a version that `tailrace.kafka.handles` does not
know, records are produced one by one.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from importlib.metadata import version
from pathlib import Path
from typing import Any

import confluent_kafka
import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from tailrace.kafka import handles

log = logging.getLogger(__name__)

MESSAGE = np.dtype(
    {
        "names": ["error", "topic", "partition", "value", "value_size", "key", "key_size", "offset", "private"],
        "formats": ["<i4", "<u8", "<i4", "<u8", "<u8", "<u8", "<u8", "<i8", "<u8"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56, 64],
        "itemsize": 72,
    }
)
_COPY = 0x2
_ANY_PARTITION = -1
_QUEUE_FULL: int = KafkaError._QUEUE_FULL
_EMPTY = ctypes.create_string_buffer(1)  # where an empty value points: a null pointer would be a tombstone


@functools.cache
def _library() -> ctypes.CDLL | None:
    if not handles.known():
        log.warning("confluent-kafka %s is unknown here: records are produced one by one", version("confluent-kafka"))
        return None
    package = Path(confluent_kafka.__file__).parent
    found = [*package.parent.glob("confluent_kafka.libs/librdkafka*.so*"), *package.glob(".dylibs/librdkafka*.dylib")]
    if len(found) != 1:
        log.warning("librdkafka is not where confluent-kafka keeps it: records are produced one by one")
        return None
    library = ctypes.CDLL(str(found[0]))
    library.rd_kafka_topic_new.restype = ctypes.c_void_p
    library.rd_kafka_topic_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    library.rd_kafka_topic_destroy.restype = None
    library.rd_kafka_topic_destroy.argtypes = [ctypes.c_void_p]
    library.rd_kafka_produce_batch.restype = ctypes.c_int
    library.rd_kafka_produce_batch.argtypes = [
        ctypes.c_void_p, ctypes.c_int32, ctypes.c_int, ctypes.c_void_p, ctypes.c_int,
    ]  # fmt: skip
    return library


def available() -> bool:
    """Return whether batches can be handed over in one call."""
    return _library() is not None


class Handover:
    """Hands Arrow columns to one producer; the topic handles live until `close`."""

    def __init__(self, producer: Producer) -> None:
        self._library = _library()
        self._producer = producer  # the handle below is this object's own
        self._handle = handles.handle(producer)
        self._topics: dict[str, int] = {}

    def close(self) -> None:
        """Destroy the topic handles; the producer must still exist."""
        topics, self._topics = self._topics, {}
        for handle in topics.values():
            if self._library is not None:
                self._library.rd_kafka_topic_destroy(handle)

    def offer(self, topic: str, messages: np.ndarray) -> int:
        """Hand over as many messages as the queue takes, in their order, and return their number.

        Raise for the first one that the producer refuses for another reason.
        """
        if self._library is None:
            raise RuntimeError("librdkafka's batches are not available")
        messages["topic"] = 0
        taken: int = self._library.rd_kafka_produce_batch(
            self._topic(topic), _ANY_PARTITION, _COPY, messages.ctypes.data, len(messages)
        )
        if taken < len(messages):
            refused = messages["error"][np.flatnonzero(messages["error"])]
            other = refused[refused != _QUEUE_FULL]
            if len(other):
                raise KafkaException(KafkaError(int(other[0])))
        return taken

    def _topic(self, name: str) -> int:
        handle = self._topics.get(name)
        if handle is None and self._library is not None:
            handle = self._library.rd_kafka_topic_new(self._handle, name.encode(), None)
            if not handle:
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG, f"no handle for topic {name!r}"))
            self._topics[name] = handle
        return handle or 0


def messages(key: Any, value: Any) -> np.ndarray:
    """Return the messages of two Arrow columns: pointers into their buffers, so the columns must outlive the array.

    The partitioner chooses their partitions: a batch that names one registers partition -1 with its transaction
    if the topic is not known yet (librdkafka 2.16.0).
    """
    made = np.zeros(len(value), dtype=MESSAGE)
    made["value"], made["value_size"] = _spans(value)
    made["key"], made["key_size"] = _spans(key)
    return made


def _spans(column: Any) -> tuple[np.ndarray | int, np.ndarray | int]:
    """Return the address and the length of each value of a binary column; both are 0 for a null."""
    if column.null_count == len(column):
        return 0, 0
    large = pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64 if large else np.int32)[
        column.offset : column.offset + len(column) + 1
    ]
    sizes = np.diff(bounds).astype(np.uint64)
    base = data.address if data is not None and data.address else ctypes.addressof(_EMPTY)
    starts = (bounds[:-1].astype(np.uint64)) + np.uint64(base)
    if column.null_count:
        null = column.is_null().to_numpy(zero_copy_only=False)
        starts[null], sizes[null] = 0, 0
    return starts, sizes
