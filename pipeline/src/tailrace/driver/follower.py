"""Following one run: its HTTP port, its lag, its processes, and what Spark says of each batch.

Everything is asked from the thread that waits for the query's end, or from threads of their own; a batch never waits.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailrace.config import Pipeline
from tailrace.driver.scaling import SPARKS_OWN
from tailrace.kafka.clients import TopicPartitions
from tailrace.status.board import Board
from tailrace.status.events import Emit, Serving
from tailrace.status.lag import Lags
from tailrace.status.port import opened
from tailrace.status.snapshots import Progress
from tailrace.telemetry.vitals import Watch

_EXECUTORS_EVERY = 2.0
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)")


class Follower:
    """Tells the board what happens; does nothing where nobody is to watch."""

    def __init__(self, pipeline: Pipeline, board: Board) -> None:
        self.board = board
        self._pipeline = pipeline
        self._on = pipeline.metrics.enabled
        self._watch = Watch(board.measures, pipeline.pipeline, "driver", "driver-jvm", None)
        self._lags = Lags(pipeline, board.lag, board.retention)
        self._spark: SparkSession | None = None
        self._last = (-1, "")  # an idle stream tells of the batch that is to come, too
        self._asked = 0.0

    def session(self, spark: SparkSession) -> None:
        """The session is there."""
        if not self._on:
            return
        self._spark = spark
        with contextlib.suppress(Py4JError, PySparkException):
            jvm: Any = spark._jvm
            self._watch.jvm(int(jvm.java.lang.ProcessHandle.current().pid()))
            if spark.sparkContext.uiWebUrl:
                self.board.links["Spark"] = spark.sparkContext.uiWebUrl

    def stream(self, positions: Callable[[], TopicPartitions]) -> None:
        """The stream begins; `positions` is what was read."""
        if self._on:
            self._lags.start(positions)

    def look(self, query: StreamingQuery, wanted: int | None = None) -> None:
        """What Spark has said since the last look; `wanted` is the number of executors, where it is not a fixed one."""
        if not self._on:
            return
        with contextlib.suppress(Py4JError, PySparkException):  # a session that ends tells no more
            said: Any = query._jsq.recentProgress()
            new: list[Progress] = []
            last = self._last
            for number in range(len(said) - 1, -1, -1):
                key = (int(said[number].batchId()), str(said[number].timestamp()))
                if key == self._last:
                    break
                if not new:
                    last = key
                new.append(Progress.read(said[number].json()))
            self._last = last
            for progress in reversed(new):
                self.board.progressed(progress)
            self.executors(wanted)

    def executors(self, wanted: int | None) -> None:
        """Tell the board how many executors there are, not more often than makes sense."""
        if self._on and time.monotonic() - self._asked > _EXECUTORS_EVERY:
            self._asked = time.monotonic()
            with contextlib.suppress(Py4JError, PySparkException):
                self._executors(wanted)

    def _executors(self, wanted: int | None) -> None:
        if self._spark is None:
            return
        context: Any = self._spark.sparkContext
        master = str(context.master)
        if master.startswith("local") and not master.startswith("local-cluster"):
            self.board.executors(1, 1)
            return
        if wanted is None:
            cluster = _LOCAL_CLUSTER.match(master)
            told = None if cluster else context._conf.get("spark.executor.instances")
            wanted = int(cluster[1]) if cluster else int(told or SPARKS_OWN)
        known = int(context._jsc.sc().getExecutorMemoryStatus().size())
        self.board.executors(wanted, known - 1)  # the driver is one of those that Spark counts

    @contextlib.contextmanager
    def following(self, emit: Emit) -> Iterator[None]:
        """Serve, for as long as the run is inside."""
        if not self._on:
            yield
            return
        with opened(self._pipeline, self.board) as port:
            emit(Serving(f"http://{port.address}/"))
            self._watch.start()
            try:
                yield
            finally:
                self._watch.stop()
                self._lags.stop()
