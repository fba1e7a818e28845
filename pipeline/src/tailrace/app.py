"""The driver's entry: load, assemble, run until told to stop.

What it decides it leaves to `progress`; here is the order of things: take the ledger (and so fence any older
driver), finish the batch that was open, check where to go on, and let Spark stream.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailrace import certificate, crash, errors, jars, pods, private, process, source, storage
from tailrace.assembly import Assembly
from tailrace.checkpoint import Checkpoint, prepare
from tailrace.config import Pipeline
from tailrace.crash import Point
from tailrace.drain import Stop as Stop
from tailrace.drain import unfinished
from tailrace.failures import failure
from tailrace.kafka import Cluster, TopicPartitions
from tailrace.keeping import Keeper
from tailrace.progress import expiry
from tailrace.progress.lease import Lease, Phase
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import Marker
from tailrace.progress.plan import Plan, SinkPartition
from tailrace.progress.scratch import Scratch
from tailrace.progress.stores import open_store
from tailrace.ratecontrol import RateControl
from tailrace.rights import Operation
from tailrace.runner import Runner
from tailrace.scaler import Scaler
from tailrace.standby import Standby
from tailrace.status.board import Board
from tailrace.status.follow import Follower
from tailrace.streamplan import check
from tailrace.telemetry import served

Event = dict[str, Any]
Emit = Callable[[Event], None]

IDLE_AFTER = 1.0  # seconds without a batch until the pipeline is asked whether it has drained
_LOOK_EVERY = 5.0  # seconds between two looks at brokers that have nothing new
# A batch that is read again must be cut as it was: no decision that depends on sizes.
_EXACT = {"spark.sql.adaptive.enabled": "false", "spark.sql.streaming.stopTimeout": "60000"}
_LOGGING = Path(__file__).with_name("log4j2.properties")


def session(pipeline: Pipeline) -> SparkSession:
    """A session of Spark with the Kafka connector and what exactness needs."""
    jars.java()
    # A session of the user's environment must not bring another Python to the workers.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.master": "local[*,4]",  # without the 4, a task that fails is not tried again
        "spark.app.name": f"tailrace {pipeline.pipeline}",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.daemon.module": "tailrace.gateway.daemon",
        # Else Spark adds up a batch's bytes after each row; batch.max_bytes bounds it (docs/decisions/0013).
        "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
        # Spark's 64 makes all consumers anew where an executor reads as many partitions (docs/decisions/0025).
        "spark.kafka.consumer.cache.capacity": "1024",
        **private.REDACTION,
        **storage.settings(pipeline),
        **pods.settings(pipeline, os.environ),
        **pipeline.spark,
        **_EXACT,
        "spark.shuffle.reduceLocality.enabled": "false",
    }
    if pipeline.metrics.enabled:  # the executors' Python processes are told to let themselves be watched
        settings[f"spark.executorEnv.{served.ENV}"] = str(served.Watched.of(pipeline))
    options = [f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}", settings.get("spark.driver.extraJavaOptions", "")]
    settings["spark.driver.extraJavaOptions"] = " ".join(options).strip()
    needed = jars.ensure("spark") + (jars.ensure("s3") if storage.on_s3(pipeline) else [])
    listed = [settings.get("spark.jars", ""), *map(str, needed)]
    settings["spark.jars"] = ",".join(filter(None, listed))
    builder = SparkSession.builder
    # Those of the checkpoint's store follow when the session is there, and never enter Spark's own configuration.
    later = storage.hidden(settings) if storage.on_s3(pipeline) else {}
    secret = private.secrets(settings)
    for name, value in settings.items():
        if name not in later | secret:
            builder = builder.config(name, value)
    if "TAILRACE_LOG" not in os.environ:
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # what it says, Tailrace's error says
    told = signal.getsignal(signal.SIGINT)
    with private.handed_over({name: value for name, value in secret.items() if name not in later}):
        spark = builder.getOrCreate()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, told)  # Spark's own handler would cancel the batch that is under way
    return spark


def _session(pipeline: Pipeline, emit: Emit, stop: Stop) -> SparkSession:
    """A session that has an executor; where those are pods, what an earlier driver left of them goes first."""
    executors = pods.Executors.of(pipeline, os.environ)
    told = executors.sweep() if executors else ""
    if told:
        emit({"event": "note", "what": told})
    spark = session(pipeline)
    if pods.asked_for(pipeline):
        status = spark.sparkContext._jsc.sc().getExecutorMemoryStatus  # the driver is in it, too
        try:
            pods.await_executors(lambda: int(status().size()) - 1, stop.event, executors.why if executors else str)
        except errors.TailraceError:
            spark.stop()
            raise
    return spark


def assemble(spark: SparkSession, pipeline: Pipeline, folder: Path) -> Assembly:
    """The pipeline with its function loaded, and shipped to the workers."""
    function = None
    if pipeline.process.function is not None:
        function = process.load(pipeline.process.function, folder)
        for file in function.files:
            spark.sparkContext.addPyFile(str(file))
    return Assembly(pipeline, function, folder)


def run(
    pipeline: Pipeline,
    folder: Path | None = None,
    *,
    batch: bool = False,
    standby: bool = False,
    emit: Emit | None = None,
    stop: Stop | None = None,
    spark: SparkSession | None = None,
) -> None:
    """Run a pipeline until it is stopped; with `batch`, until what is there now has been read.

    With `standby` it makes ready beside the driver that runs, and takes over when that one has gone. A session of
    one's own may be given (for a notebook, or for many short runs); it needs Spark's Kafka connector, and it is left
    running.
    """
    crash.root()
    folder, emit, stop = folder or Path.cwd(), emit or (lambda event: None), stop or Stop()
    cluster, name = Cluster(pipeline.kafka), uuid.uuid4().hex[:12]
    preflight(pipeline, cluster)
    follower = Follower(pipeline, Board(pipeline, name))
    scaler = Scaler(pipeline)
    emit = scaler.after(follower.board.after(emit))
    with (
        follower.following(emit),
        Ledger.of(pipeline) as ledger,
        contextlib.closing(Keeper(pipeline, lambda: open_store(pipeline, folder), emit)) as keeper,
        Lease(pipeline, name, lambda text: emit({"event": "lease", "what": text})) as lease,
    ):
        if not standby:
            lease.hold(Phase.LEADING)
        if spark is None:
            emit({"event": "starting", "pipeline": pipeline.pipeline})
        given, spark = spark, spark or _session(pipeline, emit, stop)
        for key, value in _EXACT.items():
            spark.conf.set(key, value)
        try:
            follower.session(spark)
            prepare(spark, pipeline)
            assembly = assemble(spark, pipeline, folder)
            drive = Drive(spark, pipeline, assembly, cluster, ledger, lease, keeper, emit, stop, name, follower, scaler)
            if not standby or Standby(spark, pipeline, assembly, cluster, ledger, lease, name, emit, stop).wait():
                _run(drive, batch)
        except errors.TailraceError:
            raise
        except Exception as error:
            raise failure(error, pipeline) from error
        finally:
            lease.close()  # a standby need not wait for the end of the session
            if given is None:
                with contextlib.suppress(Exception):
                    spark.stop()


def preflight(pipeline: Pipeline, cluster: Cluster) -> None:
    """What must be there before anything starts: brokers, topics; Tailrace's own topics are made."""
    certificate.check(pipeline.kafka.options, datetime.datetime.now(datetime.UTC))
    source.partitions_of(pipeline, cluster)
    if pipeline.sink.topic is not None:
        cluster.require([pipeline.sink.topic], "sink topic", Operation.WRITE)
    cluster.ensure(pipeline.rejected_topic, 1, -1, {})


