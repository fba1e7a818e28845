"""The driver's entry: load, assemble, run until told to stop.

What it decides it leaves to `progress`; here is the order of things: take the ledger (and so fence any older
driver), finish the batch that was open, check where to go on, and let Spark stream.
"""

from __future__ import annotations

import contextlib
import datetime
import uuid
from pathlib import Path

from pyspark.sql import SparkSession

from tailrace import crash_points, errors
from tailrace.config import Pipeline
from tailrace.driver import recovery, start
from tailrace.driver.context import Drive, Emit
from tailrace.driver.follower import Follower
from tailrace.driver.loop import Run
from tailrace.driver.offset_mirror import Keeper
from tailrace.driver.recovery import Recovered
from tailrace.driver.scaler import Scaler
from tailrace.driver.shutdown import Stop as Stop
from tailrace.driver.spark_engine import SparkEngine
from tailrace.driver.spark_errors import failure
from tailrace.kafka import certificate, source
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.rights import Operation
from tailrace.progress.lease import Lease, Phase
from tailrace.progress.ledger import Ledger
from tailrace.progress.stores import open_store
from tailrace.spark_stream import spark_source, stream
from tailrace.spark_stream.checkpoint import prepare
from tailrace.spark_stream.frame import frame
from tailrace.spark_stream.gate import Gate
from tailrace.stages import process
from tailrace.stages.assembly import Assembly
from tailrace.startup import warming
from tailrace.startup.session import EXACT, session, with_executors
from tailrace.startup.standby import Standby
from tailrace.startup.warming import Warming
from tailrace.status.board import Board
from tailrace.status.snapshots import Finished


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
    one's own may be given (for a notebook, or for many short runs); it is left
    running. A stateful pipeline needs Spark's Kafka connector in it.
    """
    crash_points.root()
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
        given, spark = spark, spark or with_executors(pipeline, emit, stop)
        for key, value in EXACT.items():
            spark.conf.set(key, value)
        try:
            follower.session(spark)
            # Whoever gives a session for many runs has warm workers; a standby waits, and warms in its own time.
            warm = Warming(spark) if given is None and not standby else None
            prepare(spark, pipeline)
            assembly = assemble(spark, pipeline, folder)
            # What a start would refuse is refused now: before older drivers are fenced, or while one still works.
            engine = SparkEngine(spark, pipeline, assembly, name) if pipeline.checkpoint == "ledger" else None
            drive = Drive(
                spark, pipeline, assembly, engine, cluster, ledger, lease, keeper, emit, stop, name, follower, scaler
            )
            if engine is not None:
                follower.board.planning = engine.planning
            stages = engine.warm if engine is not None else lambda: warming.stream(spark, assembly)
            if warm is not None and engine is not None:  # a stateful function is not called beside itself
                warm.then(stages)
            if engine is None:
                records = spark_source.stream(spark, pipeline, None, pipeline.batch.max_records)
                frame(assembly, records, Gate.of(pipeline, None))
            if not standby or Standby(spark, pipeline, stages, cluster, ledger, lease, name, emit, stop).wait():
                _run(drive, batch, warm)
        except errors.TailraceError:
            raise
        except Exception as error:
            raise failure(error, pipeline) from error
        finally:
            lease.close()  # a standby need not wait for the end of the session
            if given is None:
                with contextlib.suppress(Exception):
                    spark.stop()


def planning(pipeline: Pipeline, folder: Path) -> tuple[str, tuple[str, ...]]:
    """Start Spark and return whether a stateless pipeline's frame is planned once or anew for each batch, and why."""
    local = {"spark.master": "local[1]", "spark.ui.enabled": "false"}
    plain = pipeline.model_copy(update={"spark": pipeline.spark | local, "executors": type(pipeline.executors)()})
    spark = session(plain)
    try:
        return SparkEngine(spark, plain, assemble(spark, plain, folder), "doctor").planning
    finally:
        spark.stop()


def preflight(pipeline: Pipeline, cluster: Cluster) -> None:
    """What must be there before anything starts: brokers, topics; Tailrace's own topics are made."""
    certificate.check(pipeline.kafka.options, datetime.datetime.now(datetime.UTC))
    source.partitions_of(pipeline, cluster)
    if pipeline.sink.topic is not None:
        cluster.require([pipeline.sink.topic], "sink topic", Operation.WRITE)
    cluster.ensure(pipeline.rejected_topic, 1, -1, {})


def _run(drive: Drive, batch: bool, warm: Warming | None) -> None:
    pipeline = drive.pipeline
    recovered, note = recovery.take(pipeline, drive.ledger, drive.cluster)
    if note:
        drive.emit({"event": "note", "what": note})
    if warm is not None:
        warm.done(drive.stop)
    if drive.engine is not None:
        _run_batches(drive, drive.engine, recovered, batch)
    else:
        stream.run(drive, recovered, until_read=batch)


def _run_batches(drive: Drive, engine: SparkEngine, recovered: Recovered, batch: bool) -> None:
    """Run a stateless pipeline: the driver plans its batches."""
    board, assembly = drive.follower.board, drive.assembly

    def finished(done: Finished) -> None:
        board.finished(done)
        board.counted(done)

    def tick() -> None:
        drive.follower.executors(drive.scaler.wanted)
        drive.scaler.look(drive.spark, drive.emit)
        if drive.stop.event.is_set():
            board.stopping()

    run = Run(
        pipeline=drive.pipeline,
        cluster=drive.cluster,
        ledger=drive.ledger,
        keeper=drive.keeper,
        emit=drive.emit,
        stop=drive.stop,
        name=drive.run,
        shape=assembly.shape,
        code=assembly.code,
        finished=finished,
        tick=tick,
        leave=drive.lease.close,
        following=drive.follower.stream,
    )
    start.run(run, engine, recovered, until_read=batch)
