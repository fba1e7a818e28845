"""The demo's job with Spark's own Kafka sink, to show the difference: `python -m tailrace.demo.spark FILE CHECKPOINT`.

The stages are the same; only the sink and its checkpoint folder are Spark's. The events come from that folder: Spark
writes `offsets/N` before batch N and `commits/N` after it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from tailrace.config import Pipeline
from tailrace.config.file import load
from tailrace.driver.spark_errors import failure
from tailrace.errors import TailraceError
from tailrace.kafka import source
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.java_client import spark_options
from tailrace.progress.stream_plan import offsets_of
from tailrace.signals import on_signals
from tailrace.spark_stream import spark_source
from tailrace.stages.assembly import Assembly
from tailrace.stages.decode import decode
from tailrace.stages.encode import encode
from tailrace.stages.process import apply, unchanged, validate
from tailrace.stages.rows import accepted, rejected
from tailrace.startup.run import assemble
from tailrace.startup.session import session
from tailrace.telemetry import metrics

LOOK = 0.01  # seconds between two looks into the checkpoint folder
PROGRESS_LIMIT = 0.05  # seconds to wait for Spark's own counts of a written batch
FINISH_LIMIT = 30.0


def emit(event: dict[str, Any]) -> None:
    """Write an event to standard output, as `tailrace run --output json` does."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def numbers(folder: Path) -> list[int]:
    """List the batches in one log of the checkpoint folder."""
    return sorted(int(each.name) for each in folder.iterdir() if each.name.isdigit()) if folder.is_dir() else []


class CheckpointLog:
    """Turns Spark's checkpoint folder into events about its batches, each once."""

    def __init__(self, folder: Path) -> None:
        self._offsets, self._commits = folder / "offsets", folder / "commits"
        self._committed = max(numbers(self._commits), default=-1)
        self._planned = self._committed
        # A batch that is planned but not committed when a driver starts is written again.
        self._replay = max(numbers(self._offsets), default=-1)

    @property
    def open(self) -> bool:
        """Whether a batch is planned and not committed."""
        return self._planned > self._committed

    def events(self) -> list[dict[str, Any]]:
        """Return the events since the last call."""
        found: list[dict[str, Any]] = []
        # Commits first: a batch is planned only when the one before it is committed.
        for batch in [each for each in numbers(self._commits) if each > self._committed]:
            if batch > self._planned:
                found.append(self._plan(batch))
            self._committed = batch
            found.append({"event": "written", "batch": batch, "in": self._records(batch)})
        found += [self._plan(each) for each in numbers(self._offsets) if each > self._planned]
        return found

    def _plan(self, batch: int) -> dict[str, Any]:
        self._planned = batch
        records = self._records(batch)
        return {"event": "planned", "batch": batch, "records": records, "replay": batch <= self._replay}

    def _records(self, batch: int) -> int:
        return self._end(batch) - self._end(batch - 1)

    def _end(self, batch: int) -> int:
        # The demo's topics begin at offset 0, and nothing else writes to them, so ends are counts.
        if batch < 0:
            return 0
        return sum(offsets_of((self._offsets / str(batch)).read_text(encoding="utf-8")).values())


def both(assembly: Assembly, records: DataFrame) -> DataFrame:
    """Return good and rejected rows in one frame, as a plain Spark job would."""
    pipeline = assembly.pipeline
    decoded = validate(decode(records, pipeline.source, assembly.folder), pipeline.process.validate_)
    good = accepted(decoded)
    good = apply(assembly.function, good, pipeline.process.arguments) if assembly.function else unchanged(good)
    rows = encode(good, pipeline.sink, assembly.folder)
    if assembly.may_reject:
        rows = rows.unionAll(rejected(decoded, "decode"))
    delivered = F.col("reason").isNull()
    return rows.observe(
        metrics.WRITTEN,
        F.count_if(delivered).alias(metrics.PRODUCED),
        F.count_if(~delivered).alias(metrics.REJECTED),
    )


def for_kafka(rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Return the rows with the columns Spark's Kafka sink expects; rejected rows go to their topic."""
    topic = F.coalesce(F.col("topic"), F.lit(pipeline.sink.topic))
    return rows.select(
        F.when(F.col("reason").isNotNull(), F.lit(pipeline.rejected_topic)).otherwise(topic).alias("topic"),
        "partition",
        "key",
        "value",
        "headers",
    )


def start(pipeline: Pipeline, folder: Path, checkpoint: Path) -> StreamingQuery:
    """Start the query with Spark's own sink."""
    spark = session(pipeline, connector=True)
    records = spark_source.stream(
        spark, pipeline, source.beginning(pipeline, Cluster(pipeline.kafka)), pipeline.batch.max_records
    )
    rows = for_kafka(both(assemble(spark, pipeline, folder), records), pipeline)
    writer = rows.writeStream.format("kafka").queryName(pipeline.pipeline).options(**spark_options(pipeline.kafka))
    return writer.option("checkpointLocation", str(checkpoint)).start()


def follow(query: StreamingQuery, log: CheckpointLog, stop: threading.Event) -> None:
    """Report events until a stop is requested, and then until no batch is open."""
    until: float | None = None
    while query.isActive:
        for event in log.events():
            emit(event | counts(query, event["batch"]) if event["event"] == "written" else event)
        if stop.is_set():
            until = until or time.monotonic() + FINISH_LIMIT
            if not log.open or time.monotonic() > until:
                return
        time.sleep(LOOK)


def counts(query: StreamingQuery, batch: int) -> dict[str, Any]:
    """Return Spark's counts of a batch; empty if they do not come in time."""
    until = time.monotonic() + PROGRESS_LIMIT
    while time.monotonic() < until:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] == batch:
            written = progress["observedMetrics"].get(metrics.WRITTEN)
            if written is None:
                return {}
            return {"out": written[metrics.PRODUCED], "rejected": written[metrics.REJECTED]}
        time.sleep(LOOK / 2)
    return {}


def main(arguments: Sequence[str]) -> int:
    """Run until SIGTERM."""
    file, checkpoint = Path(arguments[0]), Path(arguments[1])
    stop = threading.Event()
    on_signals(lambda _: stop.set())
    loaded = load(file)
    pipeline = loaded.pipeline
    try:
        log = CheckpointLog(checkpoint)
        query = start(pipeline, loaded.folder, checkpoint)
        emit({"event": "started", "pipeline": pipeline.pipeline, "run": str(query.runId), "batch": 0})
        follow(query, log, stop)
        error = None if stop.is_set() else query.exception()
        if error is not None:
            raise error
        query.stop()
        emit({"event": "stopped", "reason": "SIGTERM"})
    except Exception as problem:
        error_ = problem if isinstance(problem, TailraceError) else failure(problem, pipeline)
        emit({"event": "failed", **error_.as_dict()})
        return error_.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
