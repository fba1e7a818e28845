"""What the tests' proxy understands of Kafka's requests."""

from __future__ import annotations

import socket
import struct

import pytest

from support.proxy import Fault, Proxy, nth
from support.wire import Api, Request, parsed
from tailrace.testing import embedded
from tailrace.testing.broker import HOST


def frame(api: int, version: int, body: bytes, *, compact: bool, client: bytes = b"rdkafka") -> bytes:
    """Return a request as a client sends it."""
    head = struct.pack(">hhih", api, version, 7, len(client)) + client + (b"\0" if compact else b"")
    return struct.pack(">i", len(head + body)) + head + body


@pytest.mark.parametrize(
    ("api", "version", "compact"),
    [
        (Api.END_TXN, 1, False),
        (Api.END_TXN, 3, True),
        (Api.ADD_PARTITIONS, 0, False),
        (Api.ADD_OFFSETS, 3, True),
        (Api.TXN_OFFSET_COMMIT, 2, False),
        (Api.TXN_OFFSET_COMMIT, 3, True),
        (Api.INIT_PRODUCER_ID, 1, False),
        (Api.INIT_PRODUCER_ID, 4, True),
        (Api.PRODUCE, 7, False),
        (Api.PRODUCE, 9, True),
    ],
)
def test_the_transactional_id_is_found(api: Api, version: int, compact: bool) -> None:
    """This covers both kinds of headers and strings, and requests without an id."""
    name = b"tailrace.tweets.0" + b"x" * 200  # longer than one byte of a varint can express
    size = bytes([(len(name) + 1) & 0x7F | 0x80, (len(name) + 1) >> 7]) if compact else struct.pack(">h", len(name))
    found = parsed(frame(api, version, size + name + b"rest", compact=compact), broker=3)
    assert found == Request(api, version, 7, "rdkafka", name.decode(), 3)
    none = parsed(frame(api, version, (b"\0" if compact else b"\xff\xff") + b"rest", compact=compact))
    assert none.transaction is None


def test_other_requests_have_a_sender() -> None:
    """This covers a request outside a transaction, and a client without a name."""
    assert parsed(frame(18, 3, b"", compact=True)) == Request(18, 3, 7, "rdkafka", None, 0)
    nameless = struct.pack(">hhih", 3, 9, 7, -1) + b"\0"
    assert parsed(struct.pack(">i", len(nameless)) + nameless).client == ""


def test_the_nth_request_of_a_kind_is_chosen() -> None:
    """The fault applies once, to one transactional id and one client if they are given."""

    def end(transaction: str, client: str = "a") -> Request:
        return Request(Api.END_TXN, 1, 1, client, transaction, 1)

    judge = nth(Api.END_TXN, Fault.CUT, 2, transaction="t", client="a")
    asked = [end("t"), end("u"), end("t", "b"), Request(Api.ADD_OFFSETS, 1, 1, "a", "t", 1), end("t"), end("t")]
    assert [judge(each) for each in asked] == [None, None, None, None, Fault.CUT, None]


def test_port_that_another_process_takes_first_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Campaigns choose ports side by side, and a port that was free may be taken when the proxy listens."""
    free = embedded._free_ports(1, ())
    with socket.create_server((HOST, 0)) as other:
        taken = other.getsockname()[1]
        chosen = iter([[taken], free])
        monkeypatch.setattr(embedded, "_free_ports", lambda count, avoid: next(chosen))
        proxy = Proxy()
        try:
            assert proxy.listen(1, taken) == free[0]
        finally:
            proxy.close()
