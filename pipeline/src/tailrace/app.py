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
import uuid
from pathlib import Path

from pyspark.sql import SparkSession

from tailrace import certificate, crash, errors, jars, pods, private, process, source, storage, warming
from tailrace.assembly import Assembly
from tailrace.checkpoint import prepare
from tailrace.config import Pipeline
from tailrace.drain import Stop as Stop
from tailrace.drive import Drive, Emit
from tailrace.driver import recovery, start
from tailrace.driver.loop import Run
from tailrace.driver.recovery import Recovered
from tailrace.driver.spark_engine import SparkEngine
from tailrace.failures import failure
from tailrace.gateway import daemon
from tailrace.kafka import Cluster
from tailrace.keeping import Keeper
from tailrace.progress.lease import Lease, Phase
from tailrace.progress.ledger import Ledger
from tailrace.progress.stores import open_store
from tailrace.rights import Operation
from tailrace.scaler import Scaler
from tailrace.spark_stream import stream
from tailrace.spark_stream.frame import frame
from tailrace.spark_stream.gate import Gate
from tailrace.standby import Standby
from tailrace.status.board import Board
from tailrace.status.follow import Follower
from tailrace.status.seen import Finished
from tailrace.telemetry import served
from tailrace.warming import Warming

# A batch that is read again must be cut as it was: no decision that depends on sizes.
_EXACT = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.stopTimeout": "60000",
    # A filter that is never true must not take away the tasks that read: rejected records and markers come from them.
    "spark.sql.optimizer.excludedRules": ",".join(
        f"org.apache.spark.sql.catalyst.optimizer.{rule}" for rule in ("PruneFilters", "PropagateEmptyRelation")
    ),
}
# What all workers import, and pyarrow with its first array: without it, a second of CPU or two for each of them.
_LOADED = "pandas,pyspark.worker,tailrace.driver.tasks,tailrace.spark_stream.gate"
_LOGGING = Path(__file__).with_name("log4j2.properties")


def session(pipeline: Pipeline, *, connector: bool = False) -> SparkSession:
    """Start a session of Spark with what exactness needs, and with its Kafka connector where it reads itself."""
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
    settings[f"spark.executorEnv.{daemon.ENV}"] = _LOADED
    options = [f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}", settings.get("spark.driver.extraJavaOptions", "")]
    settings["spark.driver.extraJavaOptions"] = " ".join(options).strip()
    connector = connector or pipeline.checkpoint != "ledger"
    needed = (jars.ensure("spark") if connector else []) + (jars.ensure("s3") if storage.on_s3(pipeline) else [])
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
    one's own may be given (for a notebook, or for many short runs); it is left
    running. A stateful pipeline needs Spark's Kafka connector in it.
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
                records = source.stream(spark, pipeline, None, pipeline.batch.max_records)
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