@dataclass(frozen=True)
class Drive:
    """Everything that a run holds."""

    spark: SparkSession
    pipeline: Pipeline
    assembly: Assembly
    cluster: Cluster
    ledger: Ledger
    lease: Lease
    keeper: Keeper
    emit: Emit
    stop: Stop
    run: str
    follower: Follower
    scaler: Scaler


def _run(drive: Drive, batch: bool) -> None:
    pipeline, ledger = drive.pipeline, drive.ledger
    ledger.take()
    plan = ledger.latest()
    open_ = plan.batch if plan else -1
    crash.at(Point.LEDGER_TAKEN, open_)
    # Only the batch that was planned last can have open transactions. They are ended before the markers are read:
    # a marker in an open transaction would hold up the answer.
    ledger.fence(plan.sinks if plan else 0)
    crash.at(Point.SINKS_FENCED, open_)
    markers = ledger.markers()
    ahead = max((marker.next for marker in markers.values()), default=0)
    if plan is not None and ahead > plan.batch + 1:
        raise errors.MarkerConflict(
            f"pipeline {pipeline.pipeline!r}: a sink partition has written batch {ahead - 1}, and the last plan "
            f"in the ledger is of batch {plan.batch}",
            kept="nothing was read or written",
            then="restore the ledger topic; `tailrace explain TR-303` has the choices",
        )
    if plan is not None and expiry.missing(plan, markers):
        kept = expiry.retention(drive.cluster.admin)
        if kept.note:
            drive.emit({"event": "note", "what": f"offsets.retention.minutes: {kept.note}"})
        expiry.check(plan, markers, time.time(), kept)
    control = RateControl(drive.spark, pipeline, drive.emit)
    runner = Runner(
        drive.spark,
        pipeline,
        drive.assembly,
        ledger,
        drive.cluster,
        drive.run,
        drive.emit,
        drive.stop.event,
        drive.keeper,
        control,
        drive.follower.board.finished,
    )
    read = {} if plan is not None else ledger.positions(dict.fromkeys(source.partitions_of(pipeline, drive.cluster), 0))
    if plan is None and (markers or read):
        raise errors.ProgressMissing(
            f"the ledger {pipeline.ledger.topic!r} has {len(markers)} markers of {pipeline.pipeline!r}, "
            f"its group has offsets of {len(read)} partitions, and there is no plan",
            kept="nothing was read or written",
            then="restore the ledger topic; `tailrace explain TR-306` has the choices",
        )
    start, positions, entry = None, {}, None
    drive.emit(
        {"event": "started", "pipeline": pipeline.pipeline, "run": drive.run, "batch": plan.batch + 1 if plan else 0}
    )
    if plan is None:
        start = positions = drive.keeper.begin(drive.cluster)
    else:
        stateful = pipeline.checkpoint != "ledger"
        if drive.stop.event.is_set():
            drive.emit({"event": "stopped", "reason": drive.stop.reason, "batch": plan.batch})
            return
        if not stateful:
            _finish(drive, runner, plan, markers)
            crash.at(Point.OPEN_BATCH_FINISHED, open_)
        stored = source.offsets_of(plan.entry)
        positions, notes = source.within(pipeline, stored, drive.cluster)
        for note in notes:
            drive.emit({"event": "reset", "what": note})
        drive.keeper.compare(plan, stored)
        if notes:  # remembered before anything is read: the next start must not reset once more
            entry = source.replace_offsets(plan.entry, positions)
            plan = plan.finished(entry)
            if not stateful:
                ledger.settle(plan, positions)
    control.begin(positions)
    records = source.stream(drive.spark, pipeline, start, control.limit)
    rows = drive.assembly(records)
    shuffles = check(rows, pipeline.checkpoint)
    with _folder(drive, plan, entry) as (folder, log):
        runner.begin(plan, positions, log, shuffles > drive.assembly.spreads)
        drive.follower.stream(lambda: runner.positions)
        _stream(drive, runner, rows, folder, batch)


