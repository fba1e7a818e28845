"""The context of one run: made once when it starts, passed down as one value."""

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

RENEW_EVERY = 3600.0


class Watcher(Protocol):
    """What the run keeps informed: the board with its lag, the executors' number, and the lease."""

    def reading(self, positions: Callable[[], TopicPartitions], until: TopicPartitions | None = None) -> None:
        """Take note that batches begin; `positions` returns what was read so far, and a backfill ends at `until`."""

    def finished(self, batch: Finished) -> None:
        """Take note of a delivered batch."""

    def tick(self, query: StreamingQuery | None = None) -> None:
        """Check everything other than the batch; called a few times a second, with Spark's query if there is one."""

    def stopping(self) -> None:
        """Take note that no other batch begins."""

    def left(self) -> None:
        """Let a standby take over: nothing is open any more."""


class Unwatched:
    """A watcher that ignores everything."""

    def reading(self, positions: Callable[[], TopicPartitions], until: TopicPartitions | None = None) -> None:
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
    """Everything that a run needs, whether Spark or the driver plans its batches."""

    run: str
    pipeline: Pipeline
    assembly: Assembly
    cluster: Cluster
    ledger: Ledger
    mirror: OffsetMirror
    emit: Emit
    stop: Stop
    watcher: Watcher = field(default_factory=Unwatched)
    renew_every: float = RENEW_EVERY  # seconds between the questions of an idle driver whether it still leads
