"""The gate of a stateful pipeline: tasks that read hand their rejected records to the gateway.

Here Spark reads, and shuffles and state may come between reading and writing. So the rejected records of each range
that a Spark task reads are a sink partition of their own, numbered after those of the outputs. A task finds its range
by the first record that it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.accumulators import Accumulator
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import BooleanType

from tailrace.config import Delivery, OnDataLoss, Pipeline
from tailrace.driver.batch_property import of_task
from tailrace.driver.engine import Parts
from tailrace.driver.input_end import InputEnd
from tailrace.errors import InvariantBroken
from tailrace.gateway import Assignment, Written, client
from tailrace.gateway.schemas import as_rows
from tailrace.kafka.clients import client_options
from tailrace.progress.plan import BatchId, Range, SinkPartition
from tailrace.progress.stream_plan import StreamPlan
from tailrace.stages import rows
from tailrace.stages.rows import KAFKA
from tailrace.stages.rules import Judged, aside, tally, total

PROPERTY = "tailrace.stream"
_GATE = "_gate"


@dataclass(frozen=True)
class JudgedBatch:
    """What the reading tasks need to know about a batch."""

    batch: BatchId
    digest: str
    sinks: int
    outputs: int
    reads: tuple[Range, ...]
    run: str
    owners: Mapping[SinkPartition, str]
    delivery: Delivery
    seen: Parts = frozenset()  # the start has read a marker of these
    at: float = 0.0  # when it was planned

    @classmethod
    def of(cls, plan: StreamPlan, run: str, owners: Mapping[SinkPartition, str], seen: Parts) -> JudgedBatch:
        """Extract it from the plan."""
        outputs = len(plan.slices)
        return cls(
            plan.batch, plan.digest, plan.sinks, outputs, plan.reads, run, dict(owners), plan.delivery, seen, plan.at
        )

    def number(self, topic: str, partition: int, first: int, last: int) -> int:
        """Return the number of the range that holds these offsets."""
        for number, each in enumerate(self.reads):
            if each.place == (topic, partition) and each.start <= first and last < each.end:
                return number
        raise InvariantBroken(
            f"batch {self.batch}: a task reads {topic}-{partition} from offset {first} to {last}, which no range of "
            "the plan holds"
        )


@dataclass(frozen=True)
class Gate:
    """One pipeline's gate: what all batches have in common."""

    pipeline: str
    ledger: str
    rejected: str
    idle: float
    rules: int
    reset: bool  # deleted records are left out
    answers: Accumulator[list[Written]] | None
    options: dict[str, Any] = field(repr=False)
    end: InputEnd = field(default_factory=InputEnd)

    @classmethod
    def of(cls, pipeline: Pipeline, answers: Accumulator[list[Written]] | None) -> Gate:
        """Gather it from the configuration; without `answers` it serves only to inspect plans."""
        return cls(
            pipeline=pipeline.pipeline,
            ledger=pipeline.ledger.topic,
            rejected=pipeline.rejected_topic,
            idle=pipeline.sink.idle,
            rules=len(pipeline.process.validate_),
            reset=pipeline.source.on_data_loss is OnDataLoss.RESET,
            answers=answers,
            options=client_options(pipeline.kafka) | pipeline.sink.options,
        )

    def assignment(self, info: JudgedBatch, number: int, first: int | None = None) -> Assignment:
        """Return the assignment for the rejected records of a range, of which `first` is the first one found."""
        own = info.reads[number]
        lost = replace(own, end=own.end if first is None else first)
        sink = SinkPartition(info.outputs + number)
        return Assignment(
            pipeline=self.pipeline,
            batch=info.batch,
            partition=sink,
            sinks=info.sinks,
            digest=info.digest,
            delivery=info.delivery,
            ledger=self.ledger,
            topic=None,
            rejected=self.rejected,
            run=info.run,
            owner=info.owners.get(sink, ""),
            seen=sink in info.seen,
            at=info.at,
            idle=self.idle,
            verdicts=True,
            lost=(lost,) if self.reset and lost.start < lost.end else (),
            options=self.options,
        )

    def judge(self, batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        """Hand rejected rows to the gateway; yield whether each row was accepted."""
        range_: int | None = None
        handing: client.Handing | None = None
        judged: list[Judged] = []
        try:
            for each in self.end.complete(batches):
                if not len(each):
                    yield pa.array([], pa.bool_())
                    continue
                info, _ = of_task(PROPERTY, JudgedBatch)
                number, first = _place(each, info)
                if handing is None:
                    range_, handing = number, client.Handing(self.assignment(info, number, first))
                elif number != range_:
                    raise InvariantBroken(f"batch {info.batch}: one task reads {info.reads[number]} and another range")
                accepted, rejected, broken = aside(each.field("aside"))
                if len(rejected):
                    handing.add(as_rows(rejected))
                if self.rules:
                    judged.append(tally(broken, len(each), self.rules))
                yield accepted
            if handing is not None:
                written = handing.end()
                if self.answers is not None:
                    self.answers.add([written if written.skipped else replace(written, judged=total(judged))])
        finally:
            if handing is not None:
                handing.close()

    def nothing(self, info: JudgedBatch, number: int) -> Written:
        """Commit the marker of a range in which Spark has found no record."""
        handing = client.Handing(self.assignment(info, number))
        try:
            written: Written = handing.end()
        finally:
            handing.close()
        return written


def _place(judged: pa.StructArray, info: JudgedBatch) -> tuple[int, int]:
    """Return the number of the range that these rows come from, and their first offset."""
    places = pc.unique(judged.field("topic")), pc.unique(judged.field("partition"))
    if any(len(each) != 1 for each in places):
        raise InvariantBroken(f"batch {info.batch}: one task reads several source partitions")
    ends = pc.min_max(judged.field("offset"))
    first = ends["min"].as_py()
    return info.number(places[0][0].as_py(), places[1][0].as_py(), first, ends["max"].as_py()), first


def gated(decoded: DataFrame, gate: Gate) -> DataFrame:
    """Let accepted rows through and hand the others to the gateway."""
    make: Any = arrow_udf  # its stub does not cover functions recognized by their type hints
    judge = make(gate.judge, BooleanType()).asNondeterministic()
    return decoded.withColumn(_GATE, judge(_judged(decoded))).where(F.col(_GATE)).drop(_GATE)


def _judged(decoded: DataFrame) -> Column:
    record = F.col(KAFKA)
    names = ("topic", "partition", "offset")
    return F.struct(rows.aside(decoded, "decode").alias("aside"), *(record[name].alias(name) for name in names))
