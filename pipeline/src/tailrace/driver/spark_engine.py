"""The engine that runs batches as Spark jobs over a frame that is planned once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, SparkSession

from tailrace import errors
from tailrace.config import Format, OnError, Pipeline
from tailrace.driver import frame
from tailrace.driver.engine import BLAMABLE, NO_FAULTS, Cut, Faults, Parts, already
from tailrace.driver.frame_analysis import Analysis, Planning, analyse
from tailrace.driver.leaf import one_row_per_task
from tailrace.driver.needed_columns import needed, telling
from tailrace.driver.rule_counts import RuleCounter
from tailrace.driver.spark_errors import failure
from tailrace.driver.spark_jobs import answers, job, kept_job
from tailrace.driver.table_sizes import OTHERS, THRESHOLD, PlannedCut, broadcasting, fill_caches
from tailrace.driver.task_reports import reports
from tailrace.driver.tasks import WARMING, BatchInfo, Tasks
from tailrace.gateway import ReadDone, Written
from tailrace.gateway.answers import RESULT, written_of
from tailrace.progress.cuts import shown_cuts
from tailrace.progress.plan import Plan, Range, SinkPartition
from tailrace.stages.arrow_stages import ArrowSpec, unsupported
from tailrace.stages.assembly import Assembly
from tailrace.stages.rules import Judged

_SLOTS_EVERY = 1.0  # seconds between queries for the number of slots


def in_arrow(pipeline: Pipeline) -> bool:
    """Return whether a pipeline runs in one Python stage, from gateway to gateway.

    JSON with a Spark schema and no function stays in the JVM, whose parser is faster than Python's.
    """
    if unsupported(pipeline):
        return False
    return pipeline.process.arrow is not None or pipeline.source.format != Format.JSON


class SparkEngine:
    """Delivers the batches of one run.

    `threshold` is the size up to which tables are broadcast, if not the session's. An engine without one has others
    with one, for batches that are cut as no plan of its own is.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        assembly: Assembly,
        run: str,
        threshold: str | None = None,
        *,
        fills: bool = True,  # False: only the analysis is wanted, and nothing may be executed
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._assembly = assembly
        self._run = run
        self._threshold = threshold
        self._others: dict[str, SparkEngine | None] = {}
        self._last = self  # the engine of the last batch, which is tried first
        self._group = f"tailrace-{run}"
        self._answers: Accumulator[list[Written]] = reports(spark)
        self._reads: Accumulator[list[tuple[int, ReadDone]]] = reports(spark)
        self._judged: Accumulator[list[tuple[int, Judged]]] = reports(spark)
        self._kept: dict[int, tuple[DataFrame, PlannedCut | None]] = {}
        self._jobs: dict[int, Any] = {}  # the RDDs of kept frames
        self._slots = (0.0, 1)
        self.observed: Mapping[str, Mapping[str, float]] = {}
        self._spec = ArrowSpec.of(pipeline, assembly.folder) if in_arrow(pipeline) else None
        self._rules = RuleCounter(spark, assembly, run, self._spec, self._group)
        if self._spec is not None:
            self.analysis = Analysis(Planning.KEPT, (), (), None)
            self._tasks = Tasks.of(pipeline, self._spec.columns, shuffles=False, judges=False)
            self._cut = Cut()
            return
        judges = assembly.may_reject
        self._tasks = Tasks.of(pipeline, frame.COLUMNS, shuffles=False, judges=judges, judged=self._judged)
        records = frame.leaf(spark, self._tasks, 1)
        reading = frame.rows(assembly, records, self._tasks.judge)
        if fills:
            fill_caches(reading, records)
        with broadcasting(spark, threshold):
            self.analysis = analyse(reading, records, pipeline.sink.partitions)
        if self.analysis.shuffles:
            _refuse_rejecting(pipeline)
            answers = self._answers if judges else None
            self._tasks = Tasks.of(
                pipeline,
                frame.COLUMNS,
                shuffles=True,
                judges=judges,
                answers=answers,
                reads=self._reads,
                judged=self._judged,
            )
        if self.analysis.planning is Planning.KEPT:  # a frame that is planned again may use other columns
            self._tasks = replace(self._tasks, columns=needed(reading, records))
        self._cut = self._cut_by(self.analysis.cut, self.analysis.partitions)

    @property
    def cut(self) -> Cut:
        """See `Engine.cut`."""
        return self._cut

    @property
    def planning(self) -> tuple[str, tuple[str, ...]]:
        """See `Engine.planning`."""
        return self.analysis.planning.value, self.analysis.reasons

    @property
    def slots(self) -> int:
        """See `Engine.slots`."""
        asked, number = self._slots
        if time.monotonic() - asked > _SLOTS_EVERY:
            number = max(1, self._spark.sparkContext.defaultParallelism)
            self._slots = time.monotonic(), number
        return number

    def fits(self, plan: Plan) -> bool:
        """See `Engine.fits`."""
        return any(each.cut.fits(plan) for each in self._engines())

    def _cut_by(self, how: tuple[str, ...], partitions: int | None) -> Cut:
        most = self._pipeline.sink.partitions
        outputs = partitions if partitions is None or most is None else min(partitions, most)
        return Cut(bool(how), outputs, how, bool(how) and self._assembly.may_reject)

    def _engines(self) -> Iterator[SparkEngine]:
        """Yield the engine of the last batch, then this one, then those that join by another threshold."""
        yield self._last
        if self._last is not self:
            yield self
        if self._spec is not None or self._threshold is not None:
            return
        for threshold in OTHERS:
            if threshold not in self._others:
                self._others[threshold] = self._with(threshold)
            other = self._others[threshold]
            if other is not None and other is not self._last:
                yield other

    def _with(self, threshold: str) -> SparkEngine | None:
        try:
            return SparkEngine(self._spark, self._pipeline, self._assembly, self._run, threshold)
        except (errors.ConfigInvalid, errors.FunctionInvalid):  # such joins would be refused
            return None

    def _frame(self, parts: int) -> tuple[DataFrame, PlannedCut | None]:
        """Return the frame that reads with this many tasks, planned once or again for each batch, and its cut.

        None: the cut was read when the frame was built. Probes call this from several threads at once.
        """
        kept, planning = self._kept.get(parts), self.analysis.planning
        if kept is None and self._spec is not None:
            leaf = one_row_per_task(self._spark, parts)
            kept = self._kept[parts] = leaf.mapInArrow(self._tasks.all_of_it(self._spec), RESULT), None
        if kept is not None and planning is Planning.KEPT:
            return kept[0], None
        if kept is None or planning is Planning.BUILT:
            kept = self._kept[parts] = self._built(parts)
            return kept
        return kept[0].select("*"), kept[1]

    def _built(self, parts: int) -> tuple[DataFrame, PlannedCut]:
        records = frame.leaf(self._spark, self._tasks, parts)
        rows = frame.rows(self._assembly, records, self._tasks.judge)
        fill_caches(rows, records)
        if self.analysis.planning is Planning.KEPT:  # a column that is null today may be filled when planned again
            rows = rows.select(*telling(rows, self._pipeline.sink.topic))
        if self._tasks.shuffles and (most := self._pipeline.sink.partitions) is not None:
            rows = rows.coalesce(most)
        return rows.mapInArrow(self._tasks.write, RESULT), PlannedCut(records)

    def _frame_for(self, plan: Plan) -> DataFrame:
        """Return the frame that delivers a batch; raise CutChanged if the batch would be cut otherwise than planned."""
        self._check(plan, self._cut)
        planned, cuts = self._frame(len(plan.open))
        if cuts is not None:
            with broadcasting(self._spark, self._threshold):  # what is planned here is what runs
                self._check(plan, self._cut_by(*cuts.of(planned)))
        return planned

    def _to_the_gate(self, parts: int) -> DataFrame:
        """Return the frame that reads no further: a function that stops early leaves records without a verdict.

        The outputs are committed by then, and what the gate has committed already is skipped.
        """
        return frame.judged(self._assembly, frame.leaf(self._spark, self._tasks, parts), self._tasks.judge)

    def deliver(
        self,
        plan: Plan,
        owners: Mapping[SinkPartition, str],
        gone: frozenset[str] = frozenset(),
        faults: Faults = NO_FAULTS,
        seen: Parts = frozenset(),
    ) -> list[Written]:
        """See `Engine.deliver`."""
        refused: errors.TailraceError | None = None
        for engine in self._engines():
            try:
                planned = engine._frame_for(plan)  # before the job is set up: the function may run jobs of its own
            except (errors.CutChanged, errors.FunctionInvalid) as error:
                refused = refused or error
                continue
            self._last = engine
            written = engine._deliver(planned, plan, owners, gone, faults, seen)
            self.observed = engine.observed
            return written
        raise refused or errors.InvariantBroken("a run has no engine")

    def _deliver(
        self,
        planned: DataFrame,
        plan: Plan,
        owners: Mapping[SinkPartition, str],
        gone: frozenset[str],
        faults: Faults,
        seen: Parts,
    ) -> list[Written]:
        self._answers.value, self._reads.value, self._judged.value = [], [], []
        with self._job(plan, BatchInfo.of(plan, self._run, owners, gone, faults, seen)):
            found = self._collect(planned, len(plan.open))
            if not {each.partition for each in self._answers.value}.issuperset(range(plan.outputs, plan.sinks)):
                self._to_the_gate(len(plan.parts)).count()
        if self.analysis.observes:
            self.observed = _observed(planned)
        written = already(plan) | {each.partition: each for each in map(written_of, found)}
        for each in self._answers.value:
            known = written.get(each.partition)
            if known is None or known.skipped:  # a repeated task skips what its first attempt wrote
                written[each.partition] = each
        if sorted(written) != list(range(plan.sinks)):
            raise errors.InvariantBroken(
                f"batch {plan.batch} has {plan.sinks} sink partitions, but {sorted(written)} answered"
            )
        if self._cut.shuffles:  # the first reports everything that was read; a repeated task counts once
            reads = dict(self._reads.value).values()
            written[SinkPartition(0)] = replace(
                written[SinkPartition(0)],
                read=sum(each.records for each in reads),
                read_size=sum(each.size for each in reads),
                lost=tuple(str(lost) for each in reads for lost in each.lost),
            )
        for part, judged in dict(self._judged.value).items():  # a repeated task counts once
            place = SinkPartition(plan.outputs + part if self._cut.shuffles else part)
            if not written[place].skipped:
                written[place] = replace(written[place], judged=judged)
        return [written[number] for number in sorted(written)]

    def judge(self, plan: Plan, faults: Faults = NO_FAULTS) -> Judged:
        """See `Engine.judge`."""
        return self._rules.count(plan, faults)

    def probe(self, plan: Plan, part: tuple[Range, ...], faults: Faults, lane: int) -> str | None:
        """See `Engine.probe`.

        Each lane has an RDD of its own: Spark ends all jobs of an RDD if one of them fails.
        """
        info = BatchInfo.of(plan, self._run, {}, frozenset(), faults).probing(part, lane)
        planned, _ = self._frame(1)
        try:
            with self._job(plan, info):
                self._collect(planned if lane in self._jobs else planned.select("*"), lane)
        except Exception as error:
            reported = failure(error, self._pipeline)
            if not isinstance(reported, BLAMABLE):
                raise reported from error
            return reported.what
        return None

    def _collect(self, planned: DataFrame, key: int) -> list[bytes]:
        """Run the job and return the tasks' answers; only an SQL execution updates the counters of observe().

        `key` names the job, if it can be kept: the number of its parts, or the lane of a probe.
        """
        if self.analysis.planning is not Planning.KEPT or self.analysis.observes:
            return [bytes(row[0]) for row in planned.collect()]
        if key not in self._jobs:
            self._jobs[key] = kept_job(planned)
        return answers(self._jobs[key])

    def warm(self) -> None:
        """Run an empty batch: plan the frames, compile, start a Python worker in each slot. Nothing is written."""
        for parts in sorted({1, self.slots}):
            outputs = self._cut.outputs if self._cut.outputs is not None else parts
            plan = Plan(self._pipeline.pipeline, WARMING, "", {}, ((),) * parts, outputs, {})
            planned, _ = self._frame(parts)
            with self._job(plan, BatchInfo.of(plan, self._run, {}, frozenset())):
                self._collect(planned, parts)

    def _check(self, plan: Plan, cut: Cut) -> None:
        """Refuse a plan that was cut differently from how this function cuts."""
        if cut.fits(plan):
            return
        outputs, (was, now) = cut.outputs if cut.shuffles else len(plan.parts), shown_cuts(plan.cut, cut.how)
        raise errors.CutChanged(
            f"batch {plan.batch} of {plan.pipeline!r} was planned with {plan.outputs} sink partitions for outputs"
            f"{' behind ' + was if plan.shuffles else ''}, but would now have {outputs}"
            f"{' behind ' + now if cut.shuffles else ''}",
            kept="nothing more of the batch was delivered, and nothing is delivered twice",
            then="start with the settings of the last run once (`tailrace run FILE --batch`), then change them; if a "
            f"joined table has grown or shrunk, set {THRESHOLD} under `spark` so that it is joined as before, and let "
            "broadcast(table) or table.hint('merge') decide from then on",
        )

    def _job(self, plan: Plan, info: BatchInfo) -> contextlib.AbstractContextManager[None]:
        return job(self._spark.sparkContext, info, self._group, f"batch {plan.batch}: {plan.records} offsets")

    def cancel(self) -> None:
        """See `Engine.cancel`."""
        with contextlib.suppress(Py4JError):  # a JVM that has ended runs no job
            self._spark.sparkContext.cancelJobGroup(self._group)


def _refuse_rejecting(pipeline: Pipeline) -> None:
    if pipeline.process.on_error is OnError.REJECT:
        raise errors.ConfigInvalid(
            f"process.on_error is `reject`, but {pipeline.process.function!r} shuffles: rejected records are committed "
            "before it has seen its rows",
            kept="nothing was read or written",
            then="set process.on_error: stop; or catch the exception in the function",
        )


def _observed(frame: DataFrame) -> dict[str, dict[str, float]]:
    """Read the numbers that `observe` counted in the frame's last execution."""
    found: dict[str, dict[str, float]] = {}
    metrics = frame._jdf.queryExecution().observedMetrics().toSeq()
    for number in range(metrics.size()):
        name, row = metrics.apply(number)._1(), metrics.apply(number)._2()
        values = {each: row.getAs(each) for each in row.schema().fieldNames()}
        found[str(name)] = {
            str(each): float(value)
            for each, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
    return found
