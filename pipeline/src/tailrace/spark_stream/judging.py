"""Delivering a batch whose rejected records are committed by the tasks that read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from tailrace.driver import batch_property
from tailrace.errors import CutChanged
from tailrace.gateway import Written
from tailrace.gateway.answers import RESULT, answer, written_of
from tailrace.progress.plan import Range, SinkPartition
from tailrace.progress.stream_plan import StreamPlan
from tailrace.spark_stream.gate import PROPERTY, Gate, JudgedBatch
from tailrace.spark_stream.sink import BatchWrite, deliver

if TYPE_CHECKING:
    import pyarrow as pa


def deliver_judged(rows: DataFrame, write: BatchWrite, gate: Gate) -> list[Written]:
    """Write a batch; return what each sink partition has written, those of the rejected records last."""
    context: Any = rows.sparkSession.sparkContext
    info = JudgedBatch.of(write.plan, write.run, write.owners)
    if gate.answers is not None:
        gate.answers.value = []
    context.setLocalProperty(PROPERTY, batch_property.text_of(info))
    try:
        written = {each.partition: each for each in deliver(rows, write)}
    finally:
        context.setLocalProperty(PROPERTY, None)
    for each in gate.answers.value if gate.answers is not None else ():
        known = written.get(each.partition)
        if known is None or known.skipped:  # a repeated task skips what the first one wrote
            written[each.partition] = each
    silent = [number for number in range(len(info.reads)) if SinkPartition(info.outputs + number) not in written]
    if silent:
        written |= {each.partition: each for each in _nothing(rows, gate, info, silent)}
    return [written[number] for number in sorted(written)]


def _nothing(rows: DataFrame, gate: Gate, info: JudgedBatch, silent: list[int]) -> list[Written]:
    """Commit the markers of ranges in which Spark found no record, such as those of aborted transactions."""

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
        then="start with the settings of the last run once (`tailrace run FILE --batch`), then change them",
    )
