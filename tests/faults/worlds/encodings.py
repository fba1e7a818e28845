"""A world's encodings: raw bytes, JSON and Avro, with and without a registry, each with the head of its record.

Written and read here without Tailrace's own code, so that no mistake is shared.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from faults.checker import Array, heads
from faults.records import HEAD
from faults.worlds.world import Encoding, Work, World

IN_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "In",
    "fields": [{"name": "p", "type": "long"}, {"name": "n", "type": "long"}, {"name": "pad", "type": "string"}],
}
OUT_SCHEMA: dict[str, Any] = {**IN_SCHEMA, "name": "Out", "fields": IN_SCHEMA["fields"][:2]}
_HEAD = struct.Struct(">BHQ")  # as HEAD has it; a record at a time, numpy takes longer
_MAGIC = struct.Struct(">bI")  # of the wire format: a zero, and the number of the schema
FIRST_SCHEMA = 1  # the number that the registry gives to the input's
JSONS = frozenset({Encoding.JSON, Encoding.PYDANTIC})
_WIDE = 32  # bytes of a value that contain three numbers
_TOO_LONG = 1000  # the length of a text of which one letter is there
# Fields that no reader may accept, and none may fail over: with more digits or exponents than a library expects.
_HOSTILE = {
    Encoding.JSON: (b'"d":1e-99999999', b'"d":1e-41', b'"d":"1e-99999999"', b'"x":1e9999999', b'"d":99999999999.5'),
    Encoding.PYDANTIC: (b'"d":"1E-99999999"', b'"d":"1E-57"', b'"d":"1E99999999"'),
}


def _long(number: int) -> bytes:
    """Encode a number as Avro does."""
    left, found = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


def _read_longs(rows: Array, at: Array) -> tuple[Array, Array]:
    """Decode a number of Avro in each row of bytes, from a place of its own; return them and the places behind them."""
    found, left, shift = np.zeros(len(rows), dtype=np.uint64), np.arange(len(rows)), 0
    at = at.copy()
    while len(left):
        bytes_ = rows[left, at[left]]
        found[left] |= (bytes_ & 0x7F).astype(np.uint64) << np.uint64(shift)
        at[left] += 1
        left, shift = left[bytes_ > 0x7F], shift + 7
    return (found >> np.uint64(1)).astype(np.int64) ^ -(found & np.uint64(1)).astype(np.int64), at


def encoded(world: World, partition: int, number: int, pad: str | None) -> bytes:
    """Encode a record, without the registry's prefix."""
    if world.encoding is Encoding.RAW:
        return _HEAD.pack(0, partition, number) + (pad or "").encode()
    if world.encoding in JSONS:
        return b'{"p":%d,"n":%d%s}' % (partition, number, b"" if pad is None else b',"pad":"%s"' % pad.encode())
    return _long(partition) + _long(number) + (b"" if pad is None else _long(len(pad)) + pad.encode())


def broken(world: World, partition: int, number: int) -> bytes:
    """Make a value that cannot be decoded, and still tells which record it is."""
    fields = _HOSTILE[world.encoding] if hostile(world) else ()
    kind = number // max(1, world.bad_every) % (len(fields) + 1)
    if kind < len(fields):
        return b'{"p":%d,"n":%d,%s}' % (partition, number, fields[kind])
    if world.encoding is Encoding.RAW or world.encoding in JSONS:
        return _HEAD.pack(1, partition, number)
    return _long(partition) + _long(number) + _long(_TOO_LONG) + b"x"


def hostile(world: World) -> bool:
    """Tell whether the input's schema has fields of which some records have a hostile value."""
    return world.encoding in JSONS and world.work not in (Work.NONE, Work.DISTINCT)


def framed(world: World, value: bytes) -> bytes:
    """Return a value with the registry's prefix, if this world has a registry."""
    return _MAGIC.pack(0, FIRST_SCHEMA) + value if world.encoding is Encoding.REGISTRY else value


def body(world: World, value: bytes) -> bytes:
    """Return a value without the registry's prefix."""
    return value[_MAGIC.size :] if world.encoding is Encoding.REGISTRY else value


def heads_of(world: World, found: Sequence[bytes]) -> Array:
    """Return the heads of values as this world encodes them."""
    values = [body(world, framed) for framed in found]
    if world.encoding is Encoding.RAW:
        return heads(values)
    if world.encoding in JSONS:
        return _heads_of_json(values)
    return _heads_of_avro(values)


def _heads_of_json(values: Sequence[bytes]) -> Array:
    """Return the heads of JSON, or of the raw bytes that no JSON begins with."""
    good = np.fromiter((each.startswith(b"{") for each in values), dtype=bool, count=len(values))
    made = np.zeros(len(values), dtype=HEAD)
    # One text is parsed several times as fast as its parts.
    rows = json.loads(b"[" + b",".join(each for each in values if each.startswith(b"{")) + b"]")
    made["partition"][good] = [row["p"] for row in rows]
    made["number"][good] = [row["n"] for row in rows]
    made["bad"][good] = ["d" in row or "x" in row for row in rows]
    made[~good] = heads([each for each in values if not each.startswith(b"{")])
    return made


def _heads_of_avro(values: Sequence[bytes]) -> Array:
    """Return the heads of Avro."""
    made = np.zeros(len(values), dtype=HEAD)
    rows = np.frombuffer(b"".join(each[:_WIDE].ljust(_WIDE, b"\0") for each in values), dtype=np.uint8)
    rows = rows.reshape(-1, _WIDE)
    made["partition"], at = _read_longs(rows, np.zeros(len(rows), dtype=np.int64))
    made["number"], at = _read_longs(rows, at)
    # Behind a value without a text there are zeros.
    made["bad"] = _read_longs(rows, at)[0] == _TOO_LONG
    return made
