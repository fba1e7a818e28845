"""`tailrace run` as a process: signals, exit codes, and what it prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from support.drivers import command, count, driver, events, kill_tree, written_file
from support.pipelines import Bench, numbered
from tailrace.testing import wait_until

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]
LIMIT = 250.0  # on a busy machine


def commands(pid: int) -> Iterator[str]:
    """Yield the command line of each process below this one; skip those that end meanwhile."""
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # raised for a zombie too
            yield " ".join(child.cmdline())


@pytest.mark.takes(20)
def test_driver_is_warm_before_its_first_batch_and_finishes_the_last_on_a_signal(bench: MakeBench) -> None:
    """A worker started in mid-stream would delay records. After the signal the next start has nothing to repeat."""
    one = bench(partitions=2)
    file, log = written_file(one, batch={"max_records": 500}), one.folder / "events"
    with driver(file, log) as process:
        wait_until(lambda: count(log, "started") or process.poll() is not None, "the driver's start", LIMIT)
        found = list(commands(process.pid))
        assert count(log, "planned") == 0
        assert sum("tailrace.gateway.server" in each for each in found) == 1
        assert sum("tailrace.gateway.daemon" in each for each in found) > 2  # the daemon, and a worker in each slot
        one.send(numbered(0, 2000), partition=0)
        wait_until(lambda: count(log, "planned") >= 2 or process.poll() is not None, "two batches", LIMIT)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(LIMIT) == 0
    last = events(log)[-1]
    assert (last["event"], last["reason"]) == ("stopped", "SIGTERM was received")
    assert count(log, "planned") == count(log, "written")
    assert len(one.values()) == sum(each["in"] for each in events(log) if each["event"] == "written")
    one.run(batch={"max_records": 5000})
    assert one.values() == numbered(0, 2000)


@pytest.mark.takes(25)
def test_signal_to_the_whole_group_ends_a_driver_as_one_to_it_alone(bench: MakeBench) -> None:
    """systemd and `timeout` signal every process: the JVM ended before the batch, or before Spark had started."""
    one = bench(partitions=2)
    file = written_file(one, batch={"max_records": 200})
    one.send(numbered(0, 2000), partition=0)
    for event in ("starting", "planned"):
        log = one.folder / f"events-{event}"
        with driver(file, log) as process:
            wait_until(lambda log=log, event=event: count(log, event) >= 1, f"the event {event}", LIMIT)  # type: ignore[misc]
            os.killpg(process.pid, signal.SIGTERM)
            os.kill(process.pid, signal.SIGTERM)  # `timeout` signals its child twice
            assert process.wait(LIMIT) == 0, log.read_text() + log.with_suffix(".err").read_text()
        assert events(log)[-1]["event"] == "stopped"
        assert "Traceback" not in log.with_suffix(".err").read_text()
        assert count(log, "planned") == count(log, "written")
    one.run(batch={"max_records": 5000})
    assert one.values() == numbered(0, 2000)


def test_spark_that_does_not_start_is_an_error_of_its_own(bench: MakeBench) -> None:
    """It was a traceback of PySpark's; Java's reason is in the message, and its stack trace is not shown."""
    one = bench()
    file = written_file(one, spark={"spark.master": "nonsense"})
    done = subprocess.run(command(file), capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 6
    assert "TR-511 Spark did not start" in done.stderr
    assert "Master must either be yarn or start with spark, k8s, or local" in done.stderr
    assert "\tat " not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long  # the campaign does so at every crash point
@pytest.mark.parametrize("partitions", [3, 6])
def test_driver_killed_in_mid_batch_continues_without_loss_or_duplicate(bench: MakeBench, partitions: int) -> None:
    """The process tree is killed with -9, directly after a plan, twice."""
    one = bench(partitions=partitions)
    for number in range(partitions):
        one.send(numbered(number * 10_000, number * 10_000 + 2000), partition=number)
    file = written_file(one, batch={"max_records": 1500 * partitions})
    for attempt in range(2):
        log = one.folder / f"events-{attempt}"
        with driver(file, log) as process:
            wait_until(lambda log=log: count(log, "planned") >= 1, "a plan", LIMIT)  # type: ignore[misc]
            assert process.poll() is None
            kill_tree(process)
    one.run()
    assert one.values() == [value for n in range(partitions) for value in numbered(n * 10_000, n * 10_000 + 2000)]


def test_error_has_its_code_its_parts_and_its_exit_code(bench: MakeBench) -> None:
    """It goes to stderr for people, and as one object to stdout for programs."""
    one = bench()
    file = written_file(one, source={"topics": ["no-such-topic"]})
    done = subprocess.run(command(file), capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 3
    assert done.stderr.splitlines()[0].startswith("TR-202 topic unknown: source topic 'no-such-topic'")
    assert [line.split(":")[0].strip() for line in done.stderr.splitlines()[1:4]] == ["kept safe", "next", "more"]
    done = subprocess.run(command(file, "--output", "json"), capture_output=True, text=True, timeout=LIMIT, check=False)
    assert json.loads(done.stdout.splitlines()[-1])["error"] == "TR-202"
    assert done.returncode == 3


@pytest.mark.takes(12)
def test_column_that_does_not_exist_is_one_short_error(bench: MakeBench) -> None:
    """PySpark logs its own exception too, as a JSON object of 16 kB: that is not shown."""
    one = bench()
    one.write("wrong.py", "def wrong(frame):\n    return frame.select('absent')\n")
    file = written_file(one, process={"function": "wrong.py:wrong"})
    done = subprocess.run(command(file), capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert any(line.startswith("TR-103 function invalid: ") and "`absent`" in line for line in lines), done.stderr
    assert not [line for line in lines if line.startswith("{") or len(line) > 1_000]


def test_invalid_file_is_refused_with_its_lines(tmp_path: Path) -> None:
    """It is refused before anything starts."""
    file = tmp_path / "wrong.yaml"
    file.write_text("pipeline: wrong\nsource:\n  topic: [a]\nsink:\n  topic: b\n  partitions: many\n")
    done = subprocess.run(command(file), capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 2
    assert "wrong.yaml:3: source.topic: unknown key; did you mean 'topics'?" in done.stderr
    assert "wrong.yaml:6: sink.partitions: 'many' is not a whole number" in done.stderr


@pytest.mark.takes(15)
def test_run_prints_a_line_for_each_batch_and_no_spark_log_until_ctrl_c(bench: MakeBench) -> None:
    """Spark logs to stderr only if something is wrong. Ctrl-C ends the run like SIGTERM."""
    one = bench()
    one.send(numbered(0, 10))
    file, shown = written_file(one), one.folder / "shown"
    with shown.open("wb") as out:
        process = subprocess.Popen(command(file), stdout=out, stderr=out, start_new_session=True)

    def rows() -> list[list[str]]:
        return [line.split() for line in shown.read_text().splitlines() if line[:1].isdigit()]

    try:
        wait_until(lambda: rows() or process.poll() is not None, "the first batch", LIMIT)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(LIMIT) == 0, shown.read_text()
    finally:
        kill_tree(process)
    assert [row[:5] for row in rows()] == [["0", "10", "200,000", "10", "0"]]
    assert "SIGINT was received" in shown.read_text()
    ours = f"pipeline {one.name}: "
    lines = shown.read_text().splitlines()
    noise = [line for line in lines if "incubator modules" not in line and line[: len(ours)] != ours]
    assert not [line for line in noise if "Spark" in line or "WARN" in line or "log4j" in line]