def _finish(drive: Drive, runner: Runner, plan: Plan, markers: Mapping[SinkPartition, Marker]) -> None:
    """Finish the batch that an earlier run has left open, within the limit if a stop is asked for meanwhile."""
    context, group, limit = drive.spark.sparkContext, f"tailrace-{drive.run}", drive.pipeline.batch.drain
    context.setJobGroup(group, "the batch that was open", interruptOnCancel=True)
    with drive.stop.limited(limit, lambda: context.cancelJobGroup(group)) as given_up:
        try:
            runner.finish(plan, markers)
        except errors.TailraceError as error:
            if given_up.is_set():
                raise unfinished(drive.stop, plan.batch, limit) from error
            raise
        finally:
            for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
                context.setLocalProperty(name, None)  # type: ignore[arg-type]


@contextlib.contextmanager
def _folder(drive: Drive, plan: Plan | None, entry: str | None) -> Iterator[tuple[str, Scratch | Checkpoint]]:
    """The checkpoint folder: scratch for a stateless pipeline, its own for a stateful one."""
    if drive.pipeline.checkpoint == "ledger":
        scratch = Scratch.after(plan, entry)
        try:
            yield str(scratch.folder), scratch
        finally:
            scratch.remove()
        return
    checkpoint = Checkpoint(drive.spark, drive.pipeline, drive.assembly.folder)
    try:
        checkpoint.check(plan)
        yield checkpoint.place, checkpoint
    finally:
        checkpoint.close()


