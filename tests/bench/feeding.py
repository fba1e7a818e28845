"""The load generator: topics filled in advance, and records at a steady rate from a separate process.

The producer has the client's defaults (no compression, linger 5 ms). `python -m bench.feeding …` is the steady load:
its rate must not depend on what the benchmark does meanwhile.
"""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from bench.workloads import SIZE, Workload
from tailrace.testing import Topics
from tailrace.testing.records import QUIET

FLUSH_LIMIT = 120.0
TOPIC_LIMIT = 30.0
TICK = 0.001  # seconds that the steady producer sleeps between bursts
STAMP = struct.Struct("!dq")  # when a record was sent, and its number
_REST = b"x" * (SIZE - STAMP.size)


def stamped(number: int) -> bytes:
    """Return a record that holds the time when it was sent."""
    return STAMP.pack(time.time(), number) + _REST


@contextlib.contextmanager
def topic(bootstrap: str, name: str, partitions: int) -> Iterator[str]:
    """Create a topic and delete it afterwards, so that disks and page caches hold what is measured now."""
    made = Topics(bootstrap)(name, partitions)
    try:
        yield made
    finally:
        admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})  # its futures need it alive
        admin.delete_topics([made])[made].result(TOPIC_LIMIT)


def fill(bootstrap: str, name: str, workload: Workload, count: int) -> None:
    """Write the workload's first `count` records, in turn to each partition."""
    _produce(bootstrap, name, count, lambda number: (workload.record(number), number % workload.partitions))


def probe(bootstrap: str, name: str, partitions: int) -> None:
    """Write one record with a negative number to each partition."""
    _produce(bootstrap, name, partitions, lambda number: (stamped(-1 - number), number))


def _produce(bootstrap: str, name: str, count: int, each: Callable[[int], tuple[bytes, int]]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **QUIET})
    for number in range(count):
        value, partition = each(number)
        while True:
            try:
                producer.produce(name, value, partition=partition)
                break
            except BufferError:
                producer.poll(0.1)
    left = producer.flush(FLUSH_LIMIT)
    if left:
        raise TimeoutError(f"waited {FLUSH_LIMIT:.0f} s for {left} of {count} records to be acknowledged")


@contextlib.contextmanager
def feeder(
    bootstrap: str, name: str, partitions: int, *, rate: int, seconds: float, first: int, at: float
) -> Iterator[subprocess.Popen[str]]:
    """Start a process that writes `rate` records per second from the time `at` on, with numbers from `first` on."""
    given = [bootstrap, name, *map(str, (partitions, rate, seconds, first, at))]
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.feeding", *given], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(FLUSH_LIMIT)
        if process.stdout is not None:
            process.stdout.close()


def steady(
    bootstrap: str, name: str, partitions: int, rate: int, seconds: float, first: int, at: float
) -> tuple[int, float]:
    """Write at a steady rate; return the number of records and the seconds taken."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **QUIET})
    producer.list_topics(name, TOPIC_LIMIT)
    count, sent = int(rate * seconds), 0
    while sent < count:
        due = min(count, int((time.time() - at) * rate))
        while sent < due:
            producer.produce(name, stamped(first + sent), partition=sent % partitions)
            sent += 1
        producer.poll(0)
        time.sleep(TICK)
    took = time.time() - at
    left = producer.flush(FLUSH_LIMIT)
    if left:
        raise TimeoutError(f"waited {FLUSH_LIMIT:.0f} s for {left} of {count} records to be acknowledged")
    return sent, took


def main(bootstrap: str, name: str, *numbers: str) -> None:
    """Write, and print the number of records and the seconds taken."""
    partitions, rate, seconds, first, at = map(float, numbers)
    sent, took = steady(bootstrap, name, int(partitions), int(rate), seconds, int(first), at)
    sys.stdout.write(f"{sent} {took}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
