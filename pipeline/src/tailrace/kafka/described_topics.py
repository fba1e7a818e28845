"""Descriptions of topics, asked of librdkafka itself: confluent-kafka's answer leaks an object each time.

confluent-kafka 2.16.1 never frees the `Uuid` in the answer of `describe_topics`. A driver asks once a second and a
gateway once a batch, for months. So the request goes to librdkafka through the admin client's own handle, and the id
comes back as text. With a confluent-kafka whose handle is unknown, its own call is used, leak and all.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from tailrace.kafka.bindings import NUMBER, POINTER, SIZE, TEXT, Requests
from tailrace.kafka.handles import handle

_DESCRIBE_TOPICS: Final = 19  # rd_kafka_admin_op_t
_GRACE = 1.0  # the request itself ends at its limit


@dataclass(frozen=True)
class Described:
    """One topic as a broker describes it; `error` is the code of why it could not."""

    name: str
    topic_id: str
    partitions: int
    error: int = 0
    leaders: tuple[int, ...] = ()  # by partition: the broker that leads it, -1 without one; if librdkafka was asked


class _Library(Requests):
    """librdkafka's functions for this request, with their types."""

    def __init__(self) -> None:
        super().__init__()
        free, held = self.free, self.held
        counted, texts = ctypes.POINTER(SIZE), ctypes.POINTER(TEXT)
        self.collection_new = free("TopicCollection_of_topic_names", POINTER, texts, SIZE)
        self.collection_destroy = free("TopicCollection_destroy", None, POINTER)
        self.describe = free("DescribeTopics", None, POINTER, POINTER, POINTER, POINTER)
        self.event_result = held("event_DescribeTopics_result", POINTER, POINTER)
        self.topics = held("DescribeTopics_result_topics", ctypes.POINTER(POINTER), POINTER, counted)
        self.topic_name = held("TopicDescription_name", TEXT, POINTER)
        self.topic_error = held("TopicDescription_error", POINTER, POINTER)
        self.topic_id = held("TopicDescription_topic_id", POINTER, POINTER)
        self.topic_partitions = held("TopicDescription_partitions", ctypes.POINTER(POINTER), POINTER, counted)
        self.uuid_text = held("Uuid_base64str", TEXT, POINTER)
        self.partition_leader = held("TopicPartitionInfo_leader", POINTER, POINTER)
        self.node_id = held("Node_id", NUMBER, POINTER)


@functools.cache
def _library() -> _Library | None:
    try:
        return _Library()
    except (OSError, AttributeError):  # librdkafka is built into another file, or older than this request
        return None


def described(admin: AdminClient, names: Sequence[str], limit: float) -> list[Described]:
    """Return each topic's description, in any order, as some broker knows it."""
    library, instance = _library(), handle(admin)
    if library is None or instance is None:
        return list(_by_confluent_kafka(admin, names, limit))
    return _asked(library, instance, names, limit)


def described_by(broker: int, instance: int, names: Sequence[str], limit: float) -> list[Described]:
    """Return the same as this broker knows it, and no other; `instance` is one of librdkafka's."""
    library = _library()
    if library is None:
        raise KafkaException(KafkaError(KafkaError._NOT_IMPLEMENTED, "this librdkafka cannot ask one broker"))
    return _asked(library, instance, names, limit, broker)


def _asked(
    library: _Library, instance: int, names: Sequence[str], limit: float, broker: int | None = None
) -> list[Described]:
    with ExitStack() as made:
        options = library.options(instance, _DESCRIBE_TOPICS, limit, made, broker)
        collection = library.collection_new((ctypes.c_char_p * len(names))(*map(str.encode, names)), len(names))
        made.callback(library.collection_destroy, collection)
        event = library.answer(
            instance,
            limit,
            lambda queue: library.describe(instance, collection, options, queue),
            "no description of topics",
            made,
        )
        count = ctypes.c_size_t()
        topics = library.topics(library.event_result(event), ctypes.byref(count))
        return [_read(library, topics[place]) for place in range(count.value)]


def _read(library: _Library, topic: int) -> Described:
    name = library.topic_name(topic).decode()
    error = library.topic_error(topic)
    code = library.error_code(error) if error else 0
    if code:
        return Described(name, "", 0, code)
    count = ctypes.c_size_t()
    partitions = library.topic_partitions(topic, ctypes.byref(count))
    nodes = [library.partition_leader(partitions[place]) for place in range(count.value)]
    leaders = tuple(library.node_id(node) if node else -1 for node in nodes)
    return Described(name, library.uuid_text(library.topic_id(topic)).decode(), count.value, leaders=leaders)


def _by_confluent_kafka(admin: AdminClient, names: Sequence[str], limit: float) -> Iterator[Described]:
    asked = admin.describe_topics(TopicCollection(list(names)), request_timeout=limit)
    for name, future in asked.items():
        try:
            answer = future.result(limit + _GRACE)
        except KafkaException as error:
            code = error.args[0].code()
            if code < 0:  # the request failed, not this topic
                raise
            yield Described(name, "", 0, code)
        else:
            yield Described(name, str(answer.topic_id), len(answer.partitions))
