"""The driver's entry point: load, assemble, run until stopped.

Decisions belong to `progress`; this module has the order of the steps: take the ledger (which fences any older
driver), finish the open batch, check where to continue, and stream.
"""

from __future__ import annotations

import contextlib
import datetime
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from tailrace import crash_points, errors
from tailrace.config import Pipeline
from tailrace.driver import readable, recovery, start
from tailrace.driver.context import Context
from tailrace.driver.follower import Follower
from tailrace.driver.offset_mirror import OffsetMirror
from tailrace.driver.scaler import Scaler
from tailrace.driver.shutdown import Stop as Stop
from tailrace.driver.spark_engine import SparkEngine
from tailrace.driver.spark_errors import failure
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.reach import explained
from tailrace.progress import last_error
from tailrace.progress.lease import Holder, Lease, Phase, running
from tailrace.progress.ledger import Ledger
from tailrace.progress.stores import open_store
from tailrace.spark_stream import spark_source, stream
from tailrace.spark_stream.exact import make_exact
from tailrace.spark_stream.frame import frame
from tailrace.spark_stream.gate import Gate
from tailrace.spark_stream.storage import prepare
from tailrace.stages import process
from tailrace.stages.assembly import Assembly
from tailrace.startup import warming
from tailrace.startup.function_files import ship
from tailrace.startup.patience import Patience
from tailrace.startup.preflight import preflight
from tailrace.startup.session import refuse_second, session, with_executors
from tailrace.startup.standby import Standby
from tailrace.startup.warming import Warming
from tailrace.startup.watcher import RunWatcher
from tailrace.status.board import Board
from tailrace.status.events import Changed, Emit, LeaseProblem, Noted, Starting, Stopped, ignored, to_each


def assemble(spark: SparkSession, pipeline: Pipeline, folder: Path) -> Assembly:
    """Load the pipeline's function, and ship it to the workers."""
    function = None
    if pipeline.process.function is not None:
        function = ship(spark.sparkContext, process.load(pipeline.process.function, folder))
    return Assembly(pipeline, function, folder, spark)


def run(
    pipeline: Pipeline,
    folder: Path | None = None,
    *,
    batch: bool = False,
    standby: bool = False,
    emit: Emit | None = None,
    stop: Stop | None = None,
    spark: SparkSession | None = None,
    replaces: Callable[[Holder], bool] | None = None,
) -> None:
    """Run a pipeline until it is stopped; with `batch`, until all records that exist now have been read.

    With `standby` it prepares next to the running driver, and takes over when that one has gone. Otherwise a running
    driver is replaced, unless `replaces` says no. An existing session can be passed (for a notebook, or for many short
    runs); it is left running. For a stateful pipeline it must have Spark's Kafka connector.
    """
    crash_points.root()
    if spark is None:
        refuse_second()  # before this driver is seen, and before executors of the session count as left over
    folder, emit, stop = folder or Path.cwd(), emit or ignored, stop or Stop()
    cluster, name = Cluster(pipeline.kafka), uuid.uuid4().hex[:12]
    follower = Follower(pipeline, Board(pipeline, name))
    scaler = Scaler(pipeline)
    patience = Patience(pipeline, cluster, name, stop)
    emit = to_each(emit, follower.board.heard, scaler.heard, patience.heard)
    with contextlib.ExitStack() as held:
        held.enter_context(follower.following(emit))  # first, so that probes and alerts see what keeps it from starting
        preflight(pipeline, cluster, folder, emit)
        ledger = held.enter_context(Ledger.of(pipeline))
        mirror = OffsetMirror(pipeline, lambda: open_store(pipeline, folder), emit)
        held.callback(mirror.close)
        lease = held.enter_context(Lease(pipeline, name, lambda text: emit(LeaseProblem(text))))
        if not standby:
            if given_way(pipeline, cluster, emit, replaces):
                return
            lease.hold(Phase.LEADING)
        if stop.event.is_set():  # while preflight waited, say; Spark would take seconds, and ask for executors
            emit(Stopped(stop.reason, None))
            return
        if spark is None:
            emit(Starting(pipeline.pipeline))
        given, spark = spark, spark or with_executors(pipeline, emit, stop)
        make_exact(spark)
        try:
            if stop.event.is_set():  # without executors, whatever a function has Spark do now would wait for them
                emit(Stopped(stop.reason, None))
                return
            follower.session(spark)
            # A session passed in for many runs has warm workers; a standby warms up while it waits.
            warm = Warming(spark) if given is None and not standby else None
            prepare(spark, pipeline)
            assembly = assemble(spark, pipeline, folder)
            # What a start would refuse is refused now: before older drivers are fenced, or while one still runs.
            engine = SparkEngine(spark, pipeline, assembly, name) if pipeline.checkpoint == "ledger" else None
            watcher = RunWatcher(spark, follower, scaler, lease, emit, stop, counts=engine is not None)
            context = Context(name, pipeline, assembly, cluster, ledger, mirror, emit, stop, watcher)
            if engine is not None:
                follower.board.planning = engine.planning
            stages = engine.warm if engine is not None else lambda: warming.stream(spark, assembly)
            if warm is not None and engine is not None:  # a stateful function is not called concurrently
                warm.then(stages)
            if engine is None:
                records = spark_source.stream(spark, pipeline, None, pipeline.batch.max_records)
                frame(assembly, records, Gate.of(pipeline, None))
            if not standby and stop.event.is_set():  # it takes nothing over, and an older driver goes on
                emit(Stopped(stop.reason, None))
            elif not standby or Standby(context, spark, stages, lease).wait():
                _outlast(
                    patience,
                    context,
                    partial(_lead, spark=spark, engine=engine, warm=warm, until_read=batch),
                    follower.board,
                )
        except errors.TailraceError:
            raise
        except Exception as error:
            raise failure(error, pipeline) from error
        finally:
            lease.close()  # a standby need not wait for the end of the session
            if given is None:
                with contextlib.suppress(Exception):
                    spark.stop()


