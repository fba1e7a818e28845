"""A Spark session with what exactness needs: its settings, its jars, and the executors that it waits for."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tailrace import errors, jars
from tailrace.config import Format, Pipeline
from tailrace.driver import executor_file
from tailrace.driver.scaler import executor_ids
from tailrace.driver.shutdown import Stop
from tailrace.gateway import daemon
from tailrace.spark_stream import storage
from tailrace.spark_stream.exact import EXACT
from tailrace.startup import jvm, pods, secret_settings
from tailrace.startup.executor_template import SETTING, ExecutorTemplate
from tailrace.startup.reaper import Reaper
from tailrace.status.events import Emit, Noted
from tailrace.telemetry import gateway_settings

DEFAULTS = {"spark.sql.shuffle.partitions": "8", "spark.sql.session.timeZone": "UTC"}
# What all workers import, with pyarrow's first array: loaded once, it saves each of them one or two seconds of CPU.
_LOADED = "pandas,pyspark.worker,tailrace.driver.tasks,tailrace.spark_stream.gate"
_LOADED_FOR_AVRO = "tailrace.stages.formats.avro_format"
_LOGGING = Path(__file__).with_name("log4j2.properties")
_starting = threading.Lock()


def exists() -> bool:
    """Return whether this process has a Spark session, in any of its threads."""
    return SparkContext._active_spark_context is not None  # PySpark's public ways ask for this thread, or start one


def refuse_second() -> None:
    """Refuse to start Spark in a process that has it: PySpark would return that session, to be changed and stopped."""
    if exists():
        raise errors.OptionRefused(
            "this process has a Spark session already, and can have only one",
            kept="nothing was read or written, and the session goes on as it is",
            then="pass the session: spark=spark; or stop it first: spark.stop()",
        )


def session(pipeline: Pipeline, *, connector: bool = False) -> SparkSession:
    """Start a Spark session with what exactness needs, and with the Kafka connector if Spark itself reads."""
    jars.java()
    # The user's environment must not bring another Python to the workers.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # A batch reaches its tasks by properties of the thread that starts the job: without it, calls share threads.
    os.environ["PYSPARK_PIN_THREAD"] = "true"
    settings = {
        "spark.master": "local[*,4]",  # without the 4, a task that fails is not retried
        "spark.app.name": f"tailrace {pipeline.pipeline}",
        "spark.ui.showConsoleProgress": "false",
        **DEFAULTS,
        # Each PySpark call would ask the JVM ten times more, to name the caller's line in errors: 40 % of the CPU of a
        # small stateful batch. Tailrace's own errors name the function's line from the traceback.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.daemon.module": "tailrace.gateway.daemon",
        # Otherwise Spark adds up a batch's bytes after each row; batch.max_bytes bounds it (docs/decisions/0013).
        "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
        # With Spark's 64, an executor that reads as many partitions recreates all its consumers (docs/decisions/0025).
        "spark.kafka.consumer.cache.capacity": "1024",
        **secret_settings.REDACTION,
        **storage.settings(pipeline),
        **pods.settings(pipeline, os.environ),
        **pipeline.spark,
        **EXACT,
        # The second copy of a task would fence the first, which fails then; four of them would end the batch.
        "spark.speculation": "false",
        "spark.shuffle.reduceLocality.enabled": "false",
    }
    if pipeline.executors.file is not None:
        settings[executor_file.INSTANCES] = str(executor_file.instances(pipeline))
    if pipeline.metrics.enabled:  # the executors' Python processes can be watched
        settings[f"spark.executorEnv.{gateway_settings.ENV}"] = str(gateway_settings.Watched.of(pipeline))
    avro = Format.AVRO in (pipeline.source.format, pipeline.sink.format)
    settings[f"spark.executorEnv.{daemon.ENV}"] = f"{_LOADED},{_LOADED_FOR_AVRO}" if avro else _LOADED
    options = [f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}", settings.get("spark.driver.extraJavaOptions", "")]
    settings["spark.driver.extraJavaOptions"] = " ".join(options).strip()
    connector = connector or pipeline.checkpoint != "ledger"
    needed = (jars.ensure("spark") if connector else []) + (jars.ensure("s3") if storage.on_s3(pipeline) else [])
    listed = [settings.get("spark.jars", ""), *map(str, needed)]
    settings["spark.jars"] = ",".join(filter(None, listed))
    builder = SparkSession.builder
    # Settings of the checkpoint's store follow once the session exists, and never enter Spark's own configuration.
    later = storage.hidden(settings) if storage.on_s3(pipeline) else {}
    secret = secret_settings.secrets(settings)
    for name, value in settings.items():
        if name not in later | secret:
            builder = builder.config(name, value)
    if "TAILRACE_LOG" not in os.environ:
        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # Tailrace's error says the same
    handler = signal.getsignal(signal.SIGINT)
    heard: jvm.Errors | None = None
    try:
        handed = {name: value for name, value in secret.items() if name not in later}
        with _starting, secret_settings.handed_over(handed):
            refuse_second()
            heard = jvm.start({name: value for name, value in settings.items() if name not in later | secret})
            spark = builder.getOrCreate()
    except errors.TailraceError:
        raise
    except Exception as error:
        raise jvm.refused(error, heard) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)  # Spark's own handler would cancel the batch in progress
    return spark


def with_executors(pipeline: Pipeline, emit: Emit, stop: Stop) -> SparkSession:
    """Start a session and wait for an executor; if executors are pods, first delete those left by an earlier driver."""
    executors = pods.Executors.of(pipeline, os.environ)
    note = executors.sweep() if executors else ""
    if note:
        emit(Noted(note))
    template = ExecutorTemplate.of(pipeline.spark) if executors else None
    own = {SETTING: str(template.file)} if template else {}
    spark = session(pipeline.model_copy(update={"spark": pipeline.spark | own}))
    if pods.asked_for(pipeline):
        status = spark.sparkContext._jsc.sc().getExecutorMemoryStatus  # includes the driver
        try:
            pods.await_executors(
                lambda: int(status().size()) - 1,
                stop.event,
                executors.why if executors else str,
                pipeline.executors.patience,
            )
        except errors.TailraceError:
            spark.stop()
            raise
    if executors:
        reaper = Reaper(executors, lambda: _registered(spark), template=template)
        told = (stop.event, lambda text: emit(Noted(text)))
        threading.Thread(target=reaper.run, args=told, name="tailrace-reaper", daemon=True).start()
    return spark


def _registered(spark: SparkSession) -> frozenset[str]:
    """Return the ids of the executors that Spark has."""
    try:
        return frozenset(executor_ids(spark))
    except Py4JError as error:
        raise OSError("the session is ending") from error
