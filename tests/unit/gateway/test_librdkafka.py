"""What librdkafka gets of an Arrow batch: addresses and lengths, read back here as librdkafka reads them."""

from __future__ import annotations

import ctypes
from typing import Any

import pyarrow as pa
import pytest

from tailrace.gateway.librdkafka import MESSAGE, available, messages


class _Message(ctypes.Structure):
    """rd_kafka_message_t, as librdkafka's header declares it."""

    _fields_ = (
        ("error", ctypes.c_int),
        ("topic", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("value", ctypes.c_void_p),
        ("value_size", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_size", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("private", ctypes.c_void_p),
    )


def read(keys: Any, values: Any) -> list[tuple[bytes | None, bytes | None]]:
    """Return the records that librdkafka would see."""
    made = messages(keys, values)
    array = (_Message * len(made)).from_address(made.ctypes.data)
    return [
        (
            None if each.key is None else ctypes.string_at(each.key, each.key_size),
            None if each.value is None else ctypes.string_at(each.value, each.value_size),
        )
        for each in array
    ]


def test_the_layout_is_that_of_librdkafkas_message() -> None:
    """It matches field by field, as a C compiler lays it out on this machine."""
    assert MESSAGE.itemsize == ctypes.sizeof(_Message)
    assert MESSAGE.fields is not None
    for name, _ in _Message._fields_:
        assert MESSAGE.fields[name][1] == getattr(_Message, name).offset


def test_the_locked_version_is_supported() -> None:
    """Otherwise every record would be sent one by one, and only the benchmark would notice."""
    assert available()


VALUES = [b"one", None, b"", b"\x00\xff", b"x" * 1000]
KEYS = [None, b"k", b"", b"key", None]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_values_and_keys_are_pointed_at(kind: Any) -> None:
    """A null is a null pointer; an empty value is not."""
    assert read(pa.array(KEYS, kind), pa.array(VALUES, kind)) == list(zip(KEYS, VALUES, strict=True))


def test_a_slice_begins_at_its_own_first_row() -> None:
    """The buffers of a batch cut from a larger one begin before it."""
    keys, values = pa.array(KEYS, pa.binary())[2:], pa.array(VALUES, pa.binary())[2:]
    assert read(keys, values) == list(zip(KEYS[2:], VALUES[2:], strict=True))


def test_columns_without_any_value_point_nowhere() -> None:
    """This holds for columns that are all null, all empty, or without rows."""
    nothing, empty = pa.nulls(2, pa.binary()), pa.array([b"", b""], pa.binary())
    assert read(nothing, empty) == [(None, b""), (None, b"")]
    assert read(nothing[:0], empty[:0]) == []
