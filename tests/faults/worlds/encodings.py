"""A world's encodings: raw bytes, JSON and Avro, with and without a registry, each with the head of its record.

Written and read here without Tailrace's own code, so that no mistake is shared.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from faults.checker import Array
from faults.records import HEAD
from faults.worlds.world import Encoding, World

IN_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "In",
    "fields": [{"name": "p", "type": "long"}, {"name": "n", "type": "long"}, {"name": "pad", "type": "string"}],
}
OUT_SCHEMA: dict[str, Any] = {**IN_SCHEMA, "name": "Out", "fields": IN_SCHEMA["fields"][:2]}
_MAGIC = struct.Struct(">bI")  # of the wire format: a zero, and the number of the schema
FIRST_SCHEMA = 1  # the number that the registry gives to the input's
JSONS = frozenset({Encoding.JSON, Encoding.PYDANTIC})
_TOO_LONG = 1000  # the length of a text of which one letter is there


def _long(number: int) -> bytes:
    """Encode a number as Avro does."""
    left, found = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


def _read_long(value: bytes, at: int) -> tuple[int, int]:
    """Decode a number of Avro; return it and the place behind it."""
    found, shift = 0, 0
    while True:
        found |= (value[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if value[at - 1] < 0x80:
            return (found >> 1) ^ -(found & 1), at


def encoded(world: World, partition: int, number: int, pad: str | None) -> bytes:
    """Encode a record, without the registry's prefix."""
    if world.encoding is Encoding.RAW:
        return np.array([(0, partition, number)], dtype=HEAD).tobytes() + (pad or "").encode()
    if world.encoding in JSONS:
        return b'{"p":%d,"n":%d%s}' % (partition, number, b"" if pad is None else b',"pad":"%s"' % pad.encode())
    return _long(partition) + _long(number) + (b"" if pad is None else _long(len(pad)) + pad.encode())


def broken(world: World, partition: int, number: int) -> bytes:
    """Make a value that cannot be decoded, and still tells which record it is."""
    if world.encoding is Encoding.RAW or world.encoding in JSONS:
        return np.array([(1, partition, number)], dtype=HEAD).tobytes()
    return _long(partition) + _long(number) + _long(_TOO_LONG) + b"x"


def framed(world: World, value: bytes) -> bytes:
    """Return a value with the registry's prefix, if this world has a registry."""
    return _MAGIC.pack(0, FIRST_SCHEMA) + value if world.encoding is Encoding.REGISTRY else value


def body(world: World, value: bytes) -> bytes:
    """Return a value without the registry's prefix."""
    return value[_MAGIC.size :] if world.encoding is Encoding.REGISTRY else value


def heads_of(world: World, found: Sequence[bytes]) -> Array:
    """Return the heads of values as this world encodes them."""
    heads = np.zeros(len(found), dtype=HEAD)
    for place, framed in enumerate(found):
        value = body(world, framed)
        if value.startswith(b"{"):
            row = json.loads(value)
            heads[place] = (0, row["p"], row["n"])
        elif world.encoding is Encoding.RAW or world.encoding in JSONS:
            heads[place] = np.frombuffer(value[: HEAD.itemsize], dtype=HEAD)[0]
        else:
            partition, at = _read_long(value, 0)
            number, at = _read_long(value, at)
            bad = at < len(value) and _read_long(value, at)[0] == _TOO_LONG
            heads[place] = (bad, partition, number)
    return heads
