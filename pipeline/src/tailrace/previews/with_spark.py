"""The engine of a preview with Spark, for a function from DataFrame to DataFrame, a condition, or a shuffle.

The frame is the driver's own (`tailrace.driver.frame`), over a leaf that reads the chosen records instead of Kafka, and
with a gate that hands rejected rows to the driver instead of the gateway. Each part of the records is a task. Without a
shuffle, the task that reads a record also yields its rows; behind a shuffle, a row's source is not known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from tailrace.config import Pipeline
from tailrace.driver import frame
from tailrace.driver.leaf import one_row_per_task
from tailrace.driver.spark_engine import SparkEngine
from tailrace.driver.spark_errors import failure
from tailrace.driver.task_reports import reports
from tailrace.errors import InvariantBroken
from tailrace.gateway.schemas import as_rows
from tailrace.kafka.reader import Message
from tailrace.previews.evaluation import Engine, batch
from tailrace.previews.model import Row
from tailrace.spark_stream.exact import EXACT
from tailrace.stages.assembly import Assembly
from tailrace.stages.decode import decode
from tailrace.stages.process import broken_rules, validate
from tailrace.stages.rules import aside
from tailrace.startup.run import assemble
from tailrace.startup.session import DEFAULTS, session

SHUFFLES = "the rows go through a shuffle, behind which outputs cannot be matched with their sources"
STATEFUL = "the pipeline keeps state, so outputs cannot be matched with their sources"
EMPTY = "the state begins empty, and windows are shown as after the last of these records"
_PART = "_part"
_JAVA = "spark.driver.extraJavaOptions"


@dataclass(frozen=True)
class _Leaf:
    """The tasks' side: reads the records of a part, and reports rejected rows to the driver."""

    parts: tuple[pa.RecordBatch, ...] = field(repr=False)
    rejected: Accumulator[list[Any]] = field(repr=False)

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records of this task's part."""
        for _ in batches:
            pass
        yield self.parts[_number()]

    def judge(self, batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        """Report rejected rows; yield for each row whether it was accepted."""
        found: list[dict[str, Any]] = []
        for each in batches:
            accepted, rejected, _ = aside(each)
            found += as_rows(rejected).to_pylist()
            yield accepted
        self.rejected.add([(_number(), found)])


def _number() -> int:
    context = TaskContext.get()
    if context is None:
        raise InvariantBroken("a task has no context")
    return context.partitionId()


@contextlib.contextmanager
def local(pipeline: Pipeline) -> Iterator[SparkSession]:
    """Start Spark in this process, without executors and without a web page, and stop it at the end."""
    quick = f"-XX:TieredStopAtLevel=1 {pipeline.spark.get(_JAVA, '')}"  # most of a short run is the start
    here = {"spark.master": "local[*]", "spark.ui.enabled": "false", _JAVA: quick.strip()}
    plain = {
        "spark": pipeline.spark | here,
        "executors": type(pipeline.executors)(),
        "checkpoint": "ledger",
        "metrics": pipeline.metrics.model_copy(update={"enabled": False}),
    }
    spark = session(pipeline.model_copy(update=plain))
    try:
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def borrowed(pipeline: Pipeline) -> Iterator[SparkSession]:
    """Yield a session with a run's SQL settings on the Spark of this process, whose own sessions stay as they are."""
    active = SparkSession.getActiveSession()
    spark = SparkSession.builder.getOrCreate().newSession()
    for name, value in {**DEFAULTS, **pipeline.spark, **EXACT}.items():
        if spark.conf.isModifiable(name):
            spark.conf.set(name, value)
    try:
        yield spark
    finally:
        if active is not None:
            active.createDataFrame([], "none INT")  # PySpark then takes this session for the thread's again


def engine(spark: SparkSession, pipeline: Pipeline, folder: Path, records: Sequence[Message]) -> Engine:
    """Load and analyse the function; raise what a start of the pipeline would raise."""
    assembly = assemble(spark, pipeline, folder)
    stateful = pipeline.checkpoint != "ledger"
    unmatched = STATEFUL
    if not stateful:
        unmatched = SHUFFLES if SparkEngine(spark, pipeline, assembly, "preview").cut.shuffles else ""

    def process(parts: Sequence[Sequence[int]]) -> list[list[Row]]:
        chosen = tuple(batch([records[number] for number in part]) for part in parts)
        try:
            return _rows(spark, assembly, chosen)
        except Exception as error:  # whatever Spark makes of an exception in a task
            raise failure(error, pipeline) from error

    def broken(chosen: Sequence[int]) -> list[tuple[int, ...]]:
        parts = (batch([records[number] for number in chosen]),)
        decoded = decode(_records(spark, _Leaf(parts, reports(spark))), pipeline.source, folder)
        found = validate(decoded, pipeline.process.validate_).select(broken_rules()).collect()
        return [tuple(row[0] or ()) for row in found]

    return Engine(process, broken, unmatched, (EMPTY,) if stateful else ())


def _records(spark: SparkSession, leaf: _Leaf) -> DataFrame:
    """Return the frame of the chosen records, a task for each part."""
    wanted = StructType([frame.RECORD[name] for name in frame.COLUMNS])
    return one_row_per_task(spark, len(leaf.parts)).mapInArrow(leaf.read, wanted)


def _rows(spark: SparkSession, assembly: Assembly, parts: tuple[pa.RecordBatch, ...]) -> list[list[Row]]:
    """Run a job with a task for each part, and return the rows of each."""
    leaf = _Leaf(parts, reports(spark))
    records = _records(spark, leaf)
    made = frame.rows(assembly, records, leaf.judge).withColumn(_PART, F.spark_partition_id()).collect()
    found: list[list[Row]] = [[] for _ in parts]
    # Behind a shuffle the number is that of a writing task; then there is one part, to which all rows belong.
    for row in made:
        found[row[_PART] if len(parts) > 1 else 0].append(Row.of(row.asDict(recursive=True)))
    for number, rejected in dict(leaf.rejected.value).items():  # a task that was repeated reports the same rows
        found[number] += [Row.of(each) for each in rejected]
    return found