def given_way(pipeline: Pipeline, cluster: Cluster, emit: Emit, replaces: Callable[[Holder], bool] | None) -> bool:
    """Return whether another driver of this pipeline is to go on; if one is replaced, say so."""
    try:
        leader = next((each for each in running(cluster, pipeline.pipeline) if each.phase is Phase.LEADING), None)
    except errors.KafkaError:  # who leads is nothing that a start depends on
        return False
    if leader is None:
        return False
    if replaces is not None and not replaces(leader):
        return True
    since = datetime.datetime.fromtimestamp(leader.since, datetime.UTC).isoformat(timespec="seconds")
    emit(Changed(f"run {leader.run} on {leader.host} has led since {since}, and ends when this one takes over"))
    return False


def planning(pipeline: Pipeline, folder: Path) -> tuple[str, tuple[str, ...]]:
    """Start Spark and return whether a stateless pipeline's frame is planned once or for each batch, and why."""
    local = {"spark.master": "local[1]", "spark.ui.enabled": "false"}
    plain = pipeline.model_copy(update={"spark": pipeline.spark | local, "executors": type(pipeline.executors)()})
    spark = session(plain)
    try:
        return SparkEngine(spark, plain, assemble(spark, plain, folder), "doctor", fills=False).planning
    finally:
        spark.stop()


def _outlast(
    patience: Patience,
    context: Context,
    lead: Callable[[Context], None],
    board: Board,
) -> None:
    """Lead; if the brokers go away meanwhile, start over from the ledger once they answer."""
    again = False
    try:
        while True:
            try:
                if again:  # in here, since brokers that answered may be away again
                    context = _reopened(patience, context)
                lead(context)
                return
            except Exception as error:
                reported = failure(error, context.pipeline)
                at = time.time()
                board.failed(reported.as_dict() | {"run": context.run, "at": at})
                if not patience.outlasts(reported, context.emit):
                    with contextlib.suppress(errors.TailraceError):  # the error itself matters more
                        last_error.write(context.ledger, context.pipeline, reported, context.run, at, board.lines())
                    raise explained(reported, context.pipeline.kafka) from error
                again = True
    finally:
        context.ledger.close()


def _reopened(patience: Patience, context: Context) -> Context:
    """Return the context with the ledger opened again; if that fails, the old one stays open to be asked again.

    Nothing else may hold either: with each outage, one more client would stay connected to each broker.
    """
    with contextlib.ExitStack() as opened:
        ledger = opened.enter_context(Ledger.of(context.pipeline))
        patience.refuse_successor(context.ledger)  # last: `lead` fences a driver that takes over after it
        opened.pop_all()
    context.ledger.close()
    return replace(context, ledger=ledger)


def _lead(
    context: Context, *, spark: SparkSession, engine: SparkEngine | None, warm: Warming | None, until_read: bool
) -> None:
    """Take the ledger, which fences older drivers; then run the driver's own batches, or follow Spark's."""
    recovered, note = recovery.take(context.pipeline, context.ledger, context.cluster)
    if note:
        context.emit(Noted(note))
    if recovered.plan is not None:
        own = context.assembly
        for what in recovery.changed(recovered.plan, own.rules, own.code, own.settings):
            context.emit(Changed(what))
    if warm is not None:
        warm.done(context.stop)
    if engine is not None:
        start.run(context, engine, recovered, until_read=until_read)
    else:
        stream.run(context, spark, recovered, until_read=until_read)
    if until_read:
        readable.wait(context)
