"""Adaptive limit on the records of Spark's next batch.

Spark asks its source for a fixed number (`maxOffsetsPerTrigger`), read once when the stream starts. The running query
keeps the number next to the source and reads it again for each batch; this module replaces it between two batches.
That is a Spark internal, not a public API. If it is not as expected, the stream warns once and continues with the
fixed number (docs/decisions/0011).
"""

from __future__ import annotations

import json
import time
from typing import Any

from pyspark.sql import SparkSession

from tailrace.config import Pipeline
from tailrace.driver.rate import Bounds, Observed, Rate
from tailrace.driver.record_size import weight
from tailrace.kafka.clients import TopicPartitions
from tailrace.progress.stream_plan import StreamPlan
from tailrace.status.events import Emit, Warned
from tailrace.telemetry import metrics

_QUERY = "org.apache.spark.sql.execution.streaming.runtime.StreamExecution"
_NEEDED = {"uniqueSources", "uniqueSources_$eq"}
_PLANNING_LIMIT = 60.0  # seconds; more than that before the runner means that the clock was set


class RateControl:
    """The limit of each batch of one run; call `begin` before the stream, `learn` after each batch."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, emit: Emit) -> None:
        batch = pipeline.batch
        self._spark = spark
        self._kafka = pipeline.kafka
        self._emit = emit
        self._bounds = Bounds(batch.target, batch.max_records, batch.max_bytes)
        self._rate = Rate.starting(self._bounds, None)
        self._fixed: int | None = None  # set if Spark's limit cannot be changed

    @property
    def limit(self) -> int:
        """Return the most records that the batch in progress, or else the next one, may have."""
        return self._rate.limit if self._fixed is None else self._fixed

    def begin(self, positions: TopicPartitions) -> None:
        """Before the stream starts, sample the first records' size, and check that Spark's limit can be changed."""
        self._rate = Rate.starting(self._bounds, weight(self._kafka, positions))
        why = self._missing()
        if why:
            self._give_up(why, self._bounds.max_records)

    def learn(self, plan: StreamPlan, seconds: float) -> None:
        """Set the limit of the next batch, after one that took `seconds` in the runner."""
        if self._fixed is not None:
            return
        before = self.limit
        try:
            query = self._spark._jsparkSession.streams().get(plan.query).streamingQuery()
            observed = Observed(plan.records, seconds_of(plan.entry, time.time(), seconds), _size(query, plan.records))
            rate = self._rate.after(observed)
            if rate.limit != before:
                _tell(self._spark, query, rate.limit)
            self._rate = rate
        except Exception as error:  # whatever Spark raises: the batch is delivered, and the stream continues
            self._give_up(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", before)

    def _missing(self) -> str:
        try:
            jvm: Any = self._spark._jvm
            found = {each.getName() for each in jvm.java.lang.Class.forName(_QUERY).getMethods()}
        except Exception as error:
            return f"{_QUERY} cannot be inspected ({type(error).__name__})"
        return "" if found >= _NEEDED else f"{_QUERY} has no {', '.join(sorted(_NEEDED - found))}"

    def _give_up(self, why: str, limit: int) -> None:
        self._fixed = limit
        self._emit(
            Warned(
                f"Spark {self._spark.version} does not let the limit of the next batch be changed ({why}); "
                f"every batch of this run has at most {limit:,} records"
            )
        )


def seconds_of(entry: str, now: float, seconds: float) -> float:
    """Return the seconds since Spark began a batch, by its offset log entry; at least those spent in the runner."""
    try:
        begun: float = json.loads(entry.splitlines()[1])["batchTimestampMs"] / 1000
    except (ValueError, KeyError, IndexError, TypeError):
        return seconds
    return now - begun if 0 <= now - begun - seconds <= _PLANNING_LIMIT else seconds


def _tell(spark: SparkSession, query: Any, limit: int) -> None:
    """Replace the limit of the query's one source."""
    jvm: Any = spark._jvm
    wanted = jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.maxRows(limit)
    limits = query.uniqueSources()
    (source,) = (limits.keys().toSeq().apply(number) for number in range(limits.size()))
    getattr(query, "uniqueSources_$eq")(limits.updated(source, wanted))


def _size(query: Any, records: int) -> int | None:
    """Return the bytes that the batch has read; None if Spark did not count them."""
    execution = query.lastExecution()
    if execution is None:
        return None
    found = execution.observedMetrics().get(metrics.READ)
    if not found.isDefined():
        return None
    row = found.get()
    consumed, size = (int(row.getAs(name)) for name in (metrics.CONSUMED, metrics.SIZE))
    return size * records // consumed if consumed else None
