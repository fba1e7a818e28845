"""Latency, from the call that produces a record until a read_committed consumer sees its output.

Each record holds the time of its produce call; the observer takes the time right after the poll that returned it. Both
use the same machine's clock. One run of a side measures every rate in turn, each after a warm-up that is not counted.
"""

from __future__ import annotations

import threading
import time
from uuid import uuid4

import numpy as np
from confluent_kafka import Consumer, TopicPartition

from bench.counting import check, tally
from bench.feeding import STAMP, feeder, probe, topic
from bench.figures import Measured
from bench.processes import between, spark_cpu
from bench.sides import BenchFailed, Side, Stand
from bench.steps import steps
from bench.workloads import LATENCY, LATENCY_PARTITIONS, NATIVE, RATES
from tailrace.testing import wait_until
from tailrace.testing.records import QUIET

START_LIMIT = 180.0
ARRIVE_LIMIT = 180.0
FEEDER_LIMIT = 60.0
LEAD = 2.0  # seconds for the feeder to start
PERCENTILES = tuple(range(1, 100))
_STAMPED = np.dtype([("sent", ">f8"), ("number", ">i8")])


class Observer:
    """A consumer that notes when each record was sent and when it was seen."""

    def __init__(self, bootstrap: str, target: str, partitions: int) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"bench-{uuid4().hex}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                **QUIET,
            }
        )
        self._consumer.assign([TopicPartition(target, number, 0) for number in range(partitions)])
        self._parts: list[tuple[float, bytes]] = []  # when some records were seen, and their stamps
        self._ended = threading.Event()
        self.seen = 0
        self.error = ""
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(FEEDER_LIMIT)
        self._consumer.close()

    def _watch(self) -> None:
        while not self._ended.is_set():
            first = self._consumer.poll(0.1)
            if first is None:
                continue
            # Take what came with it at once; waiting for more would count as latency.
            messages = [first, *self._consumer.consume(5_000, 0)]
            now = time.time()
            bad = next((each.error() for each in messages if each.error() is not None), None)
            if bad is not None:
                self.error = str(bad)
                return
            self._parts.append((now, b"".join((each.value() or b"")[: STAMP.size] for each in messages)))
            self.seen += len(messages)

    def records(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the number of each record seen, when it was sent, and when it was seen."""
        parts = list(self._parts)
        stamps = np.frombuffer(b"".join(part for _, part in parts), dtype=_STAMPED)
        seen = np.repeat([at for at, _ in parts], [len(part) // STAMP.size for _, part in parts])
        return stamps["number"].astype(np.int64), stamps["sent"].astype(float), seen


def measure(stand: Stand, variant: str, number: int) -> list[Measured]:
    """Run one side at each rate."""
    found = []
    with (
        topic(stand.bootstrap, "in", LATENCY_PARTITIONS) as source,
        topic(stand.bootstrap, "out", LATENCY_PARTITIONS) as target,
        stand.running(LATENCY, variant, source, target) as side,
        Observer(stand.bootstrap, target, LATENCY_PARTITIONS) as observer,
    ):
        probe(stand.bootstrap, source, LATENCY_PARTITIONS)
        _arrive(observer, side, LATENCY_PARTITIONS, START_LIMIT)
        first = 0
        for name, rate in RATES.items():
            found.append(_stage(stand, side, observer, name, rate, first, source, number))
            first += int(rate * (stand.scale.warm_seconds + stand.scale.seconds))
        side.stop()
        numbers, _, _ = observer.records()
        written = tally(numbers[numbers >= 0], np.ones(first, dtype=bool))
        check(written, first, variant, exactly=variant != NATIVE)
    return found


def _stage(
    stand: Stand, side: Side, observer: Observer, name: str, rate: int, first: int, source: str, number: int
) -> Measured:
    scale = stand.scale
    at, all_ = time.time() + LEAD, scale.warm_seconds + scale.seconds
    begin, end = at + scale.warm_seconds, at + all_
    load = feeder(stand.bootstrap, source, LATENCY_PARTITIONS, rate=rate, seconds=all_, first=first, at=at)
    with load as process:
        _sleep(begin, side)
        before = side.look()
        _sleep(end, side)
        after = side.look()
        output, _ = process.communicate(timeout=FEEDER_LIMIT)
    if process.returncode:
        raise BenchFailed(f"the load at {rate} records/s ended with exit code {process.returncode}")
    sent, took = output.split()
    _arrive(observer, side, LATENCY_PARTITIONS + first + int(sent), ARRIVE_LIMIT)
    numbers, stamps, seen = observer.records()
    counted = (numbers >= first) & (stamps >= begin)
    latency = (seen - stamps)[counted] * 1000
    used = between(before, after)
    each = used.per_record(rate * used.seconds)
    curve = [float(value) for value in np.percentile(latency, PERCENTILES)]
    values = {"p50": curve[49], "p99": curve[98], "cpu": spark_cpu(each), "fed": float(sent) / float(took)}
    spent = steps(side.events, before.at, after.at) if side.variant != NATIVE else {}
    return Measured(name, side.variant, number, values, each, used.others, curve, spent)


def _sleep(until: float, side: Side) -> None:
    while (left := until - time.time()) > 0:
        side.check()
        time.sleep(min(left, 1.0))


def _arrive(observer: Observer, side: Side, count: int, limit: float) -> None:
    """Wait until the observer has seen this many records in all."""

    def seen() -> int:
        side.check()
        if observer.error:
            raise BenchFailed(f"the observer of {side.variant}: {observer.error}")
        return observer.seen if observer.seen >= count else 0

    wait_until(seen, f"{count} records through {side.variant}; {observer.seen} had arrived at first", limit)
