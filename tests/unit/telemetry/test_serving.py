"""The small HTTP port: paths, errors, and a port that is taken."""

from __future__ import annotations

import http.client
import logging
import socket

import pytest

from tailrace.errors import PortUnusable
from tailrace.telemetry.serving import Answer, Port


def asked(port: Port, path: str, method: str = "GET") -> tuple[int, bytes, dict[str, str]]:
    """Make one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port.number, timeout=20)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


def test_a_path_is_answered() -> None:
    """It returns what its function returns, and never from a cache."""
    with Port("127.0.0.1", 0, {"/x": lambda: Answer.json({"a": 1}, 503)}) as port:
        status, body, headers = asked(port, "/x?query")
        assert (status, body, headers["Content-Type"]) == (503, b'{"a": 1}', "application/json")
        assert headers["Cache-Control"] == "no-store"
        assert asked(port, "/x", "HEAD")[1] == b""
        assert asked(port, "/y")[0] == 404
        assert asked(port, "/x", "POST")[0] == 501
        assert port.address == f"127.0.0.1:{port.number}"


def test_a_page_that_fails_does_not_end_the_server(caplog: pytest.LogCaptureFixture) -> None:
    """It returns 500, the log has the reason, and the next request is answered."""

    def broken() -> Answer:
        raise ValueError("secret")

    with (
        caplog.at_level(logging.CRITICAL),
        Port("127.0.0.1", 0, {"/": broken, "/ok": lambda: Answer.text("ok")}) as port,
    ):
        status, body, _ = asked(port, "/")
        assert status == 500
        assert b"secret" not in body
        assert asked(port, "/ok")[:2] == (200, b"ok\n")


def test_the_next_free_port_is_used_if_one_is_taken() -> None:
    """The process that has the port keeps it."""
    with Port("127.0.0.1", 0, {}) as first, Port("127.0.0.1", first.number, {}) as second:
        assert first.number < second.number


def test_an_address_of_another_machine_is_refused() -> None:
    """It is refused at once, because no other port would help."""
    with pytest.raises(PortUnusable, match=r"192\.0\.2\.1:9760"):
        Port("192.0.2.1", 9760, {})


def test_a_silent_client_does_not_block_others() -> None:
    """They are answered in the meantime."""
    with Port("127.0.0.1", 0, {"/": lambda: Answer.text("ok")}) as port, socket.socket() as silent:
        silent.connect(("127.0.0.1", port.number))
        assert asked(port, "/")[0] == 200
