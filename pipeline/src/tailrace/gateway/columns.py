"""Fetched messages as Arrow columns: fields gathered by numpy, values copied by Arrow, no Python object a record.

A view of this process's memory as one array of words makes a gather of the addresses of messages: the public fields of
all rd_kafka_message_t come in one call. Keys and values are described to Arrow as one binary array over foreign memory,
of value and gap in turn, and `take` copies the values in C++. The gaps are never read.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException

from tailrace.gateway.consuming import library
from tailrace.gateway.shape import HEADERS, RECORDS

log = logging.getLogger(__name__)

_WORD = 8
_FIRST = 4096  # below lies nothing, and numpy takes no view of address 0
_SPACE = 1 << 56  # larger than any address of a process
# The words of rd_kafka_message_t, librdkafka's public layout on every 64-bit machine.
_ERROR, _VALUE, _VALUE_SIZE, _KEY, _KEY_SIZE, _OFFSET = 0, 3, 4, 5, 6, 7
_PUBLIC: Final = np.array([_ERROR, _VALUE, _VALUE_SIZE, _KEY, _KEY_SIZE, _OFFSET])
# Behind it, in versions that were looked at, librdkafka keeps the timestamp's type and the flags in one word, then the
# timestamp, the parsed headers, and the size of those that are not parsed yet.
_PRIVATE: Final = np.array([11, 12, 13, 15])
_PRIVATE_VERSIONS = frozenset({0x021000FF})
_NO_HEADERS: int = KafkaError._NOENT


class _Memory:
    """This process's memory, as numpy takes it; only what is indexed is ever read."""

    __array_interface__: Final[Mapping[str, Any]] = {
        "version": 3,
        "typestr": "<i8",
        "shape": ((_SPACE - _FIRST) // _WORD,),
        "data": (_FIRST, True),
    }


_MEMORY: Final = np.asarray(_Memory())


def _gather(pointers: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Read these words of each message: one row a field."""
    found: np.ndarray = _MEMORY[((pointers - _FIRST) >> 3) + words[:, None]]
    return found


@dataclass(frozen=True)
class Messages:
    """Messages that librdkafka has handed over, with their fields; released by whoever holds them."""

    pointers: np.ndarray
    fields: np.ndarray  # one row for each of _PUBLIC

    @classmethod
    def of(cls, pointers: np.ndarray) -> Messages:
        """Read the fields of messages."""
        return cls(pointers, _gather(pointers, _PUBLIC))

    @classmethod
    def joined(cls, parts: Sequence[Messages]) -> Messages:
        """Put several together, in their order."""
        if len(parts) == 1:
            return parts[0]
        return cls(np.concatenate([each.pointers for each in parts]), np.hstack([each.fields for each in parts]))

    def __len__(self) -> int:
        return len(self.pointers)

    def __getitem__(self, chosen: slice | np.ndarray) -> Messages:
        return Messages(self.pointers[chosen], self.fields[:, chosen])

    @property
    def errors(self) -> np.ndarray:
        """librdkafka's error code of each; 0 for a record."""
        codes: np.ndarray = self.fields[0].astype(np.int32)  # the upper half of the word is padding
        return codes

    @property
    def offsets(self) -> np.ndarray:
        """The offset of each."""
        offsets: np.ndarray = self.fields[5]
        return offsets

    @property
    def sizes(self) -> np.ndarray:
        """The bytes of key and value of each."""
        sizes: np.ndarray = self.fields[2] + self.fields[4]
        return sizes

    def value(self) -> Any:
        """The values."""
        return _copied(self.fields[1], self.fields[2])

    def key(self) -> Any:
        """The keys."""
        return _copied(self.fields[3], self.fields[4])


def batch(messages: Messages, topic: str, partition: int, columns: Sequence[str]) -> Any:
    """Copy records into an Arrow batch with these columns of RECORDS, in this order."""
    count = len(messages)
    details = functools.cache(lambda: _Details.of(messages.pointers))
    make: dict[str, Callable[[], Any]] = {
        "key": messages.key,
        "value": messages.value,
        "topic": lambda: pa.repeat(pa.scalar(topic, pa.string()), count),
        "partition": lambda: pa.array(np.full(count, partition, np.int32)),
        "offset": lambda: pa.array(messages.offsets),
        "timestamp": lambda: pa.array(details().times * 1000).view(RECORDS.field("timestamp").type),
        "timestampType": lambda: pa.array(details().kinds - 1, pa.int32()),  # Java's numbers begin one lower
        "headers": lambda: _headers(messages.pointers, details().headed),
    }
    return pa.RecordBatch.from_arrays(
        [make[name]() for name in columns], schema=pa.schema([RECORDS.field(name) for name in columns])
    )


def _copied(addresses: np.ndarray, sizes: np.ndarray) -> Any:
    """Copy byte strings from these addresses into a binary array; address 0 is null."""
    count, null = len(addresses), addresses == 0
    nulls = np.count_nonzero(null)
    if nulls == count:
        return pa.nulls(count, pa.binary())
    if nulls:
        sizes = np.where(null, 0, sizes)
        addresses = np.where(null, addresses.max(), addresses)
    low, total = int(addresses.min()), int(sizes.sum())
    bounds = np.empty(2 * count + 1, np.int64)
    bounds[:-1:2] = addresses - low
    bounds[1::2] = bounds[:-1:2] + sizes
    # `take` reserves room by the mean size of all 2n values, which it gets from the ends: make that half the sum.
    bounds[-1] = bounds[0] + 2 * total
    reach = int(bounds.max()) + 1
    spans = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), 2 * count, [None, pa.py_buffer(bounds), pa.foreign_buffer(low, reach)]
    )
    chosen = pa.array(np.arange(0, 2 * count, 2), mask=null if nulls else None)
    return pc.take(spans, chosen, boundscheck=False).cast(pa.binary())


