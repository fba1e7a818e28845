"""The benchmark's native side: Spark reads from Kafka and writes with its own at-least-once sink, in its own process.

Run as `python -m bench.native FILE`, where FILE holds what `workloads.native` returns. It prints `started`, works until
SIGTERM, and only then prints the progress of its last batches, so that reporting costs nothing during the measurement.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from bench.workloads import CONDITION, FIELDS, SCHEMA
from tailrace import jars

LOOK_EVERY = 0.5


def say(event: dict[str, Any]) -> None:
    """Print one event as a line of JSON."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def session(settings: dict[str, str]) -> SparkSession:
    """Start Spark with its Kafka connector and these settings."""
    jars.java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("native sink").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.jars", ",".join(map(str, jars.ensure("spark"))))
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def raw(frame: DataFrame) -> DataFrame:
    """Keep the value alone."""
    return frame.select("value")


def project(frame: DataFrame) -> DataFrame:
    """Parse, filter and project JSON, and write JSON."""
    parsed = frame.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("record")).select("record.*")
    return parsed.where(CONDITION).select(F.to_json(F.struct(*FIELDS)).alias("value"))


def main(file: str) -> None:
    """Run the query until SIGTERM; end with an error if the query does."""
    spec = json.loads(Path(file).read_text(encoding="utf-8"))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    spark = session(spec["settings"])
    frame = spark.readStream.format("kafka").options(**spec["reader"]).load()
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = (project if spec["json"] else raw)(frame).writeStream.format("kafka").options(**spec["writer"])
        query = writer.option("checkpointLocation", checkpoint).start()
        say({"event": "started"})
        while query.isActive and not stop.wait(LOOK_EVERY):
            pass
        problem = query.exception()
        if problem is not None:
            raise RuntimeError(str(problem))
        for progress in query.recentProgress:
            if progress["numInputRows"]:
                seconds = progress["durationMs"]["triggerExecution"] / 1000
                say({"event": "written", "in": progress["numInputRows"], "seconds": seconds})
        query.stop()
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
