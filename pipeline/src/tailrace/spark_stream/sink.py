"""The Spark sink: each task hands its rows to the gateway, as one sink partition of one batch.

It has two callers. The runner (`tailrace run`) ships a `BatchWrite` with the plan from the ledger. `format("tailrace")`
(`dropin`) offers the same sink as a PySpark data source, to jobs that use nothing else of Tailrace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import DataFrame

from tailrace.config import Delivery, Pipeline
from tailrace.driver.engine import Parts
from tailrace.driver.input_end import InputEnd
from tailrace.errors import InvariantBroken
from tailrace.gateway import Assignment, Written, connect
from tailrace.gateway.answers import RESULT, answer, written_of
from tailrace.kafka.clients import client_options
from tailrace.progress.plan import SinkPartition
from tailrace.progress.stream_plan import StreamPlan

if TYPE_CHECKING:
    import pyarrow as pa

    Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class BatchWrite:
    """What every task of a batch needs; `assigned` maps each Spark task to its sink partition."""

    plan: StreamPlan
    assigned: tuple[SinkPartition, ...]
    delivery: Delivery
    ledger: str
    topic: str | None
    rejected: str | None
    run: str
    options: dict[str, Any] = field(repr=False)
    topics: tuple[str, ...] = ()
    owners: Mapping[SinkPartition, str] = field(default_factory=dict)  # the gateway that last wrote each sink partition
    idle: float = 300.0
    seen: Parts = frozenset()  # the start has read a marker of these

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        plan: StreamPlan,
        assigned: tuple[SinkPartition, ...],
        run: str,
        owners: Mapping[SinkPartition, str],
        seen: Parts = frozenset(),
    ) -> BatchWrite:
        """Build the write of one planned batch."""
        return cls(
            plan=plan,
            assigned=assigned,
            delivery=plan.delivery,
            ledger=pipeline.ledger.topic,
            topic=pipeline.sink.topic,
            topics=pipeline.sink.allowed,
            rejected=pipeline.rejected_topic,
            run=run,
            options=client_options(pipeline.kafka) | pipeline.sink.options,
            owners=dict(owners),
            idle=pipeline.sink.idle,
            seen=seen,
        )

    def task(self, number: int) -> Assignment:
        """Return the assignment of the Spark task with this number."""
        if number >= len(self.assigned):
            raise InvariantBroken(
                f"batch {self.plan.batch} has {len(self.assigned)} sink partitions for outputs, and Spark runs task "
                f"{number}"
            )
        place = self.assigned[number]
        return Assignment(
            pipeline=self.plan.pipeline,
            batch=self.plan.batch,
            partition=place,
            sinks=self.plan.sinks,
            digest=self.plan.digest,
            delivery=self.delivery,
            ledger=self.ledger,
            topic=self.topic,
            topics=self.topics,
            rejected=self.rejected,
            run=self.run,
            owner=self.owners.get(place, ""),
            seen=place in self.seen,
            at=self.plan.at,
            idle=self.idle,
            options=self.options,
        )


def deliver(
    rows: DataFrame, batch: BatchWrite, convert: Callable[[Batches], Batches] = lambda batches: batches
) -> list[Written]:
    """Write a batch; return what each sink partition wrote. `convert` turns other columns into rows.ROW."""
    return written_by(writing(rows, batch, convert), batch)


def writing(
    rows: DataFrame, batch: BatchWrite, convert: Callable[[Batches], Batches] = lambda batches: batches
) -> DataFrame:
    """Return the frame whose tasks write a batch when it is collected; Spark plans it apart from `rows`."""
    return rows.mapInArrow(_task(batch, convert), RESULT)


def planned_as_written(rows: DataFrame) -> DataFrame:
    """Return a frame that Spark plans like a writing one: at the root, a limit would have another operator."""
    return rows.mapInArrow(_unchanged, RESULT)


def written_by(frame: DataFrame, batch: BatchWrite) -> list[Written]:
    """Run the tasks of a writing frame; return what each sink partition wrote."""
    written = [written_of(bytes(row[0])) for row in frame.collect()]
    if sorted(each.partition for each in written) != list(range(len(batch.plan.slices))):
        raise InvariantBroken(
            f"batch {batch.plan.batch} has {len(batch.plan.slices)} sink partitions for outputs, and "
            f"{sorted(each.partition for each in written)} answered"
        )
    return written


def _unchanged(batches: Batches) -> Batches:
    return batches


def _task(batch: BatchWrite, convert: Callable[[Batches], Batches]) -> Callable[[Batches], Batches]:
    end = InputEnd()

    def write(batches: Batches) -> Batches:
        context = TaskContext.get()
        if context is None:
            raise InvariantBroken("the sink runs outside a Spark task")
        yield answer(connect().write(batch.task(context.partitionId()), convert(end.complete(batches))))

    return write
