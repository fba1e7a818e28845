"""Executor scaling: requests executors from Spark and releases them, as `scaling` decides, or as a file asks.

It learns of batches from the run's events, and acts in the thread that waits for the query's end, so no batch waits for
it. Releasing an executor that runs a task does no harm: the task is retried elsewhere, fences what was begun, and is no
failure to Spark.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from tailrace.config import Pipeline
from tailrace.driver import executor_file
from tailrace.driver.scaling import Bounds, Scaling, Seen
from tailrace.status.events import BatchWritten, Emit, Event, ExecutorsWanted, Idle

_LOOK = 1.0


class Scaler:
    """Scales the executors of one run; does nothing if their number is fixed and no file changes it."""

    def __init__(self, pipeline: Pipeline, clock: Callable[[], float] = time.monotonic) -> None:
        chosen = pipeline.executors
        self._pipeline = pipeline
        self._clock = clock
        self._asked = executor_file.read(pipeline)
        self._scaling: Scaling | None = None
        self._written: BatchWritten | None = None
        self._waiting = 0
        self._looked = 0.0
        if chosen.max is not None:
            bounds = Bounds(chosen.min, chosen.max, chosen.backlog, chosen.settle)
            self._scaling = Scaling(bounds, bounds.within(executor_file.instances(pipeline)))

    @property
    def wanted(self) -> int | None:
        """The number of executors to have; None if it is not decided here."""
        return self._scaling.wanted if self._scaling else self._asked

    def heard(self, event: Event) -> None:
        """Record a batch, or that the source has been read to its end."""
        match event:
            case BatchWritten():
                self._written, self._waiting = event, event.lag
            case Idle():
                self._waiting = 0

    def look(self, spark: SparkSession, emit: Emit) -> None:
        """Decide how many executors are wanted, and act."""
        now = self._clock()
        if now - self._looked < _LOOK:
            return
        self._looked = now
        before, asked = self.wanted, self._newly_asked()
        if asked is None and self._scaling is None:
            return
        written, self._written = self._written, None
        with contextlib.suppress(Py4JError):  # a session that is ending has no executors
            present = executor_ids(spark)
            records, seconds = (written.read, written.seconds) if written else (0, 0.0)
            if self._scaling is not None:
                scaling = self._scaling if asked is None else self._scaling.set(asked)
                self._scaling = scaling.after(Seen(now, self._waiting, len(present), records, seconds))
            wanted = self.wanted
            if wanted is not None and wanted != before:
                emit(ExecutorsWanted(wanted, len(present), self._waiting))
                self._ask(spark, wanted, present)

    def _newly_asked(self) -> int | None:
        """Return the number in the file if it differs from the last one."""
        asked = executor_file.read(self._pipeline)
        if asked is None or asked == self._asked:
            return None
        self._asked = asked
        return asked

    def _ask(self, spark: SparkSession, wanted: int, present: list[str]) -> None:
        context: Any = spark.sparkContext._jsc.sc()
        utils: Any = spark.sparkContext._jvm.org.apache.spark.api.python.PythonUtils  # type: ignore[union-attr]
        for each in present[wanted:]:
            context.killExecutors(utils.toSeq([each]))
        # Last, because each release lowers Spark's own number.
        context.requestTotalExecutors(wanted, 0, utils.toScalaMap({}))


def executor_ids(spark: SparkSession) -> list[str]:
    """Return the ids of the registered executors, the oldest first."""
    text = str(spark.sparkContext._jsc.sc().getExecutorIds().mkString(" "))
    return sorted(text.split(), key=int)
