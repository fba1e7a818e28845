"""One gateway without Spark, on brokers behind the proxy: batches that are retried as Spark does it, and the proof."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from support.kafkaproxy import ProxiedKafka
from tailrace.config import Delivery, Kafka
from tailrace.errors import TailraceError
from tailrace.gateway import Assignment, Written
from tailrace.gateway.markers import MarkerReader
from tailrace.gateway.schemas import ROW_SCHEMA
from tailrace.gateway.writing import Deliveries
from tailrace.kafka.clients import client_options
from tailrace.kafka.cluster import Cluster
from tailrace.progress.ledger_topic import LEDGER_SETTINGS
from tailrace.progress.marker import Marker, transactional_id
from tailrace.progress.plan import BatchId, SinkPartition
from tailrace.testing import Topics, consume, wait_until

ATTEMPTS = 4  # Spark's own number
Batches = Callable[[], Iterator[Any]]


def rows(values: list[bytes]) -> Any:
    """Return plain records in the sink's row layout."""
    return pa.RecordBatch.from_pylist(
        [dict.fromkeys(ROW_SCHEMA.names) | {"value": value} for value in values], ROW_SCHEMA
    )


@dataclass
class Line:
    """A pipeline's only sink partition: its gateway goes through the proxy, its proof does not."""

    kafka: ProxiedKafka
    sink: str
    ledger: str
    pipeline: str
    options: dict[str, Any] = field(default_factory=dict)
    gateway: Deliveries = field(default_factory=lambda: Deliveries("the gateway of the test"))
    failures: list[str] = field(default_factory=list)

    @classmethod
    def on(cls, kafka: ProxiedKafka, **options: Any) -> Line:
        """Create one with topics of its own."""
        topics, name = Topics(kafka.bootstrap_servers), f"n-{uuid.uuid4().hex[:8]}"
        ledger = f"{name}.ledger"
        Cluster(Kafka(bootstrap_servers=kafka.bootstrap_servers)).ensure(ledger, 4, -1, LEDGER_SETTINGS)
        return cls(kafka, topics("out", 1), ledger, name, options)

    @property
    def transaction(self) -> str:
        """Return the transactional id."""
        return transactional_id(self.pipeline, SinkPartition(0))

    def task(self, batch: int, *, direct: bool = False) -> Assignment:
        """Return the assignment of a batch's task."""
        servers = self.kafka.bootstrap_servers if direct else self.kafka.proxied_servers
        return Assignment(
            pipeline=self.pipeline,
            batch=BatchId(batch),
            partition=SinkPartition(0),
            sinks=1,
            digest=f"digest of {batch}",
            delivery=Delivery.EXACTLY_ONCE,
            ledger=self.ledger,
            topic=self.sink,
            rejected=None,
            run="run",
            options=client_options(Kafka(bootstrap_servers=servers)) | self.options,
        )

    def once(self, batch: int, batches: Batches | None = None) -> Written:
        """Run one attempt of a task."""
        return self.gateway.write(self.task(batch), (batches or (lambda: iter([rows(self.values(batch))])))())

    def write(self, batch: int, batches: Batches | None = None) -> Written:
        """Run a task, with as many attempts as Spark makes, and record the failures."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self.once(batch, batches)
            except TailraceError as error:
                self.failures.append(f"batch {batch}, attempt {attempt}: {error}")
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError

    def values(self, batch: int, count: int = 10) -> list[bytes]:
        """Return the records of a batch."""
        return [b"%d-%03d" % (batch, number) for number in range(count)]

    def read(self, isolation: str = "read_committed") -> list[bytes | None]:
        """Return what an independent reader finds; a commit is acknowledged a moment before it is visible."""
        if isolation == "read_committed":
            self.ended()
        return [each.value for each in consume(self.kafka.bootstrap_servers, self.sink, isolation=isolation)]

    def arrived(self, values: list[bytes]) -> None:
        """Wait until these have reached the broker, committed or not."""
        wait_until(lambda: set(values) <= set(self.read("read_uncommitted")), f"{len(values)} records to arrive", 60)

    def marker(self) -> Marker | None:
        """Return the marker, read past the proxy."""
        reader = MarkerReader(self.task(0, direct=True))
        try:
            return reader.markers([0], "the test").get(0)
        finally:
            reader.close()

    def open(self) -> bool:
        """Return whether a transaction is open on the sink topic."""
        cluster, place = Cluster(Kafka(bootstrap_servers=self.kafka.bootstrap_servers)), [(self.sink, 0)]
        return cluster.latest(place) != cluster.latest(place, committed=True)

    def ended(self) -> None:
        """Wait until no transaction is open."""
        wait_until(lambda: not self.open(), "the end of a transaction")

    def close(self) -> None:
        """Close the gateway's producers."""
        for cache in self.gateway.caches().values():
            cache.close()


@contextmanager
def connected(network: ProxiedKafka) -> Iterator[Line]:
    """Give a sink partition whose gateway connects through the proxy; at the end, nothing is held back any more."""
    one = Line.on(network)
    yield one
    network.proxy.heal()
    one.close()


class Older(Line):
    """Another executor's gateway for the same sink partition; its requests are known by its client id."""

    def __init__(self, line: Line) -> None:
        self.client = f"older-{line.pipeline}"
        super().__init__(line.kafka, line.sink, line.ledger, line.pipeline, {"client.id": self.client})

    def __enter__(self) -> Older:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
