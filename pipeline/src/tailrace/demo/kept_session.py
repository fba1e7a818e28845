"""The Spark session that `tailrace dev` keeps between runs, so that a change of the code is seen in a second.

Spark's workers keep the modules that they have imported, and Spark keeps the files that it was given. So a session can
run changed code only if the code reaches the workers as text: the function on Arrow batches (`stages.arrow_function`),
and a pydantic model. Any other pipeline gets a session for each run, as in `tailrace run`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from tailrace.config import Pipeline
from tailrace.driver.shutdown import Stop
from tailrace.driver.spark_engine import in_arrow
from tailrace.errors import ConfigError, FunctionFailed, TailraceError
from tailrace.startup.pods import asked_for
from tailrace.startup.session import with_executors
from tailrace.status.events import Emit, Starting

Start = Callable[[Pipeline, Emit, Stop], SparkSession]


def reloads(pipeline: Pipeline) -> bool:
    """Return whether a session can run this pipeline's code again after a change."""
    own = ":" in pipeline.source.format or ":" in pipeline.sink.format  # classes that the workers import
    return pipeline.checkpoint == "ledger" and in_arrow(pipeline) and not own and not asked_for(pipeline)


class KeptSession:
    """One session, and the settings that it was started with."""

    def __init__(self, start: Start = with_executors) -> None:
        self._start = start
        self._spark: SparkSession | None = None
        self._settings: Any = None

    def of(self, pipeline: Pipeline, emit: Emit, stop: Stop) -> SparkSession | None:
        """Return a session for a run of the pipeline; None if the run must start its own."""
        settings = (pipeline.pipeline, pipeline.spark, pipeline.metrics)
        kept = reloads(pipeline)
        if not kept or settings != self._settings:
            self.close()
        if not kept:
            return None
        if self._spark is None:
            emit(Starting(pipeline.pipeline))
            self._spark, self._settings = self._start(pipeline, emit, stop), settings
        return self._spark

    def failed(self, error: TailraceError) -> None:
        """Close the session after an error that may come from it, and not from the code or the configuration."""
        if not isinstance(error, ConfigError | FunctionFailed):
            self.close()

    def close(self) -> None:
        """Stop the session, if there is one."""
        spark, self._spark, self._settings = self._spark, None, None
        if spark is not None:
            spark.stop()
