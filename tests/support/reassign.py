"""Moving the replicas of partitions: confluent-kafka has no call for that, and the tools of Kafka take a JVM.

So the request is written here as the protocol has it: AlterPartitionReassignments, version 0.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping, Sequence

_KEY, _VERSION, _NUMBER = 45, 0, 1
_LIMIT = 30.0
_NO_TAGS = b"\0"

Replicas = Mapping[str, Mapping[int, Sequence[int]]]  # topic, partition, brokers: the preferred leader first


def reassign(address: str, replicas: Replicas) -> None:
    """Ask a broker to move partitions; raise unless it accepts all of them. It returns before they have moved."""
    host, port = address.split(",")[0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), _LIMIT) as connection:
        message = request(replicas)
        connection.sendall(struct.pack(">i", len(message)) + message)
        (size,) = struct.unpack(">i", _exactly(connection, 4))
        refused = errors_in(_exactly(connection, size))
    if refused:
        raise RuntimeError(f"the reassignment was refused with the codes {refused}")


def request(replicas: Replicas) -> bytes:
    """Return the request with its header."""
    header = struct.pack(">hhih", _KEY, _VERSION, _NUMBER, -1) + _NO_TAGS
    topics = b"".join(
        _text(topic) + _size(len(parts)) + b"".join(_partition(*each) for each in parts.items()) + _NO_TAGS
        for topic, parts in replicas.items()
    )
    return header + struct.pack(">i", int(_LIMIT * 1000)) + _size(len(replicas)) + topics + _NO_TAGS


def errors_in(answer: bytes) -> list[int]:
    """Return the error codes of an answer, of all of it and of each partition."""
    number, _, _, code = struct.unpack_from(">ibih", answer)
    if number != _NUMBER:
        raise RuntimeError("this is the answer to another request")
    at, found = _skip_text(answer, 11), [code]
    topics, at = _read_size(answer, at)
    for _ in range(topics):
        at = _skip_text(answer, at)
        parts, at = _read_size(answer, at)
        for _ in range(parts):
            found += struct.unpack_from(">h", answer, at + 4)
            at = _skip_text(answer, at + 6) + 1
        at += 1
    return [each for each in found if each]


def _partition(number: int, brokers: Sequence[int]) -> bytes:
    return struct.pack(">i", number) + _size(len(brokers)) + struct.pack(f">{len(brokers)}i", *brokers) + _NO_TAGS


def _text(text: str) -> bytes:
    return _size(len(text.encode())) + text.encode()


def _size(number: int) -> bytes:
    """Encode the length of something, plus one, as an unsigned number of seven bits a byte."""
    left, found = number + 1, bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


def _read_size(answer: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        found |= (answer[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if answer[at - 1] < 0x80:
            return max(found - 1, 0), at


def _skip_text(answer: bytes, at: int) -> int:
    size, at = _read_size(answer, at)
    return at + size


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            raise ConnectionError("the broker closed the connection")
        found += part
    return found
