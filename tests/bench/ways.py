"""The common ways for a Spark job to produce to Kafka, for the churn benchmark; none of them is in the product.

Each way is a function of a task's Arrow batches that writes them and waits until they are acknowledged. The ways differ
in where the producer comes from. All have the same configuration, and producers are numbered, as Java's are. State
between tasks is kept by functions of this module, because a closure's own globals are pickled with each task.
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

POOL = 4  # maximum number of producers in a pool
LIMIT = 60.0
# Python has several processes per executor, so each has its own counter.
_numbers = itertools.count(1)
_by_configuration: dict[frozenset[tuple[str, Any]], Producer] = {}
_pools: dict[frozenset[tuple[str, Any]], Pool] = {}

Configuration = dict[str, Any]


def producer(configuration: Configuration) -> Producer:
    """Make a producer with librdkafka's defaults, except for its name."""
    name = f"producer-{os.getpid()}-{next(_numbers)}"
    return Producer({**configuration, "client.id": name})


def send(batches: Iterator[Any], topic: str, to: Producer) -> None:
    """Write a task's records, and wait until all are acknowledged."""
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
    """The broadcast value: a configuration from which each process makes its producer on first use."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._made: Producer | None = None

    def __reduce__(self) -> tuple[type[Lazy], tuple[Configuration]]:
        return Lazy, (self._configuration,)

    @property
    def producer(self) -> Producer:
        """The producer of this process."""
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
    """A pool like commons-pool: it lends the last producer returned first, and makes one if none is idle."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._idle: queue.LifoQueue[Producer] = queue.LifoQueue()
        self._made = 0

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[Producer]:
        """Borrow a producer exclusively."""
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
    """Make a producer for each partition of each batch, the documented way."""

    def write(batches: Iterator[Any]) -> None:
        send(batches, topic, producer(configuration))  # it ends with its last reference

    return write


def broadcast(configuration: Configuration, topic: str, spark: Any) -> Callable[[Iterator[Any]], None]:
    """Broadcast the producer's configuration, and make the producer on first use."""
    shared = spark.sparkContext.broadcast(Lazy(configuration))

    def write(batches: Iterator[Any]) -> None:
        send(batches, topic, shared.value.producer)

    return write


def singleton(configuration: Configuration, topic: str, spark: Any) -> Callable[[Iterator[Any]], None]:
    """Keep a map of producers by configuration, with a hook at process exit."""

    def write(batches: Iterator[Any]) -> None:
        send(batches, topic, _singleton(configuration))

    return write


def pool(configuration: Configuration, topic: str, spark: Any) -> Callable[[Iterator[Any]], None]:
    """Borrow a producer from a pool, and return it."""

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
