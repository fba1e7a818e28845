"""The producer churn benchmark: what each way of producing costs a broker and its client, as in a report of 2017.

Run it with `make bench-churn`; CHURN_BATCHES is the number of batches (60), CHURN_WAYS a list of ways. Each way gets a
freshly started broker and a client process of its own; the same records, 64 partitions, a batch every 500 ms or as fast
as it can; nothing is tuned. The broker is observed over JMX (Beans.java), the client through psutil. The page, its
plots and the measurements (churn.json) go to docs/benchmarks, or to CHURN_FOLDER; `python -m bench.churn_report FOLDER`
writes the page again from churn.json.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer

from bench.churn_report import Ridden, keep, write
from bench.churn_ride import PARTITIONS, PER_PARTITION
from tailrace import jars
from tailrace.errors import TailraceError
from tailrace.testing import Topics
from tailrace.testing.embedded import EmbeddedKafka

WAYS = ("per-partition", "broadcast", "singleton", "pool", "spark", "tailrace-exactly-once", "tailrace-at-least-once")
BATCHES = int(os.environ.get("CHURN_BATCHES", "60"))
VALUE = b"x" * 200
LOOKS = 10  # samples, each with a full collection of the broker's heap
START_LIMIT = 120.0
TESTS = Path(__file__).parents[1]
DOCS = Path(__file__).parents[2] / "docs" / "benchmarks"


class Look:
    """Reads a broker's counters over JMX."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, collect: bool = False) -> dict[str, float]:
        """Return the counters now, after a full collection if `collect` is set."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("Beans.java has no pipes")
        self._process.stdin.write("gc\n" if collect else "look\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("Beans.java has ended")
        return dict(json.loads(line))


@contextlib.contextmanager
def looking(pid: int) -> Iterator[Look]:
    """Attach to a broker."""
    command = [str(jars.java()), "-Xmx64m", "-XX:+UseSerialGC", str(Path(__file__).with_name("Beans.java")), str(pid)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Look(process)
    finally:
        process.kill()
        process.wait(30)


def limit_clients(bootstrap: str) -> None:
    """Give every client a quota that none reaches, because brokers keep metrics per client only if there are quotas."""
    classpath = os.pathsep.join(map(str, jars.ensure("kafka")))
    command = [str(jars.java()), "-cp", classpath, "kafka.admin.ConfigCommand", "--bootstrap-server", bootstrap]
    command += ["--alter", "--entity-type", "clients", "--entity-default"]
    command += ["--add-config", "producer_byte_rate=1000000000000,request_percentage=100000"]
    subprocess.run(command, check=True, capture_output=True, timeout=START_LIMIT)


def fill(bootstrap: str, topic: str, batches: int) -> None:
    """Write the records of all batches, the same number to each partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    for number in range(batches * PER_PARTITION):
        for partition in range(PARTITIONS):
            producer.produce(topic, VALUE, partition=partition)
        if number % 100 == 0:
            producer.flush(60)
    producer.flush(60)


def client(process: psutil.Process) -> dict[str, float]:
    """Measure threads, memory and CPU of a process and its descendants."""
    threads = memory = 0
    for each in [process, *process.children(recursive=True)]:
        try:
            threads += each.num_threads()
            memory += each.memory_info().rss
        except psutil.Error:
            continue  # it ended meanwhile
    return {"client_threads": threads, "client_rss": memory, "client_cpu": spent(process)}


