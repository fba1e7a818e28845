"""The watcher of a run: it informs the board with its lag, the executors' number, and the lease."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailrace.driver.follower import Follower
from tailrace.driver.scaler import Scaler
from tailrace.driver.shutdown import Stop
from tailrace.kafka.clients import TopicPartitions
from tailrace.progress.lease import Lease
from tailrace.status.events import Emit
from tailrace.status.snapshots import Finished


@dataclass(frozen=True)
class RunWatcher:
    """The watcher of a driver with a Spark session."""

    spark: SparkSession
    follower: Follower
    scaler: Scaler
    lease: Lease
    emit: Emit
    stop: Stop
    counts: bool  # whether batches are counted here: for a streaming query, Spark's own progress is

    def reading(self, positions: Callable[[], TopicPartitions], until: TopicPartitions | None = None) -> None:
        """Begin to measure the lag."""
        self.follower.stream(positions, until)

    def finished(self, batch: Finished) -> None:
        """Put a batch on the board."""
        self.follower.board.finished(batch)
        if self.counts:
            self.follower.board.counted(batch)

    def tick(self, query: StreamingQuery | None = None) -> None:
        """Put Spark's progress and the executors on the board, and scale them."""
        if query is not None:
            self.follower.look(query, self.scaler.wanted)
        else:
            self.follower.executors(self.scaler.wanted)
        self.scaler.look(self.spark, self.emit)
        if self.stop.event.is_set():
            self.stopping()

    def stopping(self) -> None:
        """Put on the board that a stop was requested."""
        self.follower.board.stopping()

    def left(self) -> None:
        """Leave the group of drivers, so that a standby takes over at once."""
        self.lease.close()
