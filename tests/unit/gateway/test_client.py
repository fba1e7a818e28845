"""The worker's side of a conversation: which error reaches the user when both sides may fail."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from tailrace.config import Delivery
from tailrace.errors import GatewayUnavailable, RecordTooLarge
from tailrace.gateway import Assignment, Written
from tailrace.gateway import message_protocol as wire
from tailrace.gateway.client import Client, Handing
from tailrace.gateway.message_protocol import Judging
from tailrace.gateway.schemas import ROW_SCHEMA
from tailrace.gateway.server import Host
from tailrace.progress.plan import BatchId, SinkPartition
from tailrace.testing import wait_until

TASK = Assignment(
    "p", BatchId(0), SinkPartition(0), 1, "d", Delivery.EXACTLY_ONCE, "ledger", "out", "rejected", "run"
)  # fmt: skip
ROWS = pa.RecordBatch.from_pylist([{"value": b"one"}], schema=ROW_SCHEMA)


def written(batches: Iterator[Any]) -> Future[Written]:
    """Write as a worker does, in a thread that may hang."""
    found: Future[Written] = Future()

    def write() -> None:
        try:
            found.set_result(Client().write(TASK, batches))
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=write, daemon=True).start()
    return found


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """Serve a gateway in this process that takes rows and writes none."""
    monkeypatch.setenv(wire.ENV, str(tmp_path))
    one = Host(tmp_path)

    def take(task: Assignment, batches: Iterator[Any]) -> Written:
        return Written(task.partition, skipped=False, out=sum(each.num_rows for each in batches))

    monkeypatch.setattr(one.deliveries, "write", take)
    serving = threading.Thread(target=one.serve, args=[psutil.Process()], daemon=True)
    serving.start()
    wait_until(lambda: (tmp_path / wire.SOCKET).exists(), "the gateway's socket")
    yield one
    one.stop()
    serving.join(30)


@pytest.fixture
def gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let each conversation's gateway greet and end; the event is set once it has."""
    monkeypatch.setenv(wire.ENV, str(tmp_path))
    event = threading.Event()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(tmp_path / wire.SOCKET))
    listening.listen()

    def greet() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.sendall(wire.HELLO)
            event.set()

    greeting = threading.Thread(target=greet, daemon=True)
    greeting.start()
    yield event
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    greeting.join(30)


ERRORS = [BrokenPipeError("a pipe of the format's own"), FileNotFoundError("model.bin"), wire.Closed(), ValueError("x")]


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_error_of_the_input_reaches_the_user_unchanged(error: Exception, rows: int) -> None:
    """A format of the user's may raise what a broken connection raises; neither side waits for the other then."""

    def failing() -> Iterator[Any]:
        yield from [ROWS] * rows
        raise error

    assert written(failing()).exception(20) is error
    assert error.__context__ is None
    assert written(iter([ROWS])).result(20).out == 1


@pytest.mark.parametrize("size", [200_000, 2_000_000])
def test_gateways_error_reaches_a_worker_that_is_still_sending(
    host: Host, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """However many rows are left: what cannot be sent any more is of no use."""

    def refuse(task: Assignment, batches: Iterator[Any]) -> Written:
        next(batches)
        raise RecordTooLarge("the fault of the test")

    monkeypatch.setattr(host.deliveries, "write", refuse)
    row = pa.RecordBatch.from_pylist([{"value": b"x" * 100_000}], schema=ROW_SCHEMA)
    error = written(iter([row] * (size // 100_000))).exception(20)
    assert isinstance(error, RecordTooLarge), error


def test_error_of_the_input_is_not_hidden_by_the_gateways_end(gone: threading.Event) -> None:
    """Rows are still buffered then, and cannot be sent any more."""
    error = ValueError("the fault of the test")

    def failing() -> Iterator[Any]:
        yield ROWS
        assert gone.wait(20)
        raise error

    assert written(failing()).exception(20) is error


def test_end_of_the_gateway_in_mid_task_is_named(gone: threading.Event) -> None:
    """The input was sound."""

    def sound() -> Iterator[Any]:
        yield ROWS
        assert gone.wait(20)

    with pytest.raises(GatewayUnavailable, match="ended in mid-task"):
        written(sound()).result(20)


def test_giving_up_a_hand_over_hides_no_error(gone: threading.Event) -> None:
    """The gateway forgets the rows of a conversation without an end, so it may as well be gone."""
    handing = Handing(Judging("run/0/7", 0, 0))
    handing.add(ROWS)
    assert gone.wait(20)
    handing.close()
