"""The pure parts of reading: a consumer's options, and Arrow columns copied from memory addresses."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import numpy as np
import pytest

from tailrace.config.kafka_options import SOURCE_OPTIONS
from tailrace.gateway import ReadRequest
from tailrace.gateway.consuming import consumer_options, settings
from tailrace.gateway.headers import parsed
from tailrace.gateway.memory import copied


def test_every_source_option_has_a_name_in_librdkafka() -> None:
    """An option without an equivalent there is dropped."""
    assert consumer_options(dict.fromkeys(SOURCE_OPTIONS, "1")) == dict.fromkeys(
        [
            "check.crcs",
            "client.rack",
            "fetch.max.bytes",
            "fetch.message.max.bytes",
            "fetch.min.bytes",
            "fetch.wait.max.ms",
            "socket.receive.buffer.bytes",
            "socket.timeout.ms",
        ],
        "1",
    )


def test_options_of_the_connection_pass_unchanged() -> None:
    """librdkafka's own names are among them."""
    options = {"bootstrap.servers": "a:1", "enable.sparse.connections": False, "sasl.password": "secret"}
    assert consumer_options(options) == options


def test_java_default_buffer_becomes_the_system_default() -> None:
    """Java writes -1, librdkafka 0."""
    assert consumer_options({"receive.buffer.bytes": "-1"}) == {"socket.receive.buffer.bytes": 0}


@pytest.mark.parametrize(("share", "kilobytes"), [(0, 65_536), (1, 65_536), (8, 8_192), (1_000, 1_024)])
def test_prefetch_bound_is_shared_by_the_partitions(share: int, kilobytes: int) -> None:
    """The share is never less than one fetch."""
    assert settings({}, "read_committed", share)["queued.max.messages.kbytes"] == kilobytes


def test_options_cannot_undo_what_exactness_relies_on() -> None:
    """The reader needs the event at a partition's end, and an error if offsets are lost."""
    ours = settings({"enable.partition.eof": False, "auto.offset.reset": "latest"}, "read_uncommitted", 1)
    assert (ours["enable.partition.eof"], ours["auto.offset.reset"]) == (True, "error")
    assert ours["isolation.level"] == "read_uncommitted"


def test_request_keeps_secrets_out_of_its_text() -> None:
    """Requests with different options do not share a consumer."""
    first = ReadRequest("p", (), "read_committed", False, options={"sasl.password": "secret"})
    other = ReadRequest("p", (), "read_committed", False, options={"sasl.password": "changed"})
    assert "secret" not in repr(first)
    assert first.key != other.key


def addressed(values: list[bytes | None]) -> tuple[Any, Any, list[Any]]:
    """Return addresses and sizes of byte strings anywhere in memory, and the objects that keep them there."""
    kept = [None if each is None else ctypes.create_string_buffer(each, len(each) + 1) for each in values]
    addresses = np.array([0 if each is None else ctypes.addressof(each) for each in kept], np.int64)
    return addresses, np.array([len(each or b"") for each in values], np.int64), kept


@pytest.mark.parametrize(
    "values",
    [
        [],
        [None],
        [b""],
        [None, b"", None],
        [b"a", None, b"", b"\x00\xff", b"x" * 100_000, None],
        [random.Random(1).randbytes(number % 257) for number in range(5_000)],
        [None if number % 3 else b"%d" % number for number in range(1_000)],
    ],
)
def test_byte_strings_are_copied_from_their_addresses(values: list[bytes | None]) -> None:
    """This holds whatever their order in memory; a null is not an empty string."""
    addresses, sizes, kept = addressed(values)
    assert len(kept) == len(values)
    found, backwards = copied(addresses, sizes), copied(addresses[::-1], sizes[::-1])
    found.validate(full=True)
    assert found.to_pylist() == values
    assert backwards.to_pylist() == values[::-1]


def wire(*headers: tuple[bytes, bytes | None], count: int | None = None) -> bytes:
    """Return headers as a record stores them; all numbers are below 64."""
    text = bytes([2 * (len(headers) if count is None else count)])
    for key, value in headers:
        text += bytes([2 * len(key)]) + key + (b"\x01" if value is None else bytes([2 * len(value)]) + value)
    return text


def parse(*texts: bytes) -> Any:
    """Parse the headers of several records; an empty text is a record without headers."""
    addresses, sizes, kept = addressed(list(texts))
    assert len(kept) == len(texts)
    found = parsed(sizes > 1, addresses, sizes)
    return found if found is None else found.to_pylist()


def test_headers_are_parsed_for_all_records_at_once() -> None:
    """Records without headers may be among them."""
    assert parse(wire(), wire((b"a", b"1"), (b"", None)), b"", wire((b"b", b""))) == [
        None,
        [{"key": "a", "value": b"1"}, {"key": "", "value": None}],
        None,
        [{"key": "b", "value": b""}],
    ]


@pytest.mark.parametrize(
    "text",
    [
        wire((b"a", b"1"), count=2),
        wire((b"a", b"1"), count=60),
        wire((b"a", b"1"))[:-1],
        b"\x02\x01a\x00",
        b"\x02\x02a\x05",
        b"\xff" * 8,
        wire((b"\xff", b"1")),
    ],
)
def test_malformed_headers_are_left_to_librdkafka(text: bytes) -> None:
    """Nothing outside their bytes is read."""
    assert parse(wire((b"a", b"1")), text) is None
