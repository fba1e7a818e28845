"""Who owns the producers and carries rows to Kafka: one process on each executor, and the way to it.

Spark gives a task to any idle Python worker, so producers that live in the workers are found again in a part of the
tasks only, and every miss is a new producer: that is how brokers were brought down. So a worker streams its rows to the
executor's gateway process (`host`) and gets back what was written.
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
    """One sink partition of one batch: all that a gateway needs to know."""

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
    owner: str = ""  # the gateway that has written this sink partition last; empty where nobody knows
    idle: float = 300.0  # seconds after which a producer that no task uses is closed
    by_content: bool = False  # no plan exists: the marker's digest is that of the rows
    attempt: str = ""  # the task attempt that reads and writes; empty where other tasks read
    judges: bool = False  # rejected rows come aside; with `verdicts`, they are all that is written
    verdicts: bool = False  # the sink partition holds the rejected records of a reading task, behind a shuffle
    vitals: Vitals | None = None  # of the worker that sends the rows
    options: dict[str, Any] = field(repr=False, default_factory=dict)  # connection and producer: may hold secrets

    def __str__(self) -> str:
        return f"pipeline {self.pipeline!r} sink partition {self.partition} batch {self.batch}"


@dataclass(frozen=True)
class Written:
    """What became of one sink partition of a batch."""

    partition: SinkPartition
    skipped: bool
    out: int = 0
    rejected: int = 0
    size: int = 0
    fresh: bool = False  # a producer was created for it
    commit_ms: float = 0.0
    gateway: str = ""  # the gateway process that did it
    address: str = ""  # where its metrics are
    reasons: Mapping[str, int] = field(default_factory=dict)  # of the rejected
    read: int = 0  # records that were read for it
    read_size: int = 0  # bytes of their keys and values
    lost: tuple[str, ...] = ()  # planned ranges that no longer existed, where `on_data_loss: reset` allows that


RECORD_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


@dataclass(frozen=True)
class ReadRequest:
    """Source ranges to read, one after another."""

    pipeline: str
    ranges: tuple[Range, ...]
    isolation: str
    reset: bool  # go on behind offsets that no longer exist, and count them
    columns: tuple[str, ...] = RECORD_COLUMNS
    rows: int = 10_000  # of one Arrow batch, at most
    share: int = 1  # source partitions of the pipeline: the bound on prefetched data is shared between them
    lane: int = 0  # requests of one lane share a consumer; tasks that read parts of one source partition must not
    options: dict[str, Any] = field(repr=False, default_factory=dict)  # connection and consumer: may hold secrets

    @property
    def key(self) -> Hashable:
        """Requests of one key can share a consumer."""
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
        """Write all rows (Arrow batches in the shape of rows.ROW) in one transaction, or skip them if its marker says
        that they are delivered."""


def connect() -> Gateway:
    """The gateway of this executor."""
    from tailrace.gateway.client import Client  # imports Arrow: only where rows are written

    return Client()
