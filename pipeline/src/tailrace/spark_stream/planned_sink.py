"""`foreachBatch(exactly_once(...))`: write each batch of a user's own query by a plan in the ledger."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tailrace import errors
from tailrace.config import LEDGER_PARTITIONS
from tailrace.driver.catalyst import Patterns, tree
from tailrace.driver.table_sizes import fill_tables
from tailrace.kafka.cluster import Cluster
from tailrace.progress import expiry
from tailrace.progress.elsewhere import Elsewhere, elsewhere
from tailrace.progress.lease import running
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import CONTINUE, Marker, check_not_behind
from tailrace.progress.plan import BatchId, Plan, SinkPartition, unlike
from tailrace.progress.predecessor import undelivered
from tailrace.progress.stream_plan import VERSION, Slice, StreamPlan, assign
from tailrace.spark_stream import replay_checks, shuffle_keys, spark_source
from tailrace.spark_stream.analysis import holds_state
from tailrace.spark_stream.cut_checks import CutChecks
from tailrace.spark_stream.sink import BatchWrite, planned_as_written, writing, written_by
from tailrace.spark_stream.sink_calls import Call, Calls, Key, bare_errors, key_of
from tailrace.spark_stream.sink_options import Target, rows_of
from tailrace.stages import session_settings

_CALLS = Calls()  # of this process: two sinks under one name do not know each other


def _new_run() -> str:
    return uuid.uuid4().hex[:12]


@dataclass
class ExactlyOnce:
    """A function for `foreachBatch` that writes each batch by a plan in the ledger."""

    target: Target
    run: str = field(default_factory=_new_run)
    _ledger: Ledger | None = None
    _plan: StreamPlan | None = None
    _fenced: errors.DriverFenced | None = None
    _name: str = ""
    _epoch: str = ""  # another one whenever ids were taken: that has fenced the gateways' producers
    _elsewhere: Elsewhere | None = None
    _checks: CutChecks = field(default_factory=CutChecks)

    def __call__(self, frame: DataFrame, number: int) -> None:
        """Write one batch."""
        with bare_errors():
            self._deliver(frame, number)

    def _deliver(self, frame: DataFrame, number: int) -> None:
        spark = frame.sparkSession
        self.target.check(frame.schema)
        name = self.target.id or spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        if name is None:
            raise errors.InvariantBroken("Spark does not say which query this is")
        frame = _planned_anew(frame)
        shown = planned_as_written(frame)
        query = _query(spark)
        self._checks(shown, query)
        key = key_of(self.target.kafka.bootstrap_servers, name)
        call = Call(self.run, query.id().toString(), query.runId().toString(), number)
        _CALLS.begin(key, call, lambda last: _runs(spark, last))
        ledger: Ledger | None = None
        try:
            ledger = self._taken(key, name)
            self._write(ledger, frame, shown, number)
        except BaseException:  # tasks of the batch may go on; the next call fences them, as it takes the ledger again
            if self._ledger is ledger:
                self._ledger = None
            _CALLS.fail(key, call)
            raise

    def _write(self, ledger: Ledger, frame: DataFrame, shown: DataFrame, number: int) -> None:
        """Write a batch, cut as Spark plans `shown`, which has all of the writing frame but the task's arguments."""
        spark, name = frame.sparkSession, self._name
        plan, known = self._plan, self._plan.batch if self._plan else -1
        slices, keys = _cut(shown, new=number > known)
        ranges = spark_source.read_from_kafka(shown)
        batch = _query(spark).lastExecution().toRdd().id()
        logical = _query(spark).logicalPlan(), shown._jdf.queryExecution().analyzed()
        noted = shuffle_keys.with_branches(keys, *logical, batch)
        if number < known:
            raise errors.CheckpointMismatch(
                f"the ledger of {name!r} ends with batch {known}, and the checkpoint begins batch {number}",
                kept="nothing was written",
                then=f"use the checkpoint folder that the query used before; if it is lost, {CONTINUE}",
            )
        planned = StreamPlan(
            name,
            _planned_by(spark),
            BatchId(number),
            ranges,
            slices,
            entry="",
            run=self.run,
            at=time.time(),
            delivery=self.target.delivery,
            code=noted.code,
            settings=session_settings.of_session(spark) if noted.code else None,
            mixes=bool(noted.code),
            cut=noted.branches or None,
            sink=self.target.topic or "",
        )
        markers: Mapping[SinkPartition, Marker] = {}
        new = plan is None or number > known
        if new and self._elsewhere is not None:
            self._elsewhere.refuse(number, continuing=plan is not None and known == number - 1)
        if plan is None or new:
            plan = planned
            assigned = assign(plan, slices)
        else:
            markers = ledger.markers(fenced=plan.sinks > 0)
            self._epoch = _new_run()
            query = tree(logical[0])
            timeless = replay_checks.timeless(query, Patterns(spark._jvm))
            replay_checks.check_same(plan, planned, timeless=timeless)
            replay_checks.check_sink(plan, planned)
            stateless = not any(map(holds_state, query))
            if stateless and plan.sinks and not undelivered(plan, markers):  # however it would be cut now
                return
            # This may refuse the query, and then the plan must not name its code.
            assigned = replay_checks.assigned(plan, plan.slices if replay_checks.same_single(plan, planned) else slices)
            plan = self._replayed(ledger, plan, planned, markers, noted.printed)
        write = BatchWrite(
            plan=plan,
            assigned=assigned,
            delivery=plan.delivery,
            ledger=self.target.ledger,
            topic=self.target.topic,
            rejected=self.target.rejected,
            run=self._epoch,
            options=self.target.options,
            seen=frozenset(markers),
        )
        rows = writing(frame, write, rows_of)
        if _cut(rows, new=False) != (slices, keys):
            raise replay_checks.planned_otherwise(plan)
        if new:
            self._write_plan(ledger, plan)
            self._plan = plan
        written_by(rows, write)

    def _replayed(
        self, ledger: Ledger, plan: StreamPlan, now: StreamPlan, markers: Mapping[SinkPartition, Marker], printed: str
    ) -> StreamPlan:
        """Return the plan of a batch that comes again; refuse what may lose or repeat its records.

        `printed` is what an earlier version would have noted of the shuffles.
        """
        if expiry.missing(plan, markers):
            expiry.check(
                plan,
                markers,
                time.time(),
                expiry.retention(Cluster(self.target.kafka).admin),
                then=CONTINUE,
            )
        others = unlike(plan.settings, now.settings)
        written = [marker.next == plan.batch + 1 for marker in markers.values()]
        in_part = any(written) and sum(written) < plan.sinks
        if in_part and shuffle_keys.moved(plan.cut or (), now.cut or ()):
            raise replay_checks.branches_moved(plan)
        same = plan.code == now.code and not others and (any(written) or plan.cut in {None, now.cut})
        if same or plan.query == plan.pipeline:  # 0.1 did not note the shuffles
            return plan
        if any(written):
            if not in_part:
                return plan
            if plan.code != printed or others:
                raise replay_checks.shuffles_changed(
                    plan, f"another {others[0]}" if others else "other shuffles or branches"
                )
        if plan.code == printed and not others:  # the functions were not noted: they are taken for the same
            if plan.version >= VERSION:  # its markers name the code
                return plan
            self._plan = replace(plan, code=now.code, mixes=now.mixes)
        else:  # what is delivered from now on is cut by these
            self._plan = plan.delivered_by(plan.rules, now.code, now.settings, mixes=now.mixes, cut=now.cut)
        self._write_plan(ledger, self._plan)
        return self._plan

    def _write_plan(self, ledger: Ledger, plan: StreamPlan) -> None:
        try:
            ledger.write(plan, {})
        except errors.DriverFenced as error:
            self._fenced = error
            raise

    def _let_go(self) -> None:
        """Drop the clients: a newer sink of this process has taken the name. A call that still runs keeps them."""
        self._fenced = errors.DriverFenced(
            f"writing as {self._name!r}: a newer exactly_once(...) of this process has taken over",
            kept="what this one has written stays; the newer one writes the remaining records",
            then="call the newer one; if both are in use, give each an id of its own",
        )
        self._ledger = None

    def _taken(self, key: Key, name: str) -> Ledger:
        """Return the ledger, which the first call takes, and the first one after a failure."""
        if self._fenced is not None:  # it stays replaced: taking the ledger would fence the newer one
            raise self._fenced
        if self._name and name != self._name:
            raise errors.OptionRefused(
                f"one exactly_once(...) serves one query: it has written {self._name!r} and is now called by {name!r}",
                then="make another one for the other query; leave the id of one that has written as it is: under "
                "another name, an open batch would come out again",
            )
        ledger = self._ledger
        if ledger is None:
            ledger = self._take(name)
            _CALLS.hold(key, self._let_go)
        return ledger

    def _take(self, name: str) -> Ledger:
        self.target.prepare()
        with ExitStack() as held:
            ledger = held.enter_context(Ledger(name, self.target.ledger, self.target.kafka, LEDGER_PARTITIONS, -1))
            self._refuse_running(name)
            ledger.take()
            self._plan = self._known(ledger, name)
            self._epoch = _new_run()
            self._elsewhere = elsewhere(Cluster(self.target.kafka).admin, name, self.target.ledger)
            held.pop_all()
        self._ledger, self._name = ledger, name
        return ledger

    def _refuse_running(self, name: str) -> None:
        """Refuse the id of a pipeline that runs: to take the ledger would fence its driver.

        The ledger itself cannot say so yet: what a query left there that was killed is behind a transaction that only
        taking it ends.
        """
        with contextlib.suppress(errors.KafkaError):  # a right that only this question needs may lack
            if running(Cluster(self.target.kafka), name):
                raise self._of_a_pipeline(f"a pipeline {name!r} is running")

    def _of_a_pipeline(self, what: str) -> errors.OptionRefused:
        return errors.OptionRefused(what, kept="nothing was written", then="give the sink another id")

    def _known(self, ledger: Ledger, name: str) -> StreamPlan | None:
        """Return the last plan, if the markers fit it."""
        plan = ledger.latest()
        if isinstance(plan, Plan) or (plan is not None and plan.entry):  # these alone keep what Spark's offset log has
            raise self._of_a_pipeline(f"the ledger {self.target.ledger!r} has plans of a pipeline {name!r}")
        ledger.fence(plan.sinks if plan else 0)
        markers = ledger.markers(fenced=plan is not None and plan.sinks > 0)
        if plan is not None:
            check_not_behind(plan.batch, markers, f"exactly_once {name!r}", CONTINUE)
        elif markers:
            raise errors.ProgressMissing(
                f"the ledger {self.target.ledger!r} has markers of {name!r} and no plan",
                kept="nothing was written",
                then=f"restore the ledger topic; if it is lost, {CONTINUE}",
            )
        return plan


