"""Warm-up before the first batch: Python workers, what they import, and Spark's own classes.

A driver warms up while it reads its ledger, a standby while it waits. Nothing is written, the user's function is not
run on any record, and a failure costs only speed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tailrace.driver.shutdown import Stop
from tailrace.driver.warm_tasks import drain, hold
from tailrace.errors import TailraceError
from tailrace.spark_stream.frame import rows as rows_of
from tailrace.spark_stream.gate import Gate
from tailrace.stages.assembly import Assembly

log = logging.getLogger(__name__)

LOST = (PySparkException, Py4JError, TailraceError)  # what a step may raise: the pipeline runs anyway
_NOTHING = "nothing boolean"
_LOOK_EVERY = 0.1


class Warming:
    """Runs steps one after another in a separate thread while a driver starts."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._threads = ThreadPoolExecutor(1, "tailrace-warm")
        self._last: Future[None] | None = None
        self.then(lambda: workers(spark))

    def then(self, step: Callable[[], None]) -> None:
        """Add a step."""
        self._last = self._threads.submit(self._run, step)

    def _run(self, step: Callable[[], None]) -> None:
        try:
            step()
        except LOST as problem:
            log.info("not warm: %s: %s", type(problem).__name__, str(problem).partition("\n")[0])

    def done(self, stop: Stop) -> None:
        """Return when all steps are done; if a stop is requested, cancel what is running."""
        self._threads.shutdown(wait=False, cancel_futures=False)
        while self._last is not None and not wait([self._last], _LOOK_EVERY).done:
            if stop.event.is_set():
                self._threads.shutdown(wait=False, cancel_futures=True)
                self._spark.sparkContext.cancelAllJobs()
                return


def workers(spark: SparkSession) -> None:
    """Start a Python worker in each slot, with all that a batch imports, and the gateway."""
    slots = spark.sparkContext.defaultParallelism
    spark.range(0, slots, 1, slots).mapInArrow(hold, _NOTHING).collect()


def stream(spark: SparkSession, assembly: Assembly) -> None:
    """Run a stateful pipeline's stages on no records, so that Spark compiles them and the workers load them."""
    rows_of(assembly, _nothing(spark), Gate.of(assembly.pipeline, None)).mapInArrow(drain, _NOTHING).collect()


def _nothing(spark: SparkSession) -> DataFrame:
    """Return a frame of no Kafka records that Spark cannot know to be empty, so that it runs the tasks."""
    text = F.col("id").cast("string")
    rows = spark.range(0, 2, 1, 2).where("id < 0")
    return rows.select(
        text.cast("binary").alias("key"),
        text.cast("binary").alias("value"),
        text.alias("topic"),
        F.col("id").cast("int").alias("partition"),
        F.col("id").alias("offset"),
        F.timestamp_millis("id").alias("timestamp"),
        F.col("id").cast("int").alias("timestampType"),
        F.array(F.struct(text.alias("key"), text.cast("binary").alias("value"))).alias("headers"),
    )
