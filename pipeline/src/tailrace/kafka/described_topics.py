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
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection, cimpl
from confluent_kafka.admin import AdminClient

from tailrace.kafka.handles import handle

_DESCRIBE_TOPICS: Final = 19  # rd_kafka_admin_op_t
_GRACE = 1.0  # librdkafka itself answers at the end of its limit
_TEXT = 512


@dataclass(frozen=True)
class Described:
    """One topic as a broker describes it; `error` is the code of why it could not."""

    name: str
    topic_id: str
    partitions: int
    error: int = 0


class _Library:
    """librdkafka's functions for this request, with their types."""

    def __init__(self) -> None:
        library = ctypes.CDLL(cimpl.__file__)
        pointer, text, number, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t
        counted, texts = ctypes.POINTER(size), ctypes.POINTER(text)

        def bind(name: str, result: Any, *arguments: Any) -> Any:
            function = getattr(library, f"rd_kafka_{name}")
            function.restype, function.argtypes = result, arguments
            return function

        self.queue_new = bind("queue_new", pointer, pointer)
        self.queue_poll = bind("queue_poll", pointer, pointer, number)
        self.queue_destroy = bind("queue_destroy", None, pointer)
        self.options_new = bind("AdminOptions_new", pointer, pointer, number)
        self.options_limit = bind("AdminOptions_set_request_timeout", number, pointer, number, text, size)
        self.options_destroy = bind("AdminOptions_destroy", None, pointer)
        self.collection_new = bind("TopicCollection_of_topic_names", pointer, texts, size)
        self.collection_destroy = bind("TopicCollection_destroy", None, pointer)
        self.describe = bind("DescribeTopics", None, pointer, pointer, pointer, pointer)
        self.event_error = bind("event_error", number, pointer)
        self.event_error_string = bind("event_error_string", text, pointer)
        self.event_result = bind("event_DescribeTopics_result", pointer, pointer)
        self.event_destroy = bind("event_destroy", None, pointer)
        self.topics = bind("DescribeTopics_result_topics", ctypes.POINTER(pointer), pointer, counted)
        self.topic_name = bind("TopicDescription_name", text, pointer)
        self.topic_error = bind("TopicDescription_error", pointer, pointer)
        self.topic_id = bind("TopicDescription_topic_id", pointer, pointer)
        self.topic_partitions = bind("TopicDescription_partitions", pointer, pointer, counted)
        self.error_code = bind("error_code", number, pointer)
        self.uuid_text = bind("Uuid_base64str", text, pointer)


@functools.cache
def _library() -> _Library | None:
    try:
        return _Library()
    except (OSError, AttributeError):  # librdkafka is built into another file, or older than this request
        return None


def described(admin: AdminClient, names: Sequence[str], limit: float) -> Iterator[Described]:
    """Yield each topic's description, in any order."""
    library, instance = _library(), handle(admin)
    if library is None or instance is None:
        yield from _by_confluent_kafka(admin, names, limit)
        return
    with ExitStack() as made:
        queue = library.queue_new(instance)
        made.callback(library.queue_destroy, queue)
        options = library.options_new(instance, _DESCRIBE_TOPICS)
        made.callback(library.options_destroy, options)
        reason = ctypes.create_string_buffer(_TEXT)
        code = library.options_limit(options, int(limit * 1000), reason, _TEXT)
        if code:
            raise KafkaException(KafkaError(code, reason.value.decode(errors="replace")))
        collection = library.collection_new((ctypes.c_char_p * len(names))(*map(str.encode, names)), len(names))
        made.callback(library.collection_destroy, collection)
        library.describe(instance, collection, options, queue)
        event = library.queue_poll(queue, int((limit + _GRACE) * 1000))
        if not event:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no description of topics within {limit:.0f} s"))
        made.callback(library.event_destroy, event)
        code = library.event_error(event)
        if code:
            why = (library.event_error_string(event) or b"").decode(errors="replace")
            raise KafkaException(KafkaError(code, why))
        count = ctypes.c_size_t()
        topics = library.topics(library.event_result(event), ctypes.byref(count))
        yield from [_read(library, topics[place]) for place in range(count.value)]


def _read(library: _Library, topic: int) -> Described:
    name = library.topic_name(topic).decode()
    error = library.topic_error(topic)
    code = library.error_code(error) if error else 0
    if code:
        return Described(name, "", 0, code)
    count = ctypes.c_size_t()
    library.topic_partitions(topic, ctypes.byref(count))
    return Described(name, library.uuid_text(library.topic_id(topic)).decode(), count.value)


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
