"""`tailrace kafka`: a Kafka that is there until it is told to go, and that leaves what it was told to keep."""

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
    """A port that is free now, and not one of those that the kernel gives to outgoing connections.

    No test has that of another: the client that `produce` keeps would take the one's Kafka for the other's.
    """
    for each in PORTS:
        with socket.socket() as attempt:
            if attempt.connect_ex((HOST, each)) != 0:
                return each
    pytest.fail("no free port between 14000 and 15000")


@pytest.fixture
def start(port: int) -> Iterator[Start]:
    """Starts the command on the port; what still runs at the end is killed."""
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
    """Whether it has ended; one that is only waiting to be reaped has."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def ready(process: Command) -> dict[str, Any]:
    """The object that says where Kafka is."""
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    assert "bootstrap_servers" in found, found
    return found


def end(process: Command, number: signal.Signals = signal.SIGTERM) -> str:
    """Tell the command to end, see that it ends well, and return what it said on stderr."""
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_the_signal_and_leaves_nothing(start: Start, port: int, number: signal.Signals) -> None:
    """It says where it is, has the topics that were asked for, and goes with process and folder."""
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


def test_a_person_is_told_where_it_is_and_what_is_next(start: Start, port: int) -> None:
    """The address is the result; how to go on is said beside it."""
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
def test_a_folder_keeps_the_records_for_the_next_time(start: Start, tmp_path: Path) -> None:
    """Started again, with a topic that exists and is left as it is, it still has its records."""
    arguments = ("--folder", str(tmp_path / "kafka"), "--output", "json")
    first = start(*arguments, "--topic", "in:2")
    produce(ready(first)["bootstrap_servers"], "in", [Record(b"one")])
    end(first)
    second = start(*arguments, "--topic", "in:5")
    found = ready(second)
    assert (found["kept"], found["topics"]) == (True, {"in": 2})
    assert [each.value for each in consume(found["bootstrap_servers"], "in")] == [b"one"]
    end(second)


def test_it_ends_with_an_error_when_its_broker_is_killed(start: Start) -> None:
    """Nobody waits at a Kafka that is no more."""
    process = start("--output", "json")
    psutil.Process(ready(process)["brokers"][0]["pid"]).kill()
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "no broker is left" in json.loads(said)["what"]


def test_a_signal_during_the_start_leaves_nothing(start: Start, tmp_path: Path) -> None:
    """Told to end before it is ready, it takes along the broker that it was starting."""
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


def test_a_port_that_is_taken_is_named(port: int) -> None:
    """The usual mistake: something else is there already."""
    with socket.create_server((HOST, port)):
        done = subprocess.run(
            [*COMMAND, "--port", str(port)], capture_output=True, text=True, timeout=60, check=False
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (6, "")
    assert f"TR-503 embedded Kafka did not start: port {port} of {HOST} is not available: " in done.stderr
    assert "Address already" in done.stderr
    assert "--port" in done.stderr


@pytest.mark.parametrize("wrong", ["", "in:0", "in:x", "in:", "a b", "..", "in:10000", "x" * 250])
def test_a_topic_that_cannot_be_is_refused_before_anything_starts(wrong: str) -> None:
    """A usage error names what was given."""
    done = subprocess.run(
        [*COMMAND, "--topic", wrong], capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{wrong!r} is not NAME or NAME:PARTITIONS" in done.stderr


def test_topics_have_one_partition_unless_more_are_asked_for() -> None:
    """Dots, dashes and underscores belong to a name."""
    assert topics(["a.b-c_d:12", "out"]) == {"a.b-c_d": 12, "out": 1}


def test_a_topic_that_is_named_twice_is_refused() -> None:
    """Which of the two counts of partitions was meant, nobody knows."""
    done = subprocess.run(
        [*COMMAND, "--topic", "in", "--topic", "in:3"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "'in' is named twice" in done.stderr
