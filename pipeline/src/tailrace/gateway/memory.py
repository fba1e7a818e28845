"""Raw memory access with numpy and Arrow: gather fields and copy byte strings from addresses in this process.

Keys and values are described to Arrow as one binary array over foreign memory, with values and gaps alternating, and
`take` copies the values in C++. The gaps are never read. Numbers go to Arrow as buffers, because `pa.array` and
`pa.scalar` would import pandas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_FIRST: Final = 4096  # nothing is mapped below it, and numpy makes no view of address 0
_SPACE: Final = 1 << 56  # larger than any address of a process
_WORD: Final = 8
_NO_TIME: Final = -1
_MOST: Final = np.iinfo(np.int64).max // 1000
_MOMENT: Final = pa.timestamp("us", "UTC")


class _View:
    """The entire address space; only indexed elements are ever read."""

    def __init__(self, kind: str, width: int) -> None:
        self.__array_interface__: Mapping[str, Any] = {
            "version": 3,
            "typestr": kind,
            "shape": ((_SPACE - _FIRST) // width,),
            "data": (_FIRST, True),
        }


_WORDS: Final = np.asarray(_View("<i8", _WORD))
_BYTES: Final = np.asarray(_View("|u1", 1))


def words(pointers: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Gather these words of the structures at these addresses: one row per place."""
    found: np.ndarray = _WORDS[((pointers - _FIRST) >> 3) + places[:, None]]
    return found


def octets(addresses: np.ndarray) -> np.ndarray:
    """Gather the bytes at these addresses."""
    found: np.ndarray = _BYTES[addresses - _FIRST].astype(np.int64)
    return found


def numbers(values: np.ndarray, kind: Any) -> Any:
    """Return an Arrow array of this type over the numbers."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def moments(milliseconds: np.ndarray) -> Any:
    """Return points in time in microseconds; null for -1, Kafka's sign for none, and beyond what 64 bits hold."""
    held = (milliseconds != _NO_TIME) & (milliseconds >= -_MOST) & (milliseconds <= _MOST)
    if held.all():
        return numbers(milliseconds * 1000, _MOMENT)
    values = pa.py_buffer(np.where(held, milliseconds, 0) * 1000)
    return pa.Array.from_buffers(_MOMENT, len(milliseconds), [validity(held), values])


def repeated(text: str, count: int) -> Any:
    """Return a string array that repeats one text."""
    data = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(data * count)])


def validity(valid: np.ndarray) -> Any:
    """Return the validity bitmap of an Arrow array in which these are not null."""
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def copied(addresses: np.ndarray, sizes: np.ndarray) -> Any:
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
    # `take` reserves room by the mean size of all 2n values, computed from the ends: make that half the sum.
    bounds[-1] = bounds[0] + 2 * total
    reach = int(bounds.max()) + 1
    spans = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), 2 * count, [None, pa.py_buffer(bounds), pa.foreign_buffer(low, reach)]
    )
    indices = pa.py_buffer(np.arange(0, 2 * count, 2))
    chosen = pa.Array.from_buffers(pa.int64(), count, [validity(~null) if nulls else None, indices])
    return pc.take(spans, chosen, boundscheck=False).cast(pa.binary())
