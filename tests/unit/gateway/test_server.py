"""The gateway process: it lives exactly as long as its executor, whatever becomes of its housekeeping."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tailrace import errors
from tailrace.config import Delivery
from tailrace.gateway import Assignment, server
from tailrace.gateway import message_protocol as wire
from tailrace.gateway.client import Client
from tailrace.gateway.server import Host
from tailrace.progress.plan import BatchId, SinkPartition
from tailrace.testing import wait_until

TASK = Assignment(
    "p", BatchId(1), SinkPartition(0), 1, "", Delivery.EXACTLY_ONCE, "p.ledger", "out", "p.rejected", "run"
)


@pytest.fixture
def executor() -> Iterator[subprocess.Popen[bytes]]:
    """Return a process that a gateway lives with."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]) as process:
        yield process
        process.kill()


@pytest.fixture
def serve(
    executor: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Host], threading.Thread]]:
    """Return a function that lets a gateway serve in a thread."""
    monkeypatch.setattr(server, "_TEND_EVERY", 0.02)
    monkeypatch.setenv(wire.ENV, str(tmp_path))
    hosts: list[Host] = []

    def start(host: Host) -> threading.Thread:
        hosts.append(host)
        thread = threading.Thread(target=host.serve, args=[psutil.Process(executor.pid)], daemon=True)
        thread.start()
        return thread

    yield start
    for each in hosts:
        each.stop()


@pytest.mark.parametrize("call", ["tend", "close"])
def test_gateway_ends_with_its_executor_although_freeing_a_client_hangs(
    executor: subprocess.Popen[bytes],
    serve: Callable[[Host], threading.Thread],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    """librdkafka sometimes never returns from that."""
    monkeypatch.setattr(server, "_CLOSE_LIMIT", 0.1, raising=False)
    begun, released = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        released.wait(120)

    host = Host(tmp_path)
    monkeypatch.setattr(host.deliveries.sources, call, hang)
    serving = serve(host)
    if call == "tend":
        assert begun.wait(30)
    executor.kill()
    try:
        serving.join(30)
        assert begun.is_set()
        assert not serving.is_alive()
    finally:
        released.set()


def test_gateway_outlives_a_failure_of_its_housekeeping(
    serve: Callable[[Host], threading.Thread],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The failure is logged; the other steps go on, and so do the tasks."""
    host, failures, swept = Host(tmp_path), list[int](), list[int]()

    def fail() -> None:
        failures.append(1)
        raise OSError("the fault of the test")

    monkeypatch.setattr(host.deliveries.sinks, "tend", fail)
    monkeypatch.setattr(host.attempts, "sweep", lambda: swept.append(1))
    serving = serve(host)
    wait_until(lambda: len(failures) > 1 and len(swept) > 1, "two rounds of housekeeping")
    assert Client().stats()["gateway"] == host.name
    assert serving.is_alive()
    assert "the fault of the test" in caplog.text


def test_gateway_keeps_nothing_of_a_task_whose_error_it_has_answered(
    serve: Callable[[Host], threading.Thread], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that was given up while brokers were away would go on asking for the id, and take it from the next."""
    held: list[weakref.ref[Any]] = []
    host = Host(tmp_path)

    def write(task: Assignment, batches: Iterator[Any]) -> None:
        producer = threading.Event()  # anything that can be seen to go
        held.append(weakref.ref(producer))
        raise errors.BrokerUnreachable("the fault of the test")

    monkeypatch.setattr(host.deliveries, "write", write)
    serve(host)
    gc.disable()
    try:
        with pytest.raises(errors.BrokerUnreachable, match="the fault of the test"):
            Client().write(TASK, iter([]))
        wait_until(lambda: held[0]() is None, "the task's producer to be gone", 10)
    finally:
        gc.enable()
