"""Fetched messages as Arrow columns, without a Python object for each record.

The public fields of all rd_kafka_message_t are gathered in one call. Timestamps and headers follow them, at private
offsets. Those are used only for librdkafka versions that were inspected, and are compared with librdkafka's own answer
for the first and the last message of each batch. With any other version librdkafka is asked for each message.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tailrace.gateway.consuming import library
from tailrace.gateway.headers import listed, parsed
from tailrace.gateway.memory import copied, moments, numbers, repeated, words
from tailrace.gateway.schemas import HEADERS, RECORDS

log = logging.getLogger(__name__)

# The words of rd_kafka_message_t, librdkafka's public layout on every 64-bit machine.
_ERROR, _VALUE, _VALUE_SIZE, _KEY, _KEY_SIZE, _OFFSET = 0, 3, 4, 5, 6, 7
_PUBLIC: Final = np.array([_ERROR, _VALUE, _VALUE_SIZE, _KEY, _KEY_SIZE, _OFFSET])
# After it, in versions that were inspected, come the timestamp's type and the flags in one word, then the timestamp,
# the parsed headers, and the size and the address of headers that are not parsed yet.
_PRIVATE: Final = np.array([11, 12, 13, 15, 16])
_HEADERS_SIZE: Final = _PRIVATE[3:4]
_PRIVATE_VERSIONS = frozenset({0x021000FF})
_SMALL = 2_000  # records of a joined batch, at most
_SMALL_BYTES = 1 << 20


@dataclass(frozen=True)
class Messages:
    """Messages that librdkafka handed over, with their fields; the holder must release them."""

    pointers: np.ndarray
    fields: np.ndarray  # one row for each of _PUBLIC

    @classmethod
    def of(cls, pointers: np.ndarray) -> Messages:
        """Read the fields of these messages."""
        return cls(pointers, words(pointers, _PUBLIC))

    def __len__(self) -> int:
        return len(self.pointers)

    def __getitem__(self, chosen: slice | np.ndarray) -> Messages:
        return Messages(self.pointers[chosen], self.fields[:, chosen])

    @property
    def errors(self) -> np.ndarray:
        """librdkafka's error code of each message; 0 for a record."""
        codes: np.ndarray = self.fields[0].astype(np.int32)  # the upper half of the word is padding
        return codes

    @property
    def offsets(self) -> np.ndarray:
        """The offset of each message."""
        offsets: np.ndarray = self.fields[5]
        return offsets

    @property
    def sizes(self) -> np.ndarray:
        """The bytes of key and value of each message."""
        sizes: np.ndarray = self.fields[2] + self.fields[4]
        return sizes

    @property
    def weights(self) -> np.ndarray:
        """The bytes of key, value and headers of each message; without the headers if their place is unknown.

        librdkafka is not asked for them: it would parse those headers, and leave no bytes to `_Details`.
        """
        if library().version() not in _PRIVATE_VERSIONS:
            return self.sizes
        (headers,) = words(self.pointers, _HEADERS_SIZE)
        weights: np.ndarray = self.sizes + np.maximum(headers.astype(np.int32), 0)
        return weights

    def value(self) -> Any:
        """Copy the values."""
        return copied(self.fields[1], self.fields[2])

    def key(self) -> Any:
        """Copy the keys."""
        return copied(self.fields[3], self.fields[4])


def batch(messages: Messages, topic: str, partition: int, columns: Sequence[str]) -> Any:
    """Copy records into an Arrow batch with these columns of RECORDS, in this order."""
    count = len(messages)
    details = functools.cache(lambda: _Details.of(messages.pointers))
    make: dict[str, Callable[[], Any]] = {
        "key": messages.key,
        "value": messages.value,
        "topic": lambda: repeated(topic, count),
        "partition": lambda: numbers(np.full(count, partition, np.int32), pa.int32()),
        "offset": lambda: numbers(messages.offsets, pa.int64()),
        "timestamp": lambda: moments(details().times),
        "timestampType": lambda: numbers(details().kinds - np.int32(1), pa.int32()),  # Java's start one lower
        "headers": lambda: details().headers(messages.pointers),
    }
    return pa.RecordBatch.from_arrays(
        [make[name]() for name in columns], schema=pa.schema([RECORDS.field(name) for name in columns])
    )