def _stream(drive: Drive, runner: Runner, rows: DataFrame, folder: str, batch: bool) -> None:
    pipeline = drive.pipeline
    writer = rows.writeStream.queryName(pipeline.pipeline).option("checkpointLocation", folder).foreachBatch(runner)
    trigger = {"availableNow": True} if batch else {"processingTime": f"{pipeline.batch.trigger} seconds"}
    query = writer.trigger(**trigger).start()
    try:
        _watch(drive, runner, query, batch)
    finally:
        given_up = _end(drive, query, runner)
    if given_up:
        raise unfinished(drive.stop, runner.last, pipeline.batch.drain) from runner.error
    if runner.error is not None:
        raise runner.error
    problem = None if runner.closed else query.exception()
    if problem is not None:
        raise failure(problem, pipeline)
    reason = drive.stop.reason or ("all that was there has been read" if batch else "the query ended")
    drive.emit({"event": "stopped", "reason": reason, "batch": runner.last})


def _watch(drive: Drive, runner: Runner, query: StreamingQuery, batch: bool) -> None:
    """Until the query ends or a stop is asked for; says when the pipeline has drained, and when no broker answers."""
    told: TopicPartitions | None = None
    away, asked = False, 0.0
    while query.isActive and not drive.stop.event.wait(0.2):
        if runner.error is not None:
            return
        drive.follower.look(query, drive.scaler.wanted)
        drive.scaler.look(drive.spark, drive.emit)
        if batch or runner.busy or time.monotonic() - runner.since < IDLE_AFTER:
            continue
        if runner.positions == told and time.monotonic() - asked < _LOOK_EVERY:
            continue
        asked = time.monotonic()
        try:
            behind = source.lag(drive.pipeline, runner.positions, drive.cluster)
        except errors.KafkaError as error:  # the query notices for itself whether that matters
            if not away:
                drive.emit({"event": "away", "what": error.what})
            away = True
            continue
        if away:
            drive.emit({"event": "back"})
        away = False
        if behind == 0 and runner.positions != told and runner.rest():
            told = dict(runner.positions)
            drive.emit({"event": "idle", "batch": runner.last, "lag": 0})


def _end(drive: Drive, query: StreamingQuery, runner: Runner) -> bool:
    """Let the batch that is under way finish, note that, and end the query; whether the batch was given up."""
    runner.close()
    drive.follower.board.stopping()
    done = drive.stop.drained(lambda: runner.busy and query.isActive, drive.pipeline.batch.drain)
    try:
        if done and (runner.closed or query.isActive or query.exception() is None) and runner.rest():
            drive.lease.close()  # nothing is open and nothing will be: a standby need not wait for Spark's end
    finally:
        with contextlib.suppress(Exception):  # a query that has failed says so through exception()
            query.stop()
        drive.follower.look(query)
    return not done and not runner.rest()  # it may have come to its end at the last moment
