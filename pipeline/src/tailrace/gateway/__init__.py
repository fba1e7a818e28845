"""Who owns the producers and carries rows to Kafka: one process on each executor, and the way to it.

Spark gives a task to any idle Python worker, so producers that live in the workers are found again in a part of the
tasks only, and every miss is a new producer: that is how brokers were brought down. So a worker streams its rows to the
executor's writer process (`host`) and gets back what was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tailrace.config import Delivery
from tailrace.progress.plan import BatchId, SinkPartition
from tailrace.telemetry.garbage import Vitals


@dataclass(frozen=True)
class Assignment:
    """One sink partition of one batch: all that a writer needs to know."""

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
    owner: str = ""  # the writer that has written this sink partition last; empty where nobody knows
    idle: float = 300.0  # seconds after which a producer that no task uses is closed
    by_content: bool = False  # no plan exists: the marker's digest is that of the rows
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
    writer: str = ""  # the writer process that did it
    address: str = ""  # where its metrics are
    reasons: Mapping[str, int] = field(default_factory=dict)  # of the rejected


class Writer(Protocol):
    """Carries the rows of one sink partition to Kafka."""

    def write(self, task: Assignment, batches: Iterator[Any]) -> Written:
        """Write all rows (Arrow batches in the shape of rows.ROW) in one transaction, or skip them if its marker says
        that they are delivered."""


def writer() -> Writer:
    """The writer of this executor."""
    from tailrace.gateway.client import Client  # imports Arrow: only where rows are written

    return Client()
