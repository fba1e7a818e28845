"""The lines of librdkafka's log which mean that a request may have been sent twice."""

from __future__ import annotations

import pytest

from tailrace.gateway.sender import resent

CLOSED = "[thrd:TxnCoordinator]: TxnCoordinator/1: 127.0.0.1:9092: Disconnected: connection closed by peer"
REFUSED = "[thrd:127.0.0.1:1/bootstrap]: 127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused"


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("FAIL", f"{CLOSED} (after 14ms in state UP)", True),
        ("FAIL", f"{CLOSED} (after 14ms in state APIVERSION_QUERY)", True),
        ("FAIL", "something else", True),
        ("FAIL", f"{REFUSED} (after 0ms in state CONNECT)", False),
        ("FAIL", f"{REFUSED} (after 0ms in state TRY_CONNECT)", False),
        ("REQTMOUT", "[thrd:a]: a: Timed out 1 in-flight, 0 retry-queued, 0 out-queue requests", True),
        ("GETPID", "[thrd:main]: Failed to acquire transactional PID: retrying", False),
    ],
)
def test_requests_of_a_lost_connection_may_be_sent_again(kind: str, text: str, expected: bool) -> None:
    """A connection that was still being made has carried no request."""
    assert resent(kind, text) is expected
