"""The driver's part of each batch that Spark planned: record the plan, deliver, report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from tailrace import crash_points, errors
from tailrace.crash_points import Point
from tailrace.driver.context import Context
from tailrace.driver.engine import Parts
from tailrace.driver.lead import overtaken
from tailrace.driver.naming import described, shown
from tailrace.driver.phases import Phases
from tailrace.driver.rule_counts import RuleCounter
from tailrace.driver.spark_errors import failure
from tailrace.gateway import Written
from tailrace.kafka import source
from tailrace.kafka.clients import TopicPartitions
from tailrace.progress.plan import BatchId, Plan, Range, SinkPartition
from tailrace.progress.positions import begins, named
from tailrace.progress.stream_plan import REDIRECTED, VERSION, StreamPlan, assign, offsets_of
from tailrace.spark_stream import spark_source
from tailrace.spark_stream.checkpoint import Checkpoint
from tailrace.spark_stream.frame import Cut
from tailrace.spark_stream.gate import Gate
from tailrace.spark_stream.judging import check_reads, deliver_judged
from tailrace.spark_stream.rate_control import RateControl
from tailrace.spark_stream.sink import BatchWrite, deliver
from tailrace.spark_stream.source_topics import SourceTopics
from tailrace.spark_stream.stream_cut import StreamCut
from tailrace.spark_stream.turns import Turns
from tailrace.stages.rules import check, stopping
from tailrace.status.events import BatchPlanned, BatchWritten, Warned
from tailrace.status.snapshots import Finished

_ASK_EVERY = 0.5  # seconds between two requests for the topics' end offsets


class Runner:
    """Called by Spark with each batch (foreachBatch)."""

    def __init__(
        self, context: Context, spark: SparkSession, control: RateControl, gate: Gate, topics: SourceTopics
    ) -> None:
        self._context = context
        self._topics = topics
        self._spark = spark
        self._control = control
        self._gate = gate
        self._warned = False  # whether sink.partitions was reported to have no effect
        self._phases = Phases()
        self._rules = RuleCounter(spark, context.assembly, context.run)
        self._plan: StreamPlan | None = None
        self._log: Checkpoint | None = None
        self._query = ""
        self._cut: Cut | None = None
        self._stream_cut: StreamCut | None = None
        self._touched = self._in_part = False
        self._seen: Parts = frozenset()
        self._once = False  # whether the run ends with the open batch
        self._chosen = False  # whether a person has chosen where the first batch begins
        self._delivered = -1
        self._owners: dict[SinkPartition, str] = {}
        self._ends: TopicPartitions = {}
        self._asked = 0.0
        self.turns = Turns(context.stop.event)
        self.error: errors.TailraceError | None = None
        self.positions: TopicPartitions = {}

    def settle(self) -> bool:
        """Record in the ledger that the last batch is done; return False if it is not, or if that is unknown."""
        with self.turns.between() as free:
            if not free or self.error is not None or self._delivered != self.last:
                return False
            self._context.ledger.settle(self._plan, self.positions)
            self._context.mirror.settled(self.positions)
            return True

    @property
    def last(self) -> int:
        """Return the number of the last planned batch; -1 before the first."""
        return self._plan.batch if self._plan is not None else -1

    @property
    def open(self) -> bool:
        """Whether the last planned batch is not delivered, as far as this run knows."""
        return self._plan is not None and not self._plan.done and self._delivered != self._plan.batch

    @property
    def finished(self) -> bool:
        """Whether the run was to end with the open batch, and that is delivered and noted."""
        return self._once and not self.open and self.noted

    def reads_of(self, topics: Collection[str]) -> bool:
        """Return whether the batch in progress reads records of one of these topics."""
        return self.open and self._plan is not None and self._plan.reads_of(topics)

    @property
    def noted(self) -> bool:
        """Whether Spark has noted the last batch as done, as far as the store tells; also if there is none."""
        if self._plan is None or self._log is None:
            return True
        try:
            return self._log.noted(self._plan.batch)
        except errors.CheckpointFailed:
            return False

    def begin(
        self,
        plan: StreamPlan | None,
        positions: TopicPartitions,
        log: Checkpoint,
        cut: Cut,
        *,
        touched: bool = False,
        in_part: bool = False,
        seen: Parts = frozenset(),
        once: bool = False,
        chosen: bool = False,
    ) -> None:
        """Set where the stream continues: after this plan, at these positions.

        `cut` says who shuffles its rows; `touched`: the plan's batch is delivered, or a part of it is; `in_part`: not
        all of it is; `seen`: the sink partitions of which the start has read a marker; `once`: no other batch may
        begin; `chosen`: a person has chosen where the first one does. An open batch that Spark has not noted comes
        again.
        """
        self._once, self._chosen = once, chosen
        self._plan, self.positions, self._log, self._cut = plan, dict(positions), log, cut
        self._stream_cut = StreamCut(cut.rows)
        self._touched, self._in_part, self._seen = touched, in_part, seen
        self._delivered = plan.batch if plan is not None and log.noted(plan.batch) else -1

    # -- the stream -------------------------------------------------------------------------------

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Deliver one batch."""
        with self.turns.taken():
            try:
                self._batch(rows, BatchId(number))
                if self._once:
                    self.turns.close()
            except errors.TailraceError as error:
                self.error = error
                raise
            except Exception as error:
                context = self._context
                found = failure(error, context.pipeline, self._reading(number))
                self.error = overtaken(found, context.ledger, context.pipeline, number, context.run)
                raise

    def _reading(self, number: int) -> str:
        plan = self._plan
        return described(plan) if plan is not None and plan.batch == number else f"batch {number}"

    def _batch(self, rows: DataFrame, number: BatchId) -> None:
        begun = time.monotonic()
        self._phases.begin()
        with self._phases.timed("cut"):
            new = self._plan is None or self._plan.batch != number
            ranges, slices = spark_source.cut(rows, rows._jdf.queryExecution().toRdd(), new=new)
        if self._log is None or self._cut is None or self._stream_cut is None:
            raise errors.InvariantBroken(f"batch {number} came before the runner's begin()")
        entry = self._log.entry(number)
        reads = spark_source.read_by(rows, offsets_of(entry)) if self._context.assembly.may_reject else ()
        shuffles = self._stream_cut.of(rows, self._query_id(rows)) if self._cut.mixes else None
        known = self._plan
        if known is not None and known.batch == number:  # only with a Spark checkpoint
            check_reads(known, reads)
            if self._in_part:
                known.check_cut(shuffles)
                _check_shuffler(known, self._cut)
            assigned = assign(known, slices)  # may refuse this code, and then the plan must not name it
            replay, plan = True, self._delivered_now(known, self._cut, shuffles)
        else:
            self._check_new(offsets_of(entry))
            replay = False
            plan = StreamPlan(
                pipeline=self._context.pipeline.pipeline,
                query=self._query_id(rows),
                batch=number,
                ranges=self._ranges(ranges, entry),
                slices=slices,
                reads=reads,
                entry=entry,
                run=self._context.run,
                at=time.time(),
                delivery=self._context.pipeline.sink.delivery,
                sunk=known is not None and (known.sunk or known.sinks > 0),
                rules=self._context.assembly.rules,
                code=self._context.assembly.code,
                settings=self._context.assembly.settings,
                mixes=self._cut.mixes,
                spread=self._cut.spread,
                cut=shuffles,
                topics=self._ids(offsets_of(entry)),
                chosen=number == 0 and self._chosen,
                sink=self._context.pipeline.sink.topic or "",
            )
            assigned = assign(plan, slices)
            if number != self.last + 1:
                raise errors.InvariantBroken(f"batch {number} follows batch {self.last}")
            self._check_rules(plan)
            with self._phases.timed("ledger"):
                self._context.ledger.write(plan, self.positions)
            self._plan = plan
            self._bounded(plan)
            self._context.mirror.planned(plan, self.positions, self._phases.seconds["ledger"])
        written = self._deliver(rows, plan, assigned, replay)
        crash_points.at(Point.BATCH_DONE, number)
        with self._phases.timed("after"):
            self._log.after(number)
            self._delivered = number
            self.positions = offsets_of(entry)
            if not replay:
                self._control.learn(plan, time.monotonic() - begun)
        self._context.watcher.finished(self._finished(plan, written, replay))
        crash_points.at(Point.BATCH_RETURNED, number)

    def _check_new(self, ends: TopicPartitions) -> None:
        """Refuse a batch that goes back, or that follows the only one of this run."""
        if self._once:  # a driver that was suspended has noted it after this start has looked
            raise self._topics.finished(BatchId(self.last))
        for place, at in sorted(self.positions.items()):
            if ends.get(place, -1) < at:
                end = f"ends at {ends[place]}" if place in ends else "is not there"
                raise spark_source.doubted(f"{named(place)} {end}, and was read up to {at}")

    def _ids(self, ends: TopicPartitions) -> dict[str, str]:
        self._topics.learn({topic for topic, _ in ends}, {topic for topic, _ in self.positions})
        return self._topics.of(ends)

    def _delivered_now(self, plan: StreamPlan, cut: Cut, shuffles: tuple[str, ...] | None) -> StreamPlan:
        """Return the plan with the code and the sink that it is delivered by, which the next start compares with its.

        If a part is delivered, the plan stays: the start has checked that the parts do not depend on what has changed,
        and their markers name this plan.
        """
        assembly = self._context.assembly
        by = assembly.rules, assembly.code, assembly.settings
        now = plan.delivered_by(*by, mixes=cut.mixes, spread=cut.spread, cut=shuffles)
        sink = self._context.pipeline.sink.topic or ""
        now = replace(now, sink=sink, version=now.version if now.sink in {None, sink} else REDIRECTED)
        if plan.done or self._touched or now == plan:
            return plan
        self._context.ledger.write(now, begins(now, now.ends))
        self._plan = now
        return now

    def _check_rules(self, plan: StreamPlan) -> None:
        """Refuse a batch in which too many records break a rule; it is not planned yet, so nothing of it is open."""
        rules = self._context.pipeline.process.validate_
        if not stopping(rules) or not plan.ranges:
            return
        read = Plan(plan.pipeline, plan.batch, "", {}, tuple((each,) for each in plan.ranges), 0, {})
        with self._phases.timed("rules"):
            judged = self._rules.count(read)
        check(rules, judged, plan.batch, shown(plan))

    def _finished(self, plan: StreamPlan, written: list[Written], replay: bool) -> Finished:
        return Finished(
            plan.batch,
            plan.records,
            tuple(written),
            dict(self._phases.seconds),
            replay,
            time.time(),
            self._control.limit,
            outputs=len(plan.slices),
        )

    def _ranges(self, read: tuple[Range, ...], entry: str) -> tuple[Range, ...]:
        """Return the batch's ranges: as the tasks read them or, if a shuffle hides those, between two positions."""
        ends = offsets_of(entry)
        new = self._context.cluster.earliest(place for place in ends if place not in self.positions)
        begins = self.positions | new
        spans = [Range(*place, begins[place], end) for place, end in sorted(ends.items()) if end > begins[place]]
        if {(each.topic, each.partition) for each in read} == {(each.topic, each.partition) for each in spans}:
            return read
        return tuple(spans)

    def _query_id(self, rows: DataFrame) -> str:
        if not self._query:
            self._query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
        return self._query

    def _deliver(
        self, rows: DataFrame, plan: StreamPlan, assigned: tuple[SinkPartition, ...], replay: bool
    ) -> list[Written]:
        self._context.emit(BatchPlanned.of(plan, replay=replay))
        with self._phases.timed("deliver"):
            seen = self._seen if replay else frozenset()
            write = BatchWrite.of(self._context.pipeline, plan, assigned, self._context.run, self._owners, seen)
            written = (
                deliver_judged(rows, write, self._gate, self._context.assembly) if plan.reads else deliver(rows, write)
            )
        self._owners |= {each.partition: each.gateway for each in written}
        limit = None if replay else self._control.limit
        seconds, lag = self._phases.seconds["deliver"], self._lag(offsets_of(plan.entry))
        rules = self._context.pipeline.process.validate_
        self._context.emit(BatchWritten.of(plan, written, rules, seconds=seconds, lag=lag, limit=limit))
        return written

    def _bounded(self, plan: StreamPlan) -> None:
        """Warn once that there are more sink partitions than configured."""
        most = self._context.pipeline.sink.partitions
        if most is None or len(plan.slices) <= most or self._warned:
            return
        self._warned = True
        self._context.emit(
            Warned(
                f"outputs have {len(plan.slices)} sink partitions, and sink.partitions is {most}: state "
                "keeps the partitions that it began with, and the function's own repartition() takes precedence"
            )
        )

    def _lag(self, positions: TopicPartitions) -> int:
        """Return the lag in offsets; ask the brokers for the ends at most twice a second."""
        if time.monotonic() - self._asked > _ASK_EVERY:
            with contextlib.suppress(errors.KafkaError):  # the batch is delivered, even if no broker answers now
                self._ends, self._asked = (
                    source.ends(self._context.pipeline, positions, self._context.cluster),
                    time.monotonic(),
                )
        return sum(max(0, self._ends.get(place, offset) - offset) for place, offset in positions.items())


def _check_shuffler(plan: StreamPlan, cut: Cut) -> None:
    """Refuse to finish a batch behind another's shuffle: the sink partitions of both have the same numbers.

    The same function may shuffle once and not the next time, as what it reads while it is called decides.
    """
    if plan.version < VERSION or (plan.mixes, plan.spread) == (cut.mixes, cut.spread):
        return
    changed = "sink.partitions or process.partitions is another"
    if plan.mixes != cut.mixes:
        changed = f"the function has {'no shuffle and no' if plan.mixes else 'a shuffle or a'} union of the records"
    raise errors.CutChanged(
        f"batch {plan.batch} of {plan.pipeline!r} is delivered in part, and now {changed}, unlike when it was begun",
        kept="nothing more of the batch was delivered; what was, is not delivered again",
        then="finish the batch as it was begun (`tailrace run FILE --batch`), then change; if it cannot be finished: "
        "`tailrace explain TR-302`",
    )