def _planned_by(spark: SparkSession) -> str:
    """Return the id of the query and when it planned this batch, which a replay finds in the checkpoint."""
    number = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    return f"{number}@{_query(spark).lastExecution().offsetSeqMetadata().batchTimestampMs()}"


def _planned_anew(frame: DataFrame) -> DataFrame:
    """Return the frame for a planning of its own, which knows the sizes of the cached tables.

    Spark learns them when a cache is filled, and plans a join by them: left to the batch, the next planning differs.
    """
    stream = _query(frame.sparkSession).lastExecution().toRdd().id()

    def of_batch(cached: Any) -> bool:
        return any("ExistingRDD" in node.name and node.plan.rdd().id() == stream for node in tree(cached))

    fill_tables(frame.select("*")._jdf.queryExecution().withCachedData(), of_batch)
    return frame.select("*")


def _cut(frame: DataFrame, *, new: bool) -> tuple[tuple[Slice, ...], shuffle_keys.ShuffleKeys]:
    """Return what each task of a frame gets: its slices, and the keys of the shuffles if there are any."""
    query = _query(frame.sparkSession).lastExecution()
    slices = spark_source.cut(frame, query.toRdd(), new=new)[1]
    shuffles = any("#" in each for each in slices)
    return slices, shuffle_keys.digest(query, frame._jdf.queryExecution()) if shuffles else shuffle_keys.NONE


def _query(spark: SparkSession) -> Any:
    """Return Spark's object of the query that this batch belongs to, whose session is not the batch's."""
    number = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    query = spark_source.active_query(spark, number) if number else None
    if query is None:
        raise errors.InvariantBroken(f"Spark has no active query {number!r}")
    return query


def _runs(spark: SparkSession, call: Call) -> bool:
    """Return whether the run of the query that made this call is still active."""
    query = spark_source.active_query(spark, call.query)
    return query is not None and query.runId().toString() == call.run


def exactly_once(**options: str) -> Callable[[DataFrame, int], None]:
    """Write a query: `df.writeStream.foreachBatch(exactly_once(**{"kafka.bootstrap.servers": …, "topic": …}))`.

    Unlike `format("tailrace")`, it plans each batch in the ledger, so a replay is exact whatever the function computes.
    """
    return ExactlyOnce(Target.of(options))
