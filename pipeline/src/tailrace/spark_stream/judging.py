"""Delivering a batch whose rejected records are committed by the tasks that read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from tailrace.driver import batch_property
from tailrace.driver.rule_counts import decoded
from tailrace.driver.spark_jobs import job
from tailrace.driver.tasks import BatchInfo
from tailrace.errors import CutChanged
from tailrace.gateway import Written
from tailrace.gateway.answers import RESULT, answer, written_of
from tailrace.progress.plan import Plan, Range, SinkPartition
from tailrace.progress.stream_plan import AS_BEGUN, VERSION, StreamPlan
from tailrace.spark_stream.gate import PROPERTY, Gate, JudgedBatch, gated
from tailrace.spark_stream.sink import BatchWrite, deliver
from tailrace.stages.assembly import Assembly

if TYPE_CHECKING:
    import pyarrow as pa


def deliver_judged(rows: DataFrame, write: BatchWrite, gate: Gate, assembly: Assembly) -> list[Written]:
    """Write a batch; return what each sink partition has written, those of the rejected records last."""
    context: Any = rows.sparkSession.sparkContext
    info = JudgedBatch.of(write.plan, write.run, write.owners, write.seen)
    if gate.answers is not None:
        gate.answers.value = []
    context.setLocalProperty(PROPERTY, batch_property.text_of(info))
    try:
        written = _with_answers({each.partition: each for each in deliver(rows, write)}, gate)
        silent = _silent(info, written)
        if silent:
            _judge_again(rows, write, gate, assembly, tuple(info.reads[number] for number in silent))
            written = _with_answers(written, gate)
    finally:
        context.setLocalProperty(PROPERTY, None)
    silent = _silent(info, written)
    if silent:
        written |= {each.partition: each for each in _nothing(rows, gate, info, silent)}
    return [written[number] for number in sorted(written)]


def _with_answers(written: Mapping[SinkPartition, Written], gate: Gate) -> dict[SinkPartition, Written]:
    """Return what was written, with what the gate has reported."""
    found = dict(written)
    for each in gate.answers.value if gate.answers is not None else ():
        known = found.get(each.partition)
        if known is None or known.skipped:  # a repeated task skips what the first one wrote
            found[each.partition] = each
    return found


def _silent(info: JudgedBatch, written: Mapping[SinkPartition, Written]) -> list[int]:
    """Return the numbers of the ranges whose tasks have not reported that the gate has judged every record."""
    return [number for number in range(len(info.reads)) if SinkPartition(info.outputs + number) not in written]


def _judge_again(rows: DataFrame, write: BatchWrite, gate: Gate, assembly: Assembly, silent: tuple[Range, ...]) -> None:
    """Read these ranges again, up to the gate: a function that stops reading early leaves records without a verdict."""
    plan = Plan(write.plan.pipeline, write.plan.batch, "", {}, tuple((each,) for each in silent), 0, {})
    judged = gated(decoded(rows.sparkSession, assembly, len(silent)), gate)
    with job(rows.sparkSession.sparkContext, BatchInfo.of(plan, write.run, {}, frozenset())):
        judged.count()


def _nothing(rows: DataFrame, gate: Gate, info: JudgedBatch, silent: list[int]) -> list[Written]:
    """Commit the markers of ranges that were read to their ends without a record, such as aborted transactions."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in batches:
            for number in each.column(0).to_pylist():
                yield answer(gate.nothing(info, silent[number]))

    spark = rows.sparkSession
    found = spark.range(0, len(silent), 1, len(silent)).mapInArrow(write, RESULT).collect()
    return [written_of(bytes(row[0])) for row in found]


def check_reads(plan: StreamPlan, reads: tuple[Range, ...]) -> None:
    """Refuse to finish a batch whose reading tasks would differ from before."""
    if plan.reads == reads:
        return
    missing, new = sorted(set(plan.reads) - set(reads))[:3], sorted(set(reads) - set(plan.reads))[:3]
    raise CutChanged(
        f"batch {plan.batch} of {plan.pipeline!r} was planned with {len(plan.reads)} sink partitions for rejected "
        f"records and would now have {len(reads)}; missing now: {', '.join(map(str, missing)) or 'none'}; new: "
        f"{', '.join(map(str, new)) or 'none'}",
        kept="nothing more of the batch was delivered; what was, is not delivered again",
        then=AS_BEGUN.get(plan.version, AS_BEGUN[VERSION]),
    )
