"""Asking Spark for more executors, and letting some go, as `scaling` decides.

It listens to what the run tells of its batches, and acts from the thread that waits for the query's end: no batch waits
for it. An executor that is let go while it has a task does no harm: the task is tried again elsewhere, fences what was
begun, and is no failure to Spark.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from tailrace.config import Pipeline
from tailrace.driver.scaling import SPARKS_OWN, Bounds, Scaling, Seen
from tailrace.status.events import BatchWritten, Emit, Event, ExecutorsWanted, Idle

_LOOK = 1.0


class Scaler:
    """The executors of one run; does nothing where their number is fixed."""

    def __init__(self, pipeline: Pipeline, clock: Callable[[], float] = time.monotonic) -> None:
        chosen = pipeline.executors
        self._clock = clock
        self._scaling: Scaling | None = None
        self._written: BatchWritten | None = None
        self._waiting = 0
        self._looked = 0.0
        if chosen.max is not None:
            bounds = Bounds(chosen.min, chosen.max, chosen.backlog, chosen.settle)
            first = int(pipeline.spark.get("spark.executor.instances", str(SPARKS_OWN)))
            self._scaling = Scaling(bounds, bounds.within(first))

    @property
    def wanted(self) -> int | None:
        """How many there are to be; None where that is not decided here."""
        return self._scaling.wanted if self._scaling else None

    def heard(self, event: Event) -> None:
        """Take note of a batch, or of a source that is read to its end."""
        match event:
            case BatchWritten():
                self._written, self._waiting = event, event.lag
            case Idle():
                self._waiting = 0

    def look(self, spark: SparkSession, emit: Emit) -> None:
        """Decide, and act."""
        now = self._clock()
        if self._scaling is None or now - self._looked < _LOOK:
            return
        self._looked = now
        before, written = self._scaling, self._written
        self._written = None
        with contextlib.suppress(Py4JError):  # a session that ends has no executors
            present = self._executors(spark)
            records, seconds = (written.read, written.seconds) if written else (0, 0.0)
            self._scaling = before.after(Seen(now, self._waiting, len(present), records, seconds))
            wanted = self._scaling.wanted
            if wanted != before.wanted:
                emit(ExecutorsWanted(wanted, len(present), self._waiting))
                self._ask(spark, wanted, present)

    def _executors(self, spark: SparkSession) -> list[str]:
        """The ids of those that have registered, the oldest first."""
        text = str(spark.sparkContext._jsc.sc().getExecutorIds().mkString(" "))
        return sorted(text.split(), key=int)

    def _ask(self, spark: SparkSession, wanted: int, present: list[str]) -> None:
        context: Any = spark.sparkContext._jsc.sc()
        utils: Any = spark.sparkContext._jvm.org.apache.spark.api.python.PythonUtils  # type: ignore[union-attr]
        for each in present[wanted:]:
            context.killExecutors(utils.toSeq([each]))
        # Last, for each that is let go lowers Spark's own number.
        context.requestTotalExecutors(wanted, 0, utils.toScalaMap({}))
