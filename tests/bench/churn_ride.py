"""The client process of the churn benchmark (churn.py): one way of producing, for a number of batches.

Each way has its own process, so that its threads and memory are that way's alone. It reports each batch on standard
output, and exits when its standard input ends.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryListener

from bench.ways import PYTHON
from tailrace.config import Pipeline
from tailrace.spark_stream.spark_source import NO_WAIT
from tailrace.startup import run
from tailrace.startup.session import session

PARTITIONS = 64
PER_PARTITION = 20  # records of each batch
TRIGGER = 0.5
SPARK = {"spark.master": "local[2,1]", "spark.ui.enabled": "false", "spark.driver.memory": "1g"}
# Spark's defaults: its own daemon, over TCP. Tailrace's session differs in these two.
PLAIN = {"spark.python.daemon.module": "pyspark.daemon", "spark.python.unix.domain.socket.enabled": "false"}
LIMIT = 1800.0


class Heard(StreamingQueryListener):
    """Reports each batch, and notices the last."""

    def __init__(self, wanted: int) -> None:
        self._left = wanted
        self._batches = 0
        self.enough = threading.Event()

    def onQueryStarted(self, event: object) -> None:  # noqa: N802 - PySpark's name
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Report a batch; ignore a trigger without input."""
        progress = event.progress
        if not progress.numInputRows or not self._left:
            return
        self._left -= 1
        self._batches += 1
        line = {"batch": self._batches, "seconds": progress.durationMs["triggerExecution"] / 1000}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        if not self._left:
            self.enough.set()

    def onQueryIdle(self, event: object) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: object) -> None:  # noqa: N802
        """Stop waiting: the stream has ended, perhaps with an error."""
        self.enough.set()


def pipeline(way: str, bootstrap: str, source: str, target: str) -> Pipeline:
    """Return a pipeline that copies values; its session settings serve the ways other than Tailrace, too."""
    own = way.startswith("tailrace")
    return Pipeline.model_validate(
        {
            "pipeline": way,
            "kafka": {"bootstrap.servers": bootstrap},
            "source": {"topics": [source]},
            "sink": {
                "topic": target,
                "format": "raw",
                "delivery": "at-least-once" if way.endswith("at-least-once") else "exactly-once",
            },
            "batch": {"max_records": PARTITIONS * PER_PARTITION, "target": 0, "trigger": TRIGGER},
            "metrics": {"port": 0, "gateways": 0},
            "spark": SPARK if own else SPARK | PLAIN,
        }
    )


def until_told() -> None:
    """Wait for the end of standard input, so that the last sample is taken while everything still runs."""
    sys.stdin.read()


def plain(way: str, spark: SparkSession, bootstrap: str, source: str, target: str, heard: Heard, folder: str) -> None:
    """Run one of the Python ways, or Spark's own sink."""
    read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", source)
    read = read.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", PARTITIONS * PER_PARTITION)
    read = read.options(**NO_WAIT)  # as Tailrace reads: only the writing differs
    write = read.load().select("value").writeStream.option("checkpointLocation", folder)
    write = write.trigger(processingTime=f"{int(TRIGGER * 1000)} milliseconds")
    if way == "spark":
        write = write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", target)
    else:
        write = write.foreachBatch(each_batch(PYTHON[way]({"bootstrap.servers": bootstrap}, target, spark)))
    query = write.start()
    heard.enough.wait(LIMIT)
    if query.exception() is not None:
        raise RuntimeError(str(query.exception()))
    until_told()
    query.stop()


def each_batch(send: Callable[[Iterator[Any]], None]) -> Callable[[DataFrame, int], None]:
    """Return a `foreachBatch` function whose tasks pass their records to `send`."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        send(batches)
        yield from ()

    def run(frame: DataFrame, number: int) -> None:
        frame.mapInArrow(task, "done int").collect()

    return run


def tailrace(settings: Pipeline, spark: SparkSession, heard: Heard, folder: str) -> None:
    """Run the same pipeline through the gateway."""
    stop = run.Stop()

    def end() -> None:
        heard.enough.wait(LIMIT)
        until_told()
        stop("the batches are done")

    threading.Thread(target=end, daemon=True).start()
    run.run(settings, Path(folder), stop=stop, spark=spark)


def main(way: str, bootstrap: str, source: str, target: str, batches: str) -> None:
    """Run one way until its last batch is done and standard input ends."""
    settings = pipeline(way, bootstrap, source, target)
    spark = session(settings, connector=True)
    heard = Heard(int(batches))
    spark.streams.addListener(heard)
    with tempfile.TemporaryDirectory() as folder:
        if way.startswith("tailrace"):
            tailrace(settings, spark, heard, folder)
        else:
            plain(way, spark, bootstrap, source, target, heard, folder)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # without waiting for producers in the driver's process
