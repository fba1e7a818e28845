"""A reader of the gateway, and what tests do to the topics that it reads."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka import Producer

from support.expiry import expire
from tailrace.config import Kafka
from tailrace.gateway import ReadDone, ReadRequest
from tailrace.gateway.reading import Reader
from tailrace.kafka.clients import client_options
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.topics import topic_ids
from tailrace.progress.plan import Range
from tailrace.testing import Record, produce, wait_until


class Ticks:
    """A clock that goes on with each look at it, so that what a reader waits for does not depend on the machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        self.now += 0.05
        return self.now


@dataclass
class Reading:
    """A reader, and what tests do to the topics that it reads."""

    bootstrap: str
    request: ReadRequest
    limit: float = 30.0
    now: Callable[[], float] | None = None
    starts: list[tuple[str, int, int]] = field(default_factory=list)  # each fetch that began with a seek

    def __post_init__(self) -> None:
        extra = {"clock": self.now} if self.now else {}
        self.reader = Reader(self.request, limit=self.limit, **extra)  # type: ignore[arg-type]
        start = self.reader._consumer.start

        def begun(topic: str, partition: int, offset: int) -> None:
            self.starts.append((topic, partition, offset))
            start(topic, partition, offset)

        self.reader._consumer.start = begun  # type: ignore[method-assign]

    def batches(self, *ranges: Range, done: ReadDone | None = None, **others: Any) -> Iterator[Any]:
        """Read like a task."""
        return self.reader.read(replace(self.request, ranges=ranges, **others), done or ReadDone())

    def read(self, *ranges: Range, **others: Any) -> list[dict[str, Any]]:
        """Return all records of the ranges."""
        return [row for each in self.batches(*ranges, **others) for row in each.to_pylist()]

    def offsets(self, *ranges: Range, **others: Any) -> list[int]:
        """Return the offsets of the records in the ranges."""
        return [row["offset"] for row in self.read(*ranges, **others)]

    def end(self, topic: str, partition: int = 0) -> int:
        """Return where a plan would end now."""
        cluster = Cluster(Kafka(bootstrap_servers=self.bootstrap))
        return cluster.latest([(topic, partition)], self.request.isolation == "read_committed")[topic, partition]

    def fill(self, topic: str, count: int, partition: int = 0) -> None:
        """Write records whose values are their numbers."""
        records = [Record(b"%d" % number, partition=partition) for number in range(count)]
        produce(self.bootstrap, topic, records)

    def topic_id(self, topic: str) -> str:
        """Return the id that the topic has now."""
        return topic_ids(Cluster(Kafka(bootstrap_servers=self.bootstrap)).admin, [topic])[topic][0]

    def truncate(self, topic: str, before: int, partition: int = 0) -> None:
        """Delete the records before this offset."""
        expire(self.bootstrap, topic, before, partition)

    def transaction(self, topic: str, count: int, end: str) -> Producer:
        """Write records in a transaction, then commit it, abort it or leave it open."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": f"{topic}-{random.random()}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for number in range(count):
            producer.produce(topic, b"t%d" % number, partition=0)
        producer.flush(30)
        if end == "commit":
            producer.commit_transaction(30)
        elif end == "abort":
            producer.abort_transaction(30)
        if end in {"commit", "abort"}:  # the brokers answer before they have written the control records

            def ended() -> bool:
                cluster, place = Cluster(Kafka(bootstrap_servers=self.bootstrap)), (topic, 0)
                return cluster.latest([place], True) == cluster.latest([place])

            wait_until(ended, f"the end of the transaction in {topic}")
        return producer


def request_for(bootstrap: str, isolation: str = "read_committed", reset: bool = False) -> ReadRequest:
    """Return a request without ranges."""
    options = client_options(Kafka(bootstrap_servers=bootstrap))
    return ReadRequest("p", (), isolation, reset, options=options, share=4)
