"""Monitoring of one run: its HTTP port, its lag, its processes, and Spark's progress reports.

All questions are asked by the thread that waits for the query's end, or by separate threads; a batch never waits.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import KafkaException
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailrace import errors
from tailrace.config import Pipeline
from tailrace.driver.scaling import SPARKS_OWN
from tailrace.kafka.clients import TopicPartitions
from tailrace.progress import last_error
from tailrace.status.board import Board
from tailrace.status.events import Emit, Serving
from tailrace.status.lag import Lags
from tailrace.status.port import opened
from tailrace.status.samples import Sampler, Samples
from tailrace.status.snapshots import Progress
from tailrace.telemetry.vitals import Watch

_EXECUTORS_EVERY = 2.0
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)")


class Follower:
    """Keeps the board up to date; does nothing if metrics are disabled."""

    def __init__(self, pipeline: Pipeline, board: Board) -> None:
        self.board = board
        self._pipeline = pipeline
        self._on = pipeline.metrics.enabled
        self._watch = Watch(board.measures, pipeline.pipeline, "driver", "driver-jvm", None)
        self._lags = Lags(pipeline, board.lag, board.retention)
        self._sampler = Sampler(pipeline, self._sampled)
        self._spark: SparkSession | None = None
        self._last = (-1, "")  # an idle stream also reports the batch to come
        self._asked = 0.0

    def session(self, spark: SparkSession) -> None:
        """Watch the session's JVM, and link to Spark's pages."""
        if not self._on:
            return
        self._spark = spark
        with contextlib.suppress(Py4JError, PySparkException):
            jvm: Any = spark._jvm
            self._watch.jvm(int(jvm.java.lang.ProcessHandle.current().pid()))
            if spark.sparkContext.uiWebUrl:
                self.board.links["Spark"] = spark.sparkContext.uiWebUrl

    def stream(self, positions: Callable[[], TopicPartitions], until: TopicPartitions | None = None) -> None:
        """Begin to measure the lag; `positions` returns what was read, and a backfill ends at `until`."""
        if self._on:
            self._lags.start(positions, until)
            self._sampler.start()

    def look(self, query: StreamingQuery, wanted: int | None = None) -> None:
        """Report Spark's progress since the last call; `wanted` is the number of executors, if it is not fixed."""
        if not self._on:
            return
        with contextlib.suppress(Py4JError, PySparkException):  # a session that is ending reports nothing
            reports: Any = query._jsq.recentProgress()
            new: list[Progress] = []
            last = self._last
            for number in range(len(reports) - 1, -1, -1):
                key = (int(reports[number].batchId()), str(reports[number].timestamp()))
                if key == self._last:
                    break
                if not new:
                    last = key
                new.append(Progress.read(reports[number].json()))
            self._last = last
            for progress in reversed(new):
                self.board.progressed(progress)
            self.executors(wanted)

    def executors(self, wanted: int | None) -> None:
        """Report the number of executors to the board, at most once in `_EXECUTORS_EVERY`."""
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
            configured = None if cluster else context._conf.get("spark.executor.instances")
            wanted = int(cluster[1]) if cluster else int(configured or SPARKS_OWN)
        known = int(context._jsc.sc().getExecutorMemoryStatus().size())
        self.board.executors(wanted, known - 1)  # Spark counts the driver too

    @contextlib.contextmanager
    def following(self, emit: Emit) -> Iterator[None]:
        """Serve and watch while the run is inside."""
        if not self._on:
            yield
            return
        with opened(self._pipeline, self.board) as port:
            emit(Serving(f"http://{port.address}/"))
            self._watch.start()
            recall = threading.Thread(target=self._recall, name="tailrace-recall", daemon=True)
            recall.start()
            try:
                yield
            finally:
                recall.join(2)
                self._watch.stop()
                self._lags.stop()
                self._sampler.stop()

    def _recall(self) -> None:
        """Put the error on the board that ended the run before; without an answer of the brokers there is none."""
        with contextlib.suppress(errors.TailraceError, KafkaException):
            found = last_error.read(self._pipeline)
            if found is not None:
                self.board.failed(found)

    def _sampled(self, samples: Samples) -> None:
        self.board.samples = samples
