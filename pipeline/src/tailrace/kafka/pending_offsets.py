"""A group's stored offsets in one answer, which also says which of them an open transaction is about to change.

confluent-kafka repeats a request for offsets until none of them is in an open transaction. To learn whether a broker
knows of such a transaction, its first answer is needed. So the request goes to librdkafka through the consumer's own
handle; a confluent-kafka whose handle is unknown cannot ask this.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tailrace.kafka.bindings import NUMBER, POINTER, SIZE, TEXT, Requests, text
from tailrace.kafka.clients import LONGEST_REQUEST
from tailrace.kafka.handles import handle

_LIST_OFFSETS_OF_GROUP: Final = 14  # rd_kafka_admin_op_t


@dataclass(frozen=True)
class Stored:
    """A group's offset for one partition, with its note; below 0 if there is none."""

    topic: str
    partition: int
    offset: int
    metadata: str | None
    error: int = 0

    @property
    def pending(self) -> bool:
        """Whether an open transaction is about to change it; the offset is then unknown."""
        return self.error == KafkaError.UNSTABLE_OFFSET_COMMIT


class _Partition(ctypes.Structure):
    """rd_kafka_topic_partition_t."""

    _fields_ = (
        ("topic", ctypes.c_char_p),
        ("partition", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("metadata", ctypes.c_void_p),
        ("metadata_size", ctypes.c_size_t),
        ("opaque", ctypes.c_void_p),
        ("error", ctypes.c_int),
        ("private", ctypes.c_void_p),
    )


class _Partitions(ctypes.Structure):
    """rd_kafka_topic_partition_list_t."""

    _fields_ = (("count", ctypes.c_int), ("size", ctypes.c_int), ("elements", ctypes.POINTER(_Partition)))


class _Library(Requests):
    """librdkafka's functions for this request, with their types."""

    def __init__(self) -> None:
        super().__init__()
        free, held = self.free, self.held
        listed, pointers = ctypes.POINTER(_Partitions), ctypes.POINTER(POINTER)
        self.options_stable = free("AdminOptions_set_require_stable_offsets", POINTER, POINTER, NUMBER)
        self.partitions_new = held("topic_partition_list_new", listed, NUMBER)
        self.partitions_add = held("topic_partition_list_add", POINTER, listed, TEXT, ctypes.c_int32)
        self.partitions_destroy = held("topic_partition_list_destroy", None, listed)
        self.request_new = held("ListConsumerGroupOffsets_new", POINTER, TEXT, listed)
        self.request_destroy = held("ListConsumerGroupOffsets_destroy", None, POINTER)
        self.ask = free("ListConsumerGroupOffsets", None, POINTER, pointers, SIZE, POINTER, POINTER)
        self.event_result = held("event_ListConsumerGroupOffsets_result", POINTER, POINTER)
        self.groups = held("ListConsumerGroupOffsets_result_groups", pointers, POINTER, ctypes.POINTER(SIZE))
        self.group_error = held("group_result_error", POINTER, POINTER)
        self.group_partitions = held("group_result_partitions", listed, POINTER)
        self.error_text = held("error_string", TEXT, POINTER)
        self.error_destroy = held("error_destroy", None, POINTER)


@functools.cache
def _library() -> _Library | None:
    try:
        return _Library()
    except (OSError, AttributeError):  # librdkafka is built into another file, or older than this request
        return None


def available(consumer: Consumer) -> bool:
    """Return whether `stored` can be asked with this confluent-kafka."""
    return _library() is not None and handle(consumer) is not None


def stored(
    consumer: Consumer, group: str, places: Sequence[TopicPartition], limit: float, *, beneath: bool = False
) -> list[Stored]:
    """Return a group's offsets, as one broker tells them in one answer.

    With `beneath`, these are the committed ones also where an open transaction is about to change them.
    """
    library, instance = _library(), handle(consumer)
    if library is None or instance is None:
        raise KafkaException(KafkaError(KafkaError._NOT_IMPLEMENTED, "the consumer's handle is not known"))
    with ExitStack() as made:
        # librdkafka 2.16 frees a request that expires while it looks for the group's coordinator, and aborts the
        # process when that is found. So the request's own limit is long, and only our wait is short.
        options = library.options(instance, _LIST_OFFSETS_OF_GROUP, LONGEST_REQUEST, made)
        if refused := library.options_stable(options, int(not beneath)):
            made.callback(library.error_destroy, refused)
            raise KafkaException(KafkaError(library.error_code(refused), text(library.error_text(refused))))
        partitions = library.partitions_new(len(places))
        made.callback(library.partitions_destroy, partitions)
        for each in places:
            library.partitions_add(partitions, each.topic.encode(), each.partition)
        request = library.request_new(group.encode(), partitions)
        made.callback(library.request_destroy, request)
        asked = (ctypes.c_void_p * 1)(request)
        event = library.answer(
            instance,
            limit,
            lambda queue: library.ask(instance, asked, 1, options, queue),
            f"no offsets of {group}",
            made,
        )
        count = ctypes.c_size_t()
        groups = library.groups(library.event_result(event), ctypes.byref(count))
        return [each for number in range(count.value) for each in _read(library, groups[number])]


def unended(consumer: Consumer, group: str, place: TopicPartition, limit: float) -> bool:
    """Return whether a transaction is about to change a group's offset, as one broker tells."""
    return any(each.pending for each in stored(consumer, group, [place], limit))


def _read(library: _Library, group: int) -> Iterator[Stored]:
    error = library.group_error(group)
    if error and (code := library.error_code(error)):
        raise KafkaException(KafkaError(code, text(library.error_text(error))))
    listed = library.group_partitions(group)
    for number in range(listed.contents.count if listed else 0):
        each = listed.contents.elements[number]
        note = ctypes.string_at(each.metadata, each.metadata_size).decode(errors="replace") if each.metadata else None
        yield Stored(each.topic.decode(), each.partition, each.offset, note, each.error)
