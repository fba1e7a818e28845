"""Independent readers: plain consumers that read a topic while it is written, and again at the end.

They share nothing with Tailrace but the address. Both must get the same records in the same order: what a
read_committed consumer has read must never change.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from faults.checker import Array, heads
from faults.records import HEAD
from tailrace.config import Kafka
from tailrace.errors import TopicUnknown
from tailrace.kafka.cluster import Cluster
from tailrace.testing import wait_until

Parse = Callable[[list[bytes]], Array]  # values to their heads

LIMIT = 120.0  # seconds without progress towards the end
_MANY = 10_000
_IDLE_MS = 500  # for which a reader that reads all the time waits for records: each fetch costs a broker CPU


class Reader:
    """One consumer of all partitions of a topic, from their beginnings; `finish` picks up new partitions."""

    def __init__(
        self, bootstrap: str, topic: str, keep: Callable[[list[Message]], object], isolation: str = "read_committed",
        wait_ms: int = 50,
    ) -> None:  # fmt: skip
        self._bootstrap = bootstrap
        self.topic = topic
        self._keep = keep
        self._isolation = isolation
        self._position: dict[int, int] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"faults-{uuid4().hex}",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "fetch.wait.max.ms": wait_ms,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._assign()

    def _assign(self) -> None:
        places = [(self.topic, number) for number in self._partitions() if number not in self._position]
        if places:
            begins = self._begins(places)
            self._position |= {number: begins[topic, number] for topic, number in places}
            at = self._position.items()
            self._consumer.assign([TopicPartition(self.topic, number, offset) for number, offset in at])

    def _begins(self, places: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Ask for the first offsets until every leader knows its partitions: a restarted one may not yet."""
        cluster = Cluster(Kafka(bootstrap_servers=self._bootstrap))

        def known() -> dict[tuple[str, int], int]:
            with suppress(TopicUnknown):
                return cluster.earliest(places)
            return {}

        return wait_until(known, f"the leaders of {self.topic} to know their first offsets", LIMIT, every=0.2)

    def _partitions(self) -> list[int]:
        def found() -> list[int]:
            with suppress(KafkaException):
                topic = self._consumer.list_topics(self.topic, timeout=10).topics[self.topic]
                return sorted(topic.partitions) if topic.error is None else []
            return []

        return wait_until(found, f"the partitions of {self.topic}", LIMIT, every=0.1)

    def step(self, wait: float = 0.2) -> None:
        """Read the records that are available."""
        good = []
        for message in self._consumer.consume(_MANY, wait):
            error = message.error()
            number, offset = message.partition() or 0, message.offset() or 0
            if error is None:
                good.append(message)
                self._position[number] = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                self._position[number] = max(self._position.get(number, 0), offset)
            elif error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:
                raise RuntimeError(f"records of {self.topic}-{number} vanished while they were read: {error}")
        if good:
            self._keep(good)

    def finish(self, limit: float = LIMIT) -> None:
        """Read to the current end of every partition at this isolation level."""
        self._assign()
        cluster = Cluster(Kafka(bootstrap_servers=self._bootstrap))
        places = [(self.topic, number) for number in self._position]
        ends = cluster.latest(places, committed=self._isolation == "read_committed")
        until = time.monotonic() + limit
        before = dict(self._position)
        while any(self._position[number] < end for (_, number), end in ends.items()):
            self.step()
            if self._position != before:
                before, until = dict(self._position), time.monotonic() + limit
            if time.monotonic() > until:
                raise TimeoutError(f"{self.topic}: nothing more came for {limit:g} s at {before}; it ends at {ends}")

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


class Heads:
    """Keep the heads of values by partition, in order."""

    def __init__(self, parse: Parse = heads) -> None:
        self._parse = parse
        self._parts: dict[int, list[Array]] = defaultdict(list)
        self.count = 0

    def __call__(self, messages: list[Message]) -> Array:
        """Add these messages; return their heads."""
        found = self._parse([message.value() or bytes(HEAD.itemsize) for message in messages])
        places = np.fromiter((message.partition() or 0 for message in messages), dtype=np.int64, count=len(messages))
        for number in np.unique(places).tolist():
            self._parts[number].append(found[places == number])
        self.count += len(messages)
        return found

    @property
    def seen(self) -> dict[int, Array]:
        """All heads so far."""
        return {number: np.concatenate(parts) for number, parts in list(self._parts.items())}


def read_heads(bootstrap: str, topic: str, isolation: str = "read_committed") -> dict[int, Array]:
    """Read the heads of a topic's records as a new consumer gets them now."""
    return read_into(Heads(), bootstrap, topic, isolation).seen


H = TypeVar("H", bound=Heads)


def read_into(kept: H, bootstrap: str, topic: str, isolation: str = "read_committed") -> H:
    """Pass every record of a topic to `kept`, as a new consumer gets them now; return it."""
    reader = Reader(bootstrap, topic, kept, isolation)
    try:
        reader.finish()
    finally:
        reader.close()
    return kept


class Watching:
    """A reader that reads all the time, in a thread."""

    def __init__(self, bootstrap: str, topic: str, parse: Parse = heads) -> None:
        self.kept = Heads(parse)
        self._reader = Reader(bootstrap, topic, self.kept, wait_ms=_IDLE_MS)
        self._end = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._read, name=f"watching {topic}", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while not self._end.is_set():
                self._reader.step()
        except Exception as error:
            self._error = error

    def finish(self) -> dict[int, Array]:
        """Read to the current end, and return everything that was read."""
        self._end.set()
        self._thread.join(LIMIT)
        if self._error is not None:
            raise self._error
        self._reader.finish()
        return self.kept.seen

    def close(self) -> None:
        """Stop the thread and close the consumer."""
        self._end.set()
        self._thread.join(LIMIT)
        self._reader.close()


@contextmanager
def watching(bootstrap: str, topic: str, parse: Parse = heads) -> Iterator[Watching]:
    """Read the topic while it is written."""
    reader = Watching(bootstrap, topic, parse)
    try:
        yield reader
    finally:
        reader.close()


def differences(one: dict[int, Array], other: dict[int, Array]) -> int:
    """Count the records that two readers of the same topic got differently."""
    found = 0
    for number in {*one, *other}:
        first, second = (each.get(number, np.empty(0, dtype=HEAD)) for each in (one, other))
        common = min(len(first), len(second))
        found += int((first[:common] != second[:common]).sum()) + abs(len(first) - len(second))
    return found


def exists(bootstrap: str, topic: str) -> bool:
    """Tell whether there is such a topic now; asking for it creates none."""
    return topic in AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).topics


def whole(bootstrap: str, topic: str, keep: Callable[[Message], Any], isolation: str = "read_uncommitted") -> None:
    """Pass every record of a small topic to `keep`."""

    def every(messages: list[Message]) -> None:
        for each in messages:
            keep(each)

    reader = Reader(bootstrap, topic, every, isolation)
    try:
        reader.finish()
    finally:
        reader.close()
