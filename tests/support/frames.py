"""Frames as a pipeline's function gets and makes them, for the tests of what the driver finds out about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tailrace.driver.leaf import one_row_per_task

TASKS = 3
COLUMNS = "key long, value string, at timestamp"

Function = Callable[[DataFrame, DataFrame], DataFrame]


def reading(spark: SparkSession) -> DataFrame:
    """Return a leaf as the driver makes it: each task yields what the local property `batch` names."""
    schema = pa.schema([("key", pa.int64()), ("value", pa.string()), ("at", pa.timestamp("us", "UTC"))])

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        batch = context.getLocalProperty("batch") if context else None
        for each in batches:
            keys = each.column(0).to_pylist()
            rows = [{"key": key, "value": f"batch {batch}", "at": None} for key in keys]
            yield pa.RecordBatch.from_pylist(rows, schema=schema)

    return one_row_per_task(spark, TASKS).mapInArrow(read, COLUMNS)


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass Arrow batches on unchanged."""
    return batches


def chance(name: str = "key") -> Any:
    """Return a Python function that is declared nondeterministic."""
    return F.udf(lambda value: value, "long").asNondeterministic()(name)


def sql(text: str) -> Function:
    """Return a query of the views `records` and `names`."""

    def run(frame: DataFrame, table: DataFrame) -> DataFrame:
        frame.createOrReplaceTempView("records")
        table.createOrReplaceTempView("names")
        return frame.sparkSession.sql(text)

    return run