@dataclass(frozen=True)
class _Details:
    """What lies behind the public fields: timestamps in milliseconds, their types, and which messages have headers."""

    times: np.ndarray
    kinds: np.ndarray
    headed: np.ndarray

    @classmethod
    def of(cls, pointers: np.ndarray) -> _Details:
        """Gather them where librdkafka's layout is known, else ask for each."""
        if not len(pointers):
            return cls(*(np.empty(0, np.int64) for _ in range(3)))
        if library().version() in _PRIVATE_VERSIONS:
            gathered = cls._gathered(pointers)
            ends = [0, -1]
            if gathered.fits(ends, cls._asked(pointers[ends])):
                return gathered
            _warn()
        return cls._asked(pointers)

    def fits(self, places: list[int], asked: _Details) -> bool:
        """Whether librdkafka's own functions give the same for these messages."""
        ours = (self.times[places], self.kinds[places], self.headed[places])
        return all(map(np.array_equal, ours, (asked.times, asked.kinds, asked.headed)))

    @classmethod
    def _gathered(cls, pointers: np.ndarray) -> _Details:
        flags, times, parsed, unparsed = _gather(pointers, _PRIVATE)
        # A record without headers has one byte for them, which counts 0.
        return cls(times, (flags >> 32).astype(np.int32), (parsed != 0) | (unparsed.astype(np.int32) > 1))

    @classmethod
    def _asked(cls, pointers: np.ndarray) -> _Details:
        kinds = np.empty(len(pointers), np.int32)
        places = range(kinds.ctypes.data, kinds.ctypes.data + kinds.nbytes, kinds.itemsize)
        listed = pointers.tolist()
        times = np.fromiter(map(library().message_timestamp, listed, places), np.int64, len(listed))
        headed = np.fromiter((_parsed(each) is not None for each in listed), bool, len(listed))
        return cls(times, kinds, headed)


@functools.cache
def _warn() -> None:
    log.warning("librdkafka keeps timestamps and headers elsewhere than expected: asking for those of each record")


def _parsed(pointer: int) -> int | None:
    """Let librdkafka parse the headers of a message; None if it has none."""
    found = ctypes.c_void_p()
    code = library().message_headers(pointer, ctypes.byref(found))
    if code == _NO_HEADERS:
        return None
    if code:
        raise KafkaException(KafkaError(code, "the headers of a record cannot be read"))
    return found.value


def _headers(pointers: np.ndarray, headed: np.ndarray) -> Any:
    """The headers of each message; null where it has none."""
    count = len(pointers)
    if not headed.any():
        return pa.nulls(count, HEADERS)
    found: list[list[dict[str, Any]] | None] = [None] * count
    for place in np.flatnonzero(headed).tolist():
        headers = _parsed(int(pointers[place]))
        found[place] = _header_list(headers) if headers is not None else None
    return pa.array(found, HEADERS)


def _header_list(headers: int) -> list[dict[str, Any]]:
    name, value, size = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_size_t()
    arguments = ctypes.byref(name), ctypes.byref(value), ctypes.byref(size)
    listed: list[dict[str, Any]] = []
    while library().header_get_all(headers, len(listed), *arguments) == 0:
        listed.append(
            {
                "key": (name.value or b"").decode(errors="replace"),
                "value": ctypes.string_at(value.value, size.value) if value.value else None,
            }
        )
    return listed
