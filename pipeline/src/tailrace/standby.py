"""Waiting beside a running driver, ready to go on the moment that it has gone.

What takes a start its seconds is done beforehand: the session, the executors' Python workers with all that they
import, Spark's own classes on the way of a batch, and every check that can refuse a pipeline. None of it writes
anything, and none of it runs the user's function on a record.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tailrace.assembly import Assembly
from tailrace.config import Pipeline
from tailrace.drain import Stop
from tailrace.errors import KafkaError, NotAuthorized, TailraceError
from tailrace.gateway import writer
from tailrace.kafka import Cluster
from tailrace.progress.lease import Holder, Lease, Phase, next_in_line, running
from tailrace.progress.ledger import Ledger
from tailrace.spark_stream.frame import rows as rows_of
from tailrace.spark_stream.gate import Gate
from tailrace.whole import whole

if TYPE_CHECKING:
    import pyarrow as pa

ASK_EVERY = 0.2
_WARM_EVERY = 25.0  # Spark ends a Python worker that was idle for a minute
_HOLD = 0.2  # seconds that a warming task keeps its worker, so that each slot gets one of its own
_NOTHING = "nothing boolean"


@dataclass(frozen=True)
class Standby:
    """A driver that has not got the pipeline yet."""

    spark: SparkSession
    pipeline: Pipeline
    warm: Callable[[], None]  # run the pipeline's stages on no record
    cluster: Cluster
    ledger: Ledger
    lease: Lease
    run: str
    emit: Callable[[dict[str, Any]], None]
    stop: Stop

    def wait(self) -> bool:
        """Make ready, say so, and wait; True when it is this driver's turn, False when it was told to stop."""
        self.ledger.latest()
        self.ledger.prepare()
        cold = []
        for step in (self._warm_workers, self.warm):
            if self.stop.event.is_set():
                return self._stopped()
            try:
                step()
            except (PySparkException, Py4JError, TailraceError) as problem:  # nothing but speed is lost
                cold.append(f"{type(problem).__name__}: {str(problem).splitlines()[0][:200]}")
        self.lease.hold(Phase.STANDBY)
        return self._turn(cold) or self._stopped()

    def _turn(self, cold: list[str]) -> bool:
        told, warmed = False, time.monotonic()
        while not self.stop.event.wait(ASK_EVERY if told else 0.02):
            if self.lease.problem is not None:  # never a member, so never its turn
                raise self.lease.problem
            try:
                holders = running(self.cluster, self.pipeline.pipeline)
            except NotAuthorized:
                raise
            except KafkaError:
                continue  # brokers that are away say nothing about the other driver, and neither could take over
            if not told and any(each.run == self.run for each in holders):
                told = True
                self._say(holders[0], cold)
            if next_in_line(holders, self.run):
                self.lease.hold(Phase.LEADING)
                return True
            if time.monotonic() - warmed > _WARM_EVERY:
                with contextlib.suppress(PySparkException, Py4JError):
                    self._warm_workers()
                warmed = time.monotonic()
        return False

    def _say(self, first: Holder, cold: list[str]) -> None:
        leader = {"run": first.run, "host": first.host} if first.phase is Phase.LEADING else None
        self.emit(
            {"event": "standby", "pipeline": self.pipeline.pipeline, "run": self.run, "leader": leader, "cold": cold}
        )

    def _stopped(self) -> bool:
        self.emit({"event": "stopped", "reason": self.stop.reason, "batch": None})
        return False

    # -- warming -----------------------------------------------------------------------------------

    def _warm_workers(self) -> None:
        """A Python worker in each slot, with all that a batch imports."""
        slots = self.spark.sparkContext.defaultParallelism
        self.spark.range(0, slots, 1, slots).mapInArrow(_hold, _NOTHING).collect()


def warm_stream(spark: SparkSession, assembly: Assembly) -> None:
    """Run a stateful pipeline's stages on no record at all: compiled by Spark, loaded by the workers."""
    rows_of(assembly, _nothing(spark), Gate.of(assembly.pipeline, None)).mapInArrow(_drain, _NOTHING).collect()


def _nothing(spark: SparkSession) -> DataFrame:
    """No record of Kafka's, in a form of which Spark cannot know that it is empty, so that it runs its tasks."""
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


def _drain(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take everything, give nothing; on the way, import what a writing task imports."""
    writer()
    for _ in whole(batches):
        pass
    return iter(())


def _hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    time.sleep(_HOLD)
    return _drain(batches)
