"""`tailrace kafka`: a Kafka that runs until it is stopped, and keeps only the data that it was asked to keep."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tailrace.cli.kafka import topics
from tailrace.config import Kafka
from tailrace.kafka.cluster import Cluster
from tailrace.testing import Record, consume, produce, wait_until
from tailrace.testing.broker import HOST

pytestmark = pytest.mark.integration

COMMAND = (sys.executable, "-m", "tailrace.cli.main", "kafka")
PORTS = iter(range(14_000 + os.getpid() % 500, 15_000))
Command = subprocess.Popen[str]
Start = Callable[..., Command]


@pytest.fixture
def port() -> int:
    """Return a free port, outside the range that the kernel uses for outgoing connections.

    No two tests share a port: the client that `produce` caches would take one test's Kafka for another's.
    """
    for each in PORTS:
        with socket.socket() as attempt:
            if attempt.connect_ex((HOST, each)) != 0:
                return each
    pytest.fail("no free port between 14000 and 15000")


@pytest.fixture
def start(port: int) -> Iterator[Start]:
    """Return a function that starts the command on the port; kill what still runs after the test."""
    begun: list[Command] = []

    def begin(*arguments: str) -> Command:
        process = subprocess.Popen(
            [*COMMAND, "--port", str(port), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        begun.append(process)
        return process

    yield begin
    for process in begun:
        process.kill()
        process.communicate(timeout=60)


def gone(process: psutil.Process) -> bool:
    """Return whether the process has ended; a zombie counts as ended."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def ready(process: Command) -> dict[str, Any]:
    """Return the object that reports where Kafka is."""
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    assert "bootstrap_servers" in found, found
    return found


def end(process: Command, number: signal.Signals = signal.SIGTERM) -> str:
    """Signal the command to end, check that it ends cleanly, and return its stderr."""
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_kafka_serves_until_the_signal_and_leaves_nothing(start: Start, port: int, number: signal.Signals) -> None:
    """It reports its address, has the requested topics, and removes its process and folder."""
    process = start("--topic", "in:3", "--topic", "out", "--output", "json")
    found = ready(process)
    assert found["bootstrap_servers"] == f"{HOST}:{port}"
    assert (found["kept"], found["topics"]) == (False, {"in": 3, "out": 1})
    assert {"in": 3, "out": 1}.items() <= Cluster(Kafka(bootstrap_servers=f"{HOST}:{port}")).topics().items()
    produce(found["bootstrap_servers"], "in", [Record(b"one")])
    assert [each.value for each in consume(found["bootstrap_servers"], "in")] == [b"one"]
    broker = psutil.Process(found["brokers"][0]["pid"])
    assert Path(found["folder"]).is_dir()
    assert end(process, number) == ""
    assert not Path(found["folder"]).exists()
    assert gone(broker)


def test_text_output_shows_the_address_and_the_next_command(start: Start, port: int) -> None:
    """The address goes to stdout as the result; the next command goes to stderr."""
    process = start("--topic", "in:2")
    assert process.stdout is not None
    assert process.stderr is not None
    lines = [process.stdout.readline() for _ in range(2)]
    assert lines == [f"Kafka is ready at {HOST}:{port}\n", "topic in: 2 partitions\n"]
    said = "".join(iter(process.stderr.readline, "Ctrl-C ends it\n"))
    assert f"next: tailrace doctor -b {HOST}:{port}" in said
    assert f"bootstrap.servers: '{HOST}:{port}'" in said
    assert end(process) == "ended; the data is removed\n"


@pytest.mark.takes(12)
def test_folder_keeps_the_records_for_the_next_start(start: Start, tmp_path: Path) -> None:
    """A second start finds the records, and leaves an existing topic as it is."""
    arguments = ("--folder", str(tmp_path / "kafka"), "--output", "json")
    first = start(*arguments, "--topic", "in:2")
    produce(ready(first)["bootstrap_servers"], "in", [Record(b"one")])
    end(first)
    second = start(*arguments, "--topic", "in:5")
    found = ready(second)
    assert (found["kept"], found["topics"]) == (True, {"in": 2})
    assert [each.value for each in consume(found["bootstrap_servers"], "in")] == [b"one"]
    end(second)


def test_command_ends_with_an_error_when_its_broker_is_killed(start: Start) -> None:
    """The command does not wait for a Kafka that is gone."""
    process = start("--output", "json")
    psutil.Process(ready(process)["brokers"][0]["pid"]).kill()
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "no broker is left" in json.loads(said)["what"]


def test_signal_during_the_start_leaves_nothing(start: Start, tmp_path: Path) -> None:
    """Stopped before it is ready, the command also ends the broker that it was starting."""
    process = start("--folder", str(tmp_path / "kafka"))
    log = tmp_path / "kafka" / "broker-1" / "kafka.log"
    parent = psutil.Process(process.pid)
    wait_until(log.exists, f"the broker's log {log}", limit=60)
    children = wait_until(lambda: parent.children(recursive=True), "a process of the broker", limit=60)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode in {0, 128 + signal.SIGINT}  # 0 if it was quicker than the signal
    assert "Traceback" not in said
    for each in children:
        wait_until(partial(gone, each), f"the end of {each}", limit=30)


def test_taken_port_is_named(port: int) -> None:
    """Something else already listens there: the usual mistake."""
    with socket.create_server((HOST, port)):
        done = subprocess.run(
            [*COMMAND, "--port", str(port)], capture_output=True, text=True, timeout=60, check=False
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (6, "")
    assert f"TR-503 embedded Kafka did not start: port {port} of {HOST} is not available: " in done.stderr
    assert "Address already" in done.stderr
    assert "--port" in done.stderr


@pytest.mark.parametrize("wrong", ["", "in:0", "in:x", "in:", "a b", "..", "in:10000", "x" * 250])
def test_invalid_topic_is_refused_before_anything_starts(wrong: str) -> None:
    """The usage error names the given value."""
    done = subprocess.run(
        [*COMMAND, "--topic", wrong], capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{wrong!r} is not NAME or NAME:PARTITIONS" in done.stderr


def test_topics_have_one_partition_by_default() -> None:
    """Dots, dashes and underscores are allowed in names."""
    assert topics(["a.b-c_d:12", "out"]) == {"a.b-c_d": 12, "out": 1}


def test_topic_named_twice_is_refused() -> None:
    """It is unclear which of the two partition counts is meant."""
    done = subprocess.run(
        [*COMMAND, "--topic", "in", "--topic", "in:3"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "'in' is named twice" in done.stderr
