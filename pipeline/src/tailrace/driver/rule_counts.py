"""Counts of the rules over a batch that is not planned yet, for rules that can stop the pipeline.

The sink partitions of a batch commit one by one, so no task could take back what another has committed. A pipeline with
such a rule therefore reads and decodes each batch once before: tasks count what breaks the rules, and write nothing.
They read in lanes of their own, so that the gateway's consumers continue where they were.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tailrace.driver.engine import NO_FAULTS, Faults
from tailrace.driver.frame import COLUMNS, RECORD
from tailrace.driver.leaf import one_row_per_task
from tailrace.driver.spark_jobs import answers, job, kept_job
from tailrace.driver.tasks import BatchInfo, Tasks, here
from tailrace.gateway import ReadRequest, Written, client
from tailrace.gateway.answers import RESULT, answer, written_of
from tailrace.progress.plan import Plan, SinkPartition
from tailrace.stages.arrow_stages import ArrowSpec, stages_of
from tailrace.stages.assembly import Assembly
from tailrace.stages.decode import decode
from tailrace.stages.process import broken_rules, validate
from tailrace.stages.rules import Judged, tally, total

if TYPE_CHECKING:
    Batches = Iterator[pa.RecordBatch]

_LANES = 50_000  # from here on; tasks that deliver use the numbers below


@dataclasses.dataclass(frozen=True)
class CountingTasks:
    """The tasks that count, one for each part of a batch; with a spec they need no JVM."""

    tasks: Tasks
    rules: int
    spec: ArrowSpec | None

    def request(self, info: BatchInfo, part: int) -> ReadRequest:
        """Return the request for a part's ranges."""
        return dataclasses.replace(self.tasks.request(info, part), lane=_LANES + (part + 1 if info.split else 0))

    def read(self, batches: Batches) -> Batches:
        """Yield the records of this task's part, except those at which the function raises."""
        for _ in batches:
            pass
        info, part, _ = here()
        # Of no attempt: until the batch is planned, the one before it may have to be delivered again.
        read = client.read("", self.request(info, part), info.batch, part)
        yield from self.tasks.records(info, part, read, lambda rows: None)

    def count(self, batches: Batches) -> Batches:
        """Count the rules that rows break; their one column is that of `broken_rules`."""
        yield self._answer(tally(each.column(0), each.num_rows, self.rules) for each in batches)

    def read_and_count(self, batches: Batches) -> Batches:
        """Read, decode and count a part without the JVM."""
        if self.spec is not None:
            stages = stages_of(self.spec)
            yield self._answer(stages.judge(each)[2] for each in self.read(batches))

    def _answer(self, judged: Iterator[Judged]) -> pa.RecordBatch:
        found = total(judged)
        return answer(Written(SinkPartition(here()[1]), skipped=True, judged=found))


class RuleCounter:
    """Counts the batches of one run, as Spark jobs over a frame that is made once."""

    def __init__(
        self, spark: SparkSession, assembly: Assembly, run: str, spec: ArrowSpec | None = None, group: str = ""
    ) -> None:
        pipeline = assembly.pipeline
        columns = spec.columns if spec is not None else COLUMNS
        tasks = Tasks.of(pipeline, columns, shuffles=False, judges=False)
        self._spark, self._assembly, self._run, self._group = spark, assembly, run, group
        self._tasks = CountingTasks(tasks, len(pipeline.process.validate_), spec)
        self._frames: dict[int, DataFrame] = {}
        self._jobs: dict[int, Any] = {}

    def count(self, plan: Plan, faults: Faults = NO_FAULTS) -> Judged:
        """Return how many records of a batch were judged, and how many broke each rule."""
        parts = len(plan.parts)
        if parts not in self._frames:
            self._frames[parts] = self._frame(parts)
        if self._tasks.spec is None or parts not in self._jobs:
            # A plan keeps the time, and the rows of a table, and a condition may depend on them.
            self._jobs[parts] = kept_job(self._frames[parts].select("*"))
        info = BatchInfo.of(plan, self._run, {}, frozenset(), faults)
        with job(self._spark.sparkContext, info, self._group, f"rules of batch {plan.batch}"):
            return total(written_of(each).judged for each in answers(self._jobs[parts]))

    def _frame(self, parts: int) -> DataFrame:
        tasks = self._tasks
        if tasks.spec is not None:
            return one_row_per_task(self._spark, parts).mapInArrow(tasks.read_and_count, RESULT)
        judged = decoded(self._spark, self._assembly, parts)
        return judged.select(broken_rules()).mapInArrow(tasks.count, RESULT)


def decoded(spark: SparkSession, assembly: Assembly, parts: int) -> DataFrame:
    """Return the frame that reads a batch's parts once more, in lanes of their own, and decodes and validates them."""
    pipeline = assembly.pipeline
    tasks = CountingTasks(Tasks.of(pipeline, COLUMNS, shuffles=False, judges=False), 0, None)
    records = one_row_per_task(spark, parts).mapInArrow(tasks.read, StructType([RECORD[name] for name in COLUMNS]))
    return validate(decode(records, pipeline.source, assembly.folder), pipeline.process.validate_)
