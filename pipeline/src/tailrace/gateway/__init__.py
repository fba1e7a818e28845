"""The gateway: the process on each executor that owns its Kafka connections, and the types for talking to it.

Spark gives a task to any idle Python worker. Producers kept in the workers would be reused by only some of the tasks,
and every miss creates a new producer: that is how brokers were brought down. So a worker streams its rows to the
executor's gateway process (`server`) and gets back what was written.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tailrace.config import Delivery
from tailrace.progress.plan import BatchId, Range, SinkPartition
from tailrace.telemetry.garbage import Vitals


@dataclass(frozen=True)
class Assignment:
    """One sink partition of one batch: everything that a gateway needs to know."""

    pipeline: str
    batch: BatchId
    partition: SinkPartition
    sinks: int
    digest: str
    delivery: Delivery
    ledger: str
    topic: str | None
    rejected: str | None
    run: str
    topics: tuple[str, ...] = ()  # that rows may name; empty: any
    owner: str = ""  # the gateway that wrote this sink partition last; empty if unknown
    seen: bool = False  # the start has read a marker of it: if there is none now, it was deleted, and proves nothing
    at: float = 0.0  # when the batch was planned; 0 without a plan: its markers are younger, and expire later
    idle: float = 300.0  # seconds after which a producer that no task uses is closed
    planned: bool = True  # a plan in the ledger says what the sink partition gets
    by_content: bool = False  # no plan exists: the marker's digest is that of the rows
    attempt: str = ""  # the task attempt that reads; empty if it is another one, or Spark reads
    judges: bool = False  # rejected rows are handed over separately; with `verdicts`, only they are written
    verdicts: bool = False  # the sink partition holds a reading task's rejected records, upstream of a shuffle
    lost: tuple[Range, ...] = ()  # with `verdicts`: what that task does not read, because it no longer exists
    vitals: Vitals | None = None  # of the worker that sends the rows
    options: dict[str, Any] = field(repr=False, default_factory=dict)  # connection and producer: may hold secrets

    def __str__(self) -> str:
        return f"pipeline {self.pipeline!r} sink partition {self.partition} batch {self.batch}"


@dataclass(frozen=True)
class Written:
    """The outcome of one sink partition of a batch."""

    partition: SinkPartition
    skipped: bool
    out: int = 0
    rejected: int = 0
    size: int = 0
    fresh: bool = False  # a new producer was created for it
    commit_ms: float = 0.0
    gateway: str = ""  # the gateway process that wrote it
    address: str = ""  # where that gateway serves its metrics
    reasons: Mapping[str, int] = field(default_factory=dict)  # rejected records by reason
    judged: tuple[int, ...] = ()  # records that the rules have judged, then how many of them broke each rule
    read: int = 0  # records that were read for it
    read_size: int = 0  # bytes of their keys and values
    lost: tuple[str, ...] = ()  # planned ranges that no longer existed; `on_data_loss: reset` only


RECORD_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


@dataclass(frozen=True)
class ReadRequest:
    """Source ranges to read, one after another."""

    pipeline: str
    ranges: tuple[Range, ...]
    isolation: str
    reset: bool  # continue after offsets that no longer exist, and count them
    topics: Mapping[str, str] = field(default_factory=dict)  # those of the ranges, with the ids that they must have
    columns: tuple[str, ...] = RECORD_COLUMNS
    rows: int = 10_000  # at most, per Arrow batch
    share: int = 1  # queues that share the bound on prefetched data: the pipeline's source partitions, times the lanes
    lane: int = 0  # requests in one lane share a consumer; tasks reading the same source partition need different lanes
    options: dict[str, Any] = field(repr=False, default_factory=dict)  # connection and consumer: may hold secrets

    @property
    def key(self) -> Hashable:
        """The key of the consumer: requests with equal keys can share one."""
        options = frozenset((name, str(value)) for name, value in self.options.items())
        return self.pipeline, self.isolation, self.share, self.lane, options


@dataclass
class ReadDone:
    """What was read."""

    records: int = 0
    size: int = 0  # bytes of keys and values
    lost: tuple[Range, ...] = ()  # planned offsets that no longer exist


class Gateway(Protocol):
    """Carries the rows of one sink partition to Kafka."""

    def write(self, task: Assignment, batches: Iterator[Any]) -> Written:
        """Write all rows (Arrow batches with the layout of rows.ROW) in one transaction; skip them if the marker says
        that they are delivered."""


def connect() -> Gateway:
    """Return a client of this executor's gateway."""
    from tailrace.gateway.client import Client  # imports Arrow, so only when rows are written

    return Client()
