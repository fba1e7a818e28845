"""The drop-in sink for Spark jobs: `format("tailrace")`, and `foreachBatch(exactly_once(...))`.

It is for jobs that use nothing else of Tailrace. Option names follow Spark's Kafka sink, so that migrating changes one
word. A batch job is exactly once per run, and across repeated runs if it has an `id`. A streaming job keeps its own
durable checkpoint folder; its query's id replaces the pipeline's name. docs/decisions/0002 states what each promises.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tailrace import errors
from tailrace.driver.input_end import InputEnd
from tailrace.gateway import Assignment, Written, connect
from tailrace.progress.plan import BatchId, SinkPartition
from tailrace.spark_stream.planned_sink import exactly_once as exactly_once
from tailrace.spark_stream.sink_options import Target, rows_of

if TYPE_CHECKING:
    Batches = Iterator[pa.RecordBatch]


@dataclass
class Answer(WriterCommitMessage):
    """What a task reports to the driver."""

    written: Written


class _Writing:
    """What batch and streaming writers share."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.run = uuid.uuid4().hex[:12]
        self.end = InputEnd()

    def _write(self, name: str, batch: int, digest: str, batches: Batches, content: str) -> Answer:
        context = TaskContext.get()
        if context is None:
            raise errors.InvariantBroken("the sink runs outside a Spark task")
        task = Assignment(
            pipeline=name,
            batch=BatchId(batch),
            partition=SinkPartition(context.partitionId()),
            sinks=0,
            digest=digest,
            delivery=self.target.delivery,
            ledger=self.target.ledger,
            topic=self.target.topic,
            rejected=self.target.rejected,
            run=self.run,
            planned=False,
            by_content=content == "by-content",
            options=self.target.options,
        )
        return Answer(connect().write(task, rows_of(self.end.complete(batches))))


class BatchWriter(_Writing, DataSourceArrowWriter):
    """`df.write.format("tailrace")`: one batch. With an `id`, a repeated run skips what was already delivered."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.name = target.id or f"batch-{self.run}"

    def write(self, iterator: Batches) -> Answer:
        """Write one sink partition."""
        content = "by-content" if self.target.id and not self.target.by_number else "by-number"
        return self._write(self.name, 0, f"batch {self.name}", iterator, content)


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """`df.writeStream.format("tailrace")`."""

    def write(self, iterator: Batches) -> Answer:
        """Write one sink partition of one batch."""
        context = TaskContext.get()
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        query = self.target.id or (context.getLocalProperty("sql.streaming.queryId") if context else None)
        if batch is None or query is None:
            raise errors.InvariantBroken("Spark does not say which batch of which query this is")
        content = "by-number" if self.target.by_number else "by-content"
        return self._write(query, int(batch), f"query {query}", iterator, content)


class TailraceSource(DataSource):
    """`format("tailrace")`, for writing."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._target = Target.of(options)

    @classmethod
    def name(cls) -> str:
        """Return the name used in `format(...)`."""
        return "tailrace"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of a batch job."""
        if overwrite:
            raise errors.OptionRefused("a topic cannot be overwritten", then='use mode("append")')
        return BatchWriter(self._ready(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - PySpark's name
        """Return the writer of a streaming query."""
        return StreamWriter(self._ready(schema))

    def _ready(self, schema: StructType) -> Target:
        self._target.check(schema)
        self._target.prepare()
        return self._target


def register(spark: SparkSession) -> None:
    """Register `format("tailrace")` with a session."""
    spark.dataSource.register(TailraceSource)
