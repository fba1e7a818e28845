"""Records with headers whose names contain NUL, which confluent-kafka cuts there and other clients write."""

from __future__ import annotations

import ctypes

from confluent_kafka import Producer

from tailrace.kafka import handles
from tailrace.kafka.bindings import Bindings

_TOPIC, _PARTITION, _VALUE, _FLAGS, _HEADERS = 1, 3, 4, 7, 10  # of rd_kafka_vtype_t
_COPY = 2


class _Argument(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("content", ctypes.c_uint64 * 8))


def produce_named(bootstrap: str, topic: str, value: bytes, headers: tuple[tuple[bytes, bytes | None], ...]) -> None:
    """Write a record with these headers to the topic's partition 0."""
    producer, library, pointer = Producer({"bootstrap.servers": bootstrap}), Bindings(), ctypes.c_void_p
    producer.list_topics(topic, 10)
    made = library.held("headers_new", pointer, ctypes.c_size_t)(len(headers))
    text, size = ctypes.c_char_p, ctypes.c_ssize_t
    add = library.held("header_add", ctypes.c_int, pointer, text, size, text, size)
    for name, content in headers:
        assert add(made, name, len(name), content, -1 if content is None else len(content)) == 0
    kept = ctypes.create_string_buffer(topic.encode()), ctypes.create_string_buffer(value)
    places = [ctypes.addressof(each) for each in kept]
    given = {
        _TOPIC: (places[0],),
        _PARTITION: (0,),
        _VALUE: (places[1], len(value)),
        _FLAGS: (_COPY,),
        _HEADERS: (made,),
    }
    arguments = (_Argument * len(given))(
        *(_Argument(kind, (ctypes.c_uint64 * 8)(*words)) for kind, words in given.items())
    )
    send = library.free("produceva", pointer, pointer, pointer, ctypes.c_size_t)
    assert send(handles.handle(producer), arguments, len(given)) is None
    assert producer.flush(30) == 0