def joined(batches: Iterable[Any], most: int) -> Iterator[Any]:
    """Yield the same records in the same order, those of small batches in larger ones of at most so many.

    A batch costs the stages as much as several hundred records, and a part may read a few from each of many partitions.
    """
    held: list[Any] = []
    rows, size, most = 0, 0, min(most, _SMALL)
    for each in batches:
        count, weight = each.num_rows, each.nbytes
        if held and (rows + count > most or size + weight > _SMALL_BYTES):
            yield _one(held)
            held, rows, size = [], 0, 0
        if count > most or weight > _SMALL_BYTES:
            yield each  # at once: it has no need of others
            continue
        held.append(each)
        rows, size = rows + count, size + weight
        if rows == most:  # what comes next may take its time
            yield _one(held)
            held, rows, size = [], 0, 0
    if held:
        yield _one(held)


def _one(batches: list[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    [found] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return found


@dataclass(frozen=True)
class _Details:
    """The private fields: timestamps in milliseconds, their types, and headers."""

    times: np.ndarray
    kinds: np.ndarray
    headed: np.ndarray  # which messages have headers
    unparsed: tuple[np.ndarray, np.ndarray] | None = None  # addresses and sizes of their bytes, if known

    @classmethod
    def of(cls, pointers: np.ndarray) -> _Details:
        """Gather them if librdkafka's layout is known; otherwise ask for each."""
        if library().version() in _PRIVATE_VERSIONS:
            gathered, ends = cls._gathered(pointers), [0, -1]
            if gathered.fits(ends, cls._asked(pointers[ends])):
                return gathered
            _warn()
        return cls._asked(pointers)

    def fits(self, places: list[int], asked: _Details) -> bool:
        """Return whether librdkafka's own functions give the same for these messages."""
        ours = (self.times[places], self.kinds[places], self.headed[places])
        return all(map(np.array_equal, ours, (asked.times, asked.kinds, asked.headed)))

    def headers(self, pointers: np.ndarray) -> Any:
        """Return the headers of each message; null if it has none."""
        if not self.headed.any():
            return pa.nulls(len(pointers), HEADERS)
        found = parsed(self.headed, *self.unparsed) if self.unparsed is not None else None
        if found is not None:
            first, last = np.flatnonzero(self.headed)[[0, -1]].tolist()
            if all(found[place].as_py() == listed(int(pointers[place]), known=True) for place in (first, last)):
                return found
            _warn()
        known, pairs = library().version() in _PRIVATE_VERSIONS, zip(pointers.tolist(), self.headed, strict=True)
        texts = [listed(pointer, known=known) if headed else None for pointer, headed in pairs]
        return pa.array(texts, HEADERS)

    @classmethod
    def _gathered(cls, pointers: np.ndarray) -> _Details:
        flags, times, known, size, place = words(pointers, _PRIVATE)
        sizes = size.astype(np.int32).astype(np.int64)  # the upper half of the word is padding
        # A record without headers has one byte for them: a count of 0.
        return cls(times, (flags >> 32).astype(np.int32), (known != 0) | (sizes > 1), (place, sizes))

    @classmethod
    def _asked(cls, pointers: np.ndarray) -> _Details:
        kinds = np.empty(len(pointers), np.int32)
        places = range(kinds.ctypes.data, kinds.ctypes.data + kinds.nbytes, kinds.itemsize)
        each = pointers.tolist()
        times = np.fromiter(map(library().message_timestamp, each, places), np.int64, len(each))
        headed = (listed(pointer, known=False) is not None for pointer in each)
        return cls(times, kinds, np.fromiter(headed, bool, len(each)))


@functools.cache
def _warn() -> None:
    log.warning("librdkafka keeps timestamps or headers elsewhere than expected: asking for those of each record")
