"""What one run of a driver holds: made once when it starts, handed down as one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from pyspark.sql.streaming.query import StreamingQuery

from tailrace.config import Pipeline
from tailrace.driver.offset_mirror import OffsetMirror
from tailrace.driver.shutdown import Stop
from tailrace.kafka.clients import TopicPartitions
from tailrace.kafka.cluster import Cluster
from tailrace.progress.ledger import Ledger
from tailrace.stages.assembly import Assembly
from tailrace.status.events import Emit
from tailrace.status.snapshots import Finished


class Watcher(Protocol):
    """What the run keeps informed: the board with its lag, the executors' number, and the lease."""

    def reading(self, positions: Callable[[], TopicPartitions]) -> None:
        """Batches begin; `positions` returns what was read so far."""

    def finished(self, batch: Finished) -> None:
        """A batch is delivered."""

    def tick(self, query: StreamingQuery | None = None) -> None:
        """Look at everything that is not a batch; called a few times a second, with Spark's query if there is one."""

    def stopping(self) -> None:
        """No other batch begins."""

    def left(self) -> None:
        """Nothing is open any more: a standby may take over."""


class Unwatched:
    """A watcher for a run that nobody watches."""

    def reading(self, positions: Callable[[], TopicPartitions]) -> None:
        """Ignore it."""

    def finished(self, batch: Finished) -> None:
        """Ignore it."""

    def tick(self, query: StreamingQuery | None = None) -> None:
        """Ignore it."""

    def stopping(self) -> None:
        """Ignore it."""

    def left(self) -> None:
        """Ignore it."""


@dataclass(frozen=True)
class Context:
    """What a run holds, whoever plans its batches."""

    run: str
    pipeline: Pipeline
    assembly: Assembly
    cluster: Cluster
    ledger: Ledger
    mirror: OffsetMirror
    emit: Emit
    stop: Stop
    watcher: Watcher = field(default_factory=Unwatched)
