"""The headers of fetched messages, parsed by numpy for a batch at once, or by librdkafka for one message.

librdkafka keeps headers in wire format until they are asked for, and asking costs several calls per header. A record's
headers are a count, and for each the size of the key, the key, the size of the value (-1: null) and the value; numbers
are zigzag varints.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from tailrace.gateway.consuming import library
from tailrace.gateway.memory import copied, octets, validity
from tailrace.gateway.schemas import HEADERS

_NONE: int = KafkaError._NOENT
_LONGEST = 5  # bytes of a varint of 32 bits
_NAME_SIZE = -16  # where librdkafka keeps the size of a header's name, from the name


def parsed(headed: np.ndarray, addresses: np.ndarray, sizes: np.ndarray) -> Any | None:
    """Parse the headers of these messages; None unless all are well-formed UTF-8 within their bounds."""
    cursor = np.where(headed, addresses, 0)[headed]
    end = cursor + sizes[headed]
    if not cursor.all() or (sizes[headed] < 1).any():
        return None  # librdkafka has parsed some already
    count, cursor = _varint(cursor, end)
    if (count < 0).any() or (count > end - cursor).any():
        return None
    bounds = np.concatenate([[0], np.cumsum(count)])
    fields = np.zeros((4, int(bounds[-1])), np.int64)  # addresses and sizes of keys, and those of values
    for number in range(int(count.max(initial=0))):
        active = np.flatnonzero(count > number)
        for row in (0, 2):
            size, start = _varint(cursor[active], end[active])
            least = 0 if row == 0 else -1
            if (size < least).any() or (size > end[active] - start).any():
                return None
            places = bounds[active] + number
            fields[row, places] = np.where(size < 0, 0, start)
            fields[row + 1, places] = np.maximum(size, 0)
            cursor[active] = start + np.maximum(size, 0)
    offsets = np.zeros(len(headed) + 1, np.int32)
    offsets[1:][headed] = count
    try:
        keys = copied(fields[0], fields[1]).cast(pa.string())
    except pa.ArrowInvalid:  # a key that is not UTF-8
        return None
    pairs = pa.StructArray.from_arrays([keys, copied(fields[2], fields[3])], fields=list(HEADERS.value_type))
    places = pa.py_buffer(np.cumsum(offsets, dtype=np.int32))
    return pa.ListArray.from_buffers(HEADERS, len(headed), [validity(headed), places], children=[pairs])


def _varint(cursor: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Read a number at each address, never beyond the end; return the numbers and the addresses after them."""
    value, more = np.zeros(len(cursor), np.int64), np.ones(len(cursor), bool)
    for number in range(_LONGEST):
        found = octets(np.minimum(cursor, end - 1))
        value |= np.where(more, (found & 0x7F) << (7 * number), 0)
        cursor = cursor + more
        more &= found >= 0x80
        if not more.any():
            break
    return (value >> 1) ^ -(value & 1), cursor


def listed(pointer: int, *, known: bool) -> list[dict[str, Any]] | None:
    """Let librdkafka parse the headers of one message; None if it has none.

    It returns names as texts that end at a NUL; with a `known` layout, they are read whole.
    """
    headers = ctypes.c_void_p()
    code = library().message_headers(pointer, ctypes.byref(headers))
    if code == _NONE:
        return None
    if code:
        raise KafkaException(KafkaError(code, "the headers of a record cannot be read"))
    name, value, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
    arguments = ctypes.byref(name), ctypes.byref(value), ctypes.byref(size)
    found: list[dict[str, Any]] = []
    while library().header_get_all(headers, len(found), *arguments) == 0:
        place = name.value or 0
        length = ctypes.c_size_t.from_address(place + _NAME_SIZE).value if known else -1
        text = ctypes.string_at(place, length).decode(errors="replace")
        found.append({"key": text, "value": ctypes.string_at(value.value, size.value) if value.value else None})
    return found
