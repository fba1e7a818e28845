"""As much of Kafka's protocol as the proxy understands: where a message ends, who sent a request, and its kind."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from enum import IntEnum

_CHUNK = 1 << 16


class Api(IntEnum):
    """The requests of a transaction, by Kafka's number."""

    PRODUCE = 0
    LIST_OFFSETS = 2
    METADATA = 3
    FIND_COORDINATOR = 10
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS = 24
    ADD_OFFSETS = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


# The first version whose header and strings are of the compact kind.
_COMPACT_SINCE = {
    Api.PRODUCE: 9,
    Api.INIT_PRODUCER_ID: 2,
    Api.ADD_PARTITIONS: 3,
    Api.ADD_OFFSETS: 3,
    Api.END_TXN: 3,
    Api.TXN_OFFSET_COMMIT: 3,
}
_COMPACT_METADATA = 9
_COMPACT_OFFSETS = 6
_NOT_LEADER = 6


@dataclass(frozen=True)
class Request:
    """What the proxy knows of a request."""

    api: int
    version: int
    correlation: int
    client: str
    transaction: str | None  # the transactional id, where the request has one
    broker: int


def frame(end: socket.socket) -> bytes:
    """Read one complete message with its length; raise EOFError if the connection ends."""
    head = _exactly(end, 4)
    (length,) = struct.unpack(">i", head)
    return head + _exactly(end, length)


def _exactly(end: socket.socket, count: int) -> bytes:
    parts: list[bytes] = []
    while count:
        part = end.recv(min(count, _CHUNK))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def parsed(frame: bytes, broker: int = 0) -> Request:
    """Parse what a request says of itself."""
    api, version, correlation, length = struct.unpack_from(">hhih", frame, 4)
    at = 14 + max(0, length)
    client = frame[14:at].decode()
    transaction = None
    since = _COMPACT_SINCE.get(Api(api)) if api in Api.__members__.values() else None
    if since is not None and (api != Api.PRODUCE or version >= 3):
        if version >= since:
            at += 1  # the header's own tagged fields: clients send none
            size, at = _varint(frame, at)
            size -= 1
        else:
            (size,) = struct.unpack_from(">h", frame, at)
            at += 2
        transaction = frame[at : at + size].decode() if size >= 0 else None
    return Request(api, version, correlation, client, transaction, broker)


def without_brokers(answer: bytes, version: int) -> bytes:
    """Return an answer to METADATA that lists no broker, as brokers give it whose controller has heard of none lately.

    Only the compact versions, which clients of this decade use.
    """
    if version < _COMPACT_METADATA:
        raise ValueError(f"an answer to METADATA of version {version} is not understood")
    begin = at = 13  # length, correlation, the header's tagged fields, throttle time
    count, at = _varint(answer, at)
    for _ in range(count - 1):
        size, at = _varint(answer, at + 4)  # behind the number, the host
        size, at = _varint(answer, at + size - 1 + 4)  # behind the port, the rack, which may be missing
        at += max(0, size - 1) + 1  # and no tagged fields
    rest = answer[4:begin] + b"\x01" + answer[at:]
    return struct.pack(">i", len(rest)) + rest


def not_leader(answer: bytes, version: int) -> bytes:
    """Return an answer to LIST_OFFSETS of one partition, as a broker gives it that does not lead the partition yet."""
    if version < _COMPACT_OFFSETS:
        raise ValueError(f"an answer to LIST_OFFSETS of version {version} is not understood")
    _, at = _varint(answer, 13)  # length, correlation, the header's tagged fields, throttle time; then topics
    size, at = _varint(answer, at)
    _, at = _varint(answer, at + size - 1)  # behind the name, the partitions
    at += 4  # the number
    return answer[:at] + struct.pack(">hqq", _NOT_LEADER, -1, -1) + answer[at + 18 :]


def _varint(frame: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = frame[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
