"""A Spark job that only writes with Tailrace, as a process: `python -m faults.worlds.dropin_driver FILE`.

Its source, batches and checkpoint are Spark's. It prints the events that a world follows, from the query's progress.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

import tailrace
from tailrace import crash_points, jars

_LOOK = 0.1  # seconds between two looks at the query
_CODE = re.compile(r"TR-\d{3}")


def main(path: str) -> int:
    """Run the query until SIGTERM."""
    crash_points.root()
    file = Path(path)
    given = json.loads(file.read_text())
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    query = started(session(given["spark"]), given, file.parent)
    try:
        follow(query, stopping)
    except Exception as error:
        emit(error=(_CODE.findall(str(error)) or ["none"])[0], what=str(error)[-2000:])
        return 1
    return 0


def session(settings: dict[str, str]) -> SparkSession:
    """Start Spark with the jars of its Kafka source."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    paths = ",".join(map(str, jars.ensure("spark")))
    return builder.config("spark.jars", paths).config("spark.sql.adaptive.enabled", "false").getOrCreate()


def started(spark: SparkSession, given: dict[str, Any], folder: Path) -> StreamingQuery:
    """Start the query: Spark's source, the world's function, Tailrace's sink."""
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", given["bootstrap"])
        .option("kafka.isolation.level", "read_committed")
        # Otherwise each partition of each batch waits half a second (docs/decisions/0026).
        .option("kafka.fetch.max.wait.ms", 5)
        .option("subscribe", given["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", given["max_records"])
        .load()
    )
    options = {"kafka.bootstrap.servers": given["bootstrap"], "topic": given["sink"], "id": given["name"]}
    sink = tailrace.exactly_once(**options | {"ledger.topic": given["ledger"]})
    sys.path.insert(0, str(folder))
    spark.sparkContext.addPyFile(str(folder / "work.py"))  # a module that the workers can import
    function = importlib.import_module("work").frame
    made = function(rows.select("value", F.struct("key").alias("kafka")), given["work"], "raw")
    query: StreamingQuery = (
        made.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "state")).start()
    )
    return query


def follow(query: StreamingQuery, stopping: list[int]) -> None:
    """Tell of each batch, and each time that nothing is left to do, until a signal came."""
    last, idle = -1, False
    while not stopping:
        error = query.exception()
        if error is not None:
            raise error
        progress: Any = query.lastProgress
        if progress is not None and progress["numInputRows"] and progress["batchId"] > last:
            last, idle = progress["batchId"], False
            emit(event="written", batch=last, sinks=0, out=0, skipped=0)
        if progress is not None and not idle and not query.status["isTriggerActive"] and at_end(progress):
            idle = True
            emit(event="idle", lag=0)
        time.sleep(_LOOK)
    query.stop()


def at_end(progress: Any) -> bool:
    """Whether the last trigger has read all that was there; a batch may be left that has only ends of transactions."""
    return all(each["endOffset"] == each["latestOffset"] for each in progress["sources"])


def emit(**event: Any) -> None:
    """Print an event."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
