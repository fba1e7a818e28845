"""The ways in which a Spark job may produce to Kafka, as the write-ups have them; none of this is in the product.

Each way is a function from a task's Arrow batches to nothing: it writes them and waits until they are there. What
differs is where the producer comes from. All are configured alike; each producer names itself by counting, as Java's
do. What is kept between tasks is kept by functions of this module: a closure's own globals are pickled with each task.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import queue
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import Producer

POOL = 4  # producers that a pool has at most
LIMIT = 60.0
# One process for all tasks of an executor would count in one row; Python has several, so each has its own.
_numbers = itertools.count(1)
_by_configuration: dict[frozenset[tuple[str, Any]], Producer] = {}
_pools: dict[frozenset[tuple[str, Any]], Pool] = {}

Configuration = dict[str, Any]


def producer(configuration: Configuration) -> Producer:
    """A new one, with librdkafka's defaults but for its name."""
    name = f"producer-{os.getpid()}-{next(_numbers)}"
    return Producer({**configuration, "client.id": name})


def send(batches: Iterator[Any], topic: str, to: Producer) -> None:
    """Write a task's records, and wait for the brokers' word."""
    for batch in batches:
        for value in batch.column("value").to_pylist():
            while True:
                try:
                    to.produce(topic, value)
                    break
                except BufferError:
                    to.poll(0.1)
        to.poll(0)
    if to.flush(LIMIT):
        raise TimeoutError(f"{len(to)} records were not acknowledged within {LIMIT:.0f} s")


class Lazy:
    """What is broadcast: a configuration, of which each process makes its producer when it needs it first."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._made: Producer | None = None

    def __reduce__(self) -> tuple[type[Lazy], tuple[Configuration]]:
        return Lazy, (self._configuration,)

    @property
    def producer(self) -> Producer:
        """The one of this process."""
        if self._made is None:
            self._made = producer(self._configuration)
        return self._made


def _singleton(configuration: Configuration) -> Producer:
    key = frozenset(configuration.items())
    if key not in _by_configuration:
        made = _by_configuration[key] = producer(configuration)
        atexit.register(made.flush, 5)
    return _by_configuration[key]


class Pool:
    """As commons-pool has it: the one that was given back last is lent first, and one is made when none is idle."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._idle: queue.LifoQueue[Producer] = queue.LifoQueue()
        self._made = 0

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[Producer]:
        """Inside, it is nobody else's."""
        if self._idle.empty() and self._made < POOL:
            self._made += 1
            self._idle.put(producer(self._configuration))
        lent = self._idle.get()
        try:
            yield lent
        finally:
            self._idle.put(lent)


def _pool(configuration: Configuration) -> Pool:
    key = frozenset(configuration.items())
    if key not in _pools:
        _pools[key] = Pool(configuration)
    return _pools[key]


def each_its_own(configuration: Configuration, topic: str, spark: Any) -> Callable[[Iterator[Any]], None]:
    """The documented way: a producer for each partition of each batch."""

    def write(batches: Iterator[Any]) -> None:
        send(batches, topic, producer(configuration))  # it ends with its last reference

    return write


def broadcast(configuration: Configuration, topic: str, spark: Any) -> Callable[[Iterator[Any]], None]:
    """Broadcast, and made on first use."""
    shared = spark.sparkContext.broadcast(Lazy(configuration))

    def write(batches: Iterator[Any]) -> None:
        send(batches, topic, shared.value.producer)

    return write


def singleton(configuration: Configuration, topic: str, spark: Any) -> Callable[[Iterator[Any]], None]:
    """A map of producers by configuration, with a hook at the process' end."""

    def write(batches: Iterator[Any]) -> None:
        send(batches, topic, _singleton(configuration))

    return write


def pool(configuration: Configuration, topic: str, spark: Any) -> Callable[[Iterator[Any]], None]:
    """Borrowed from a pool, and given back."""

    def write(batches: Iterator[Any]) -> None:
        with _pool(configuration).borrowed() as lent:
            send(batches, topic, lent)

    return write


PYTHON = {
    "per-partition": each_its_own,
    "broadcast": broadcast,
    "singleton": singleton,
    "pool": pool,
}