def spent(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and its descendants, including those that ended."""
    total = 0.0
    for each in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = each.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


class Others:
    """Measures the cores that other programs used since it was created."""

    def __init__(self) -> None:
        self._began, self._busy, self._own = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        all_ = psutil.cpu_times()
        return time.monotonic(), sum(all_) - all_.idle - getattr(all_, "iowait", 0.0), spent(psutil.Process())

    def __call__(self) -> float:
        """Return the cores used by other programs until now."""
        now, busy, own = self._now()
        return max(0.0, (busy - self._busy) - (own - self._own)) / (now - self._began)


def ride(way: str, batches: int) -> Ridden:
    """Measure one way on a new broker."""
    ridden = Ridden(way)
    began = time.monotonic()
    with EmbeddedKafka() as kafka, tempfile.TemporaryDirectory() as folder:
        limit_clients(kafka.bootstrap_servers)
        topics = Topics(kafka.bootstrap_servers)
        source, target = topics("in", PARTITIONS), topics("out", PARTITIONS)
        fill(kafka.bootstrap_servers, source, batches + 5)
        broker = psutil.Process(kafka.brokers[0].pid)
        with looking(broker.pid) as look, (Path(folder) / "log").open("w+") as log:
            first, others = look(collect=True) | {"broker_cpu": spent(broker)}, Others()
            command = [sys.executable, "-m", "bench.churn_ride", way, kafka.bootstrap_servers, source, target]
            environment = {**os.environ, "PYTHONPATH": str(TESTS)}
            process = subprocess.Popen(
                [*command, str(batches)], env=environment, cwd=folder, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
            try:
                for each in told(process, batches):
                    ridden.seconds.append(each["seconds"])
                    if each["batch"] % max(1, batches // LOOKS) and each["batch"] < batches:
                        continue
                    now = look(collect=True) | client(psutil.Process(process.pid)) | {"broker_cpu": spent(broker)}
                    for name in ("made", "names", "asked", "gc_ms", "looking_ms", "client_beans", "ids", "broker_cpu"):
                        now[name] -= first[name]
                    now["broker_cpu"] -= now["looking_ms"] / 1000
                    now |= {"batch": each["batch"], "heap_before": first["heap"]}
                    now |= {"producers": max(now["names"], now["asked"]), "broker_rss": broker.memory_info().rss}
                    ridden.looks.append(now)
                if len(ridden.seconds) < batches:
                    log.seek(0)
                    raise RuntimeError(f"{way} ended after {len(ridden.seconds)} batches:\n{log.read()}")
                ridden.others = others()
                process.communicate(timeout=START_LIMIT)
            finally:
                end(process)
    ridden.took = time.monotonic() - began
    return ridden


def told(process: subprocess.Popen[str], batches: int) -> Iterator[dict[str, Any]]:
    """Yield the client's report of each batch, up to the last batch."""
    if process.stdout is None:
        raise RuntimeError("the client process has no pipe")
    for line in process.stdout:
        if line.startswith("{"):
            report = json.loads(line)
            yield report
            if report["batch"] == batches:
                return


def end(process: subprocess.Popen[str]) -> None:
    """Kill the client process and its descendants."""
    if process.poll() is None:
        for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            try:
                each.kill()
            except psutil.NoSuchProcess:
                continue
    process.wait(30)


def main() -> None:
    """Measure every way in turn, then write the page; if a way fails, report it and measure the others."""
    ways = os.environ.get("CHURN_WAYS", ",".join(WAYS)).split(",")
    folder = Path(os.environ.get("CHURN_FOLDER", str(DOCS)))
    folder.mkdir(parents=True, exist_ok=True)
    found: list[Ridden] = []
    for way in ways:
        try:
            one = ride(way, BATCHES)
        except (RuntimeError, TimeoutError, subprocess.SubprocessError, TailraceError) as error:
            sys.stdout.write(f"{way} failed: {error}\n")
            sys.stdout.flush()
            continue
        found.append(one)
        keep(folder, found, BATCHES)
        last = one.looks[-1]
        sys.stdout.write(
            f"{way:<24} {one.took:6.0f} s  producers {last['producers']:.0f}  connections {last['made']:.0f}  beans "
            f"{last['client_beans']:.0f}  heap {last['heap_before'] / 2**20:.0f} → {last['heap'] / 2**20:.0f} MB  "
            f"others {one.others:.2f} cores\n"
        )
        sys.stdout.flush()
    if len(found) < len(ways):
        raise SystemExit(1)
    write(folder, sorted(found, key=lambda one: WAYS.index(one.way)), BATCHES)
    sys.stdout.write(f"written: {folder / 'churn.md'}\n")


if __name__ == "__main__":
    main()
