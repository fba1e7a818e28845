"""What each way of producing does to a broker and to its client: the scene of the first write-up.

Run it with `make bench-churn`; CHURN_BATCHES says how many batches (60), CHURN_WAYS which ways. Each way gets a broker
of its own, freshly started, and a process of its own; the same records, 64 partitions, a batch every 500 ms or as fast
as it can; nothing is tuned. The broker is looked at over JMX (Beans.java), the client through psutil. The table and the
plots are written to docs/benchmarks, or to CHURN_FOLDER, and beside them what was measured, churn.json;
`python -m bench.churn_report FOLDER` writes the page anew from that.
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
LOOKS = 10  # at the broker's heap after a collection
START_LIMIT = 120.0
TESTS = Path(__file__).parents[1]
DOCS = Path(__file__).parents[2] / "docs" / "benchmarks"


class Look:
    """A broker, over JMX."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, collect: bool = False) -> dict[str, float]:
        """Its counters now."""
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
    """Give every client a quota that none reaches: brokers keep metrics of each client where there are quotas."""
    classpath = os.pathsep.join(map(str, jars.ensure("kafka")))
    command = [str(jars.java()), "-cp", classpath, "kafka.admin.ConfigCommand", "--bootstrap-server", bootstrap]
    command += ["--alter", "--entity-type", "clients", "--entity-default"]
    command += ["--add-config", "producer_byte_rate=1000000000000,request_percentage=100000"]
    subprocess.run(command, check=True, capture_output=True, timeout=START_LIMIT)


def fill(bootstrap: str, topic: str, batches: int) -> None:
    """As many records as all batches take, the same number in each partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    for number in range(batches * PER_PARTITION):
        for partition in range(PARTITIONS):
            producer.produce(topic, VALUE, partition=partition)
        if number % 100 == 0:
            producer.flush(60)
    producer.flush(60)


def client(process: psutil.Process) -> dict[str, float]:
    """Threads, memory and CPU of a process and all below it."""
    threads = memory = 0
    for each in [process, *process.children(recursive=True)]:
        try:
            threads += each.num_threads()
            memory += each.memory_info().rss
        except psutil.Error:
            continue  # it has ended meanwhile
    return {"client_threads": threads, "client_rss": memory, "client_cpu": spent(process)}


def spent(process: psutil.Process) -> float:
    """Seconds of CPU of a process and all below it, those that have ended among them."""
    total = 0.0
    for each in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = each.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


class Others:
    """How busy the machine was with something else: cores, from the beginning on."""

    def __init__(self) -> None:
        self._began, self._busy, self._own = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        all_ = psutil.cpu_times()
        return time.monotonic(), sum(all_) - all_.idle - getattr(all_, "iowait", 0.0), spent(psutil.Process())

    def __call__(self) -> float:
        """Until now."""
        now, busy, own = self._now()
        return max(0.0, (busy - self._busy) - (own - self._own)) / (now - self._began)


def ride(way: str, batches: int) -> Ridden:
    """One way, from an empty broker to its end."""
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
    """What the ride says, batch by batch, until it has said enough."""
    if process.stdout is None:
        raise RuntimeError("the ride has no pipe")
    for line in process.stdout:
        if line.startswith("{"):
            said = json.loads(line)
            yield said
            if said["batch"] == batches:
                return


def end(process: subprocess.Popen[str]) -> None:
    """Nothing of a ride is left."""
    if process.poll() is None:
        for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            try:
                each.kill()
            except psutil.NoSuchProcess:
                continue
    process.wait(30)


def main() -> None:
    """Every way in turn, then the pages; a way that fails is said, and the others are measured all the same."""
    ways = os.environ.get("CHURN_WAYS", ",".join(WAYS)).split(",")
    folder = Path(os.environ.get("CHURN_FOLDER", str(DOCS)))
    folder.mkdir(parents=True, exist_ok=True)
    found: list[Ridden] = []
    for way in ways:
        try:
            one = ride(way, BATCHES)
        except (RuntimeError, TimeoutError, subprocess.SubprocessError, TailraceError) as error:
            sys.stdout.write(f"{way} has failed: {error}\n")
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
