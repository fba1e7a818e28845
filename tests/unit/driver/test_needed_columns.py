"""Which columns of the records a frame needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tailrace.config import Sink
from tailrace.driver.leaf import one_row_per_task
from tailrace.driver.needed_columns import needed, telling
from tailrace.stages.encode import encode

SCHEMA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
ALL = ("key", "value", "topic", "partition", "offset", "timestamp")

FRAMES: dict[str, tuple[Callable[[DataFrame], DataFrame], tuple[str, ...]]] = {
    "a column": (lambda f: f.select("value"), ("value",)),
    "all": (lambda f: f, ALL),
    "a filter": (lambda f: f.where("offset > 5").select("value"), ("value", "offset")),
    "what is dropped on the way": (lambda f: f.withColumn("x", F.upper("topic")).select("key"), ("key",)),
    "a field of a struct": (
        lambda f: f.select(F.struct("key", "offset").alias("k"), "value").select("k.offset"),
        ("offset",),
    ),
    "a shuffle": (lambda f: f.repartition(2, "key").select("value"), ("key", "value")),
    "a function on Arrow batches": (
        lambda f: f.select("key", "value").mapInArrow(lambda batches: batches, "key binary, value binary"),
        ("key", "value"),
    ),
    "a Python function": (lambda f: f.select(F.udf(lambda key: key, "binary")("key").alias("k")), ("key",)),
    "a join": (
        lambda f: f.join(F.broadcast(f.sparkSession.range(3)), F.col("offset") == F.col("id")).select("value"),
        ("value", "offset"),
    ),
    "an explosion": (lambda f: f.select(F.explode(F.array("key", "value"))), ("key", "value")),
    "nothing": (lambda f: f.select(F.lit(1).alias("one")), ("offset",)),
    "a union, whose columns go by their order": (lambda f: f.union(f.sparkSession.sql(_ROW)).select("value"), ALL),
}
_ROW = "SELECT X'00' a, X'00' b, '' c, 1 d, 1L e, now() f"


def _read(batches: Iterator[Any]) -> Iterator[Any]:
    return batches


@pytest.mark.parametrize("name", FRAMES)
def test_columns_that_a_frame_uses_are_needed(spark: SparkSession, name: str) -> None:
    """No others are needed, if Spark's plan shows which those are."""
    leaf = one_row_per_task(spark, 1).mapInArrow(_read, SCHEMA)
    make, columns = FRAMES[name]
    assert needed(make(leaf), leaf) == columns


ROWS: dict[str, tuple[Callable[[DataFrame], DataFrame], list[str]]] = {
    "a value": (lambda f: f.select("value"), ["value"]),
    "a key": (lambda f: f.select("key", "value"), ["key", "value"]),
    "a topic of its own": (lambda f: f.select("topic", "value"), ["topic", "value"]),
    "a partition of its own, which may be wrong": (
        lambda f: f.select("partition", "value"),
        ["topic", "partition", "value", "headers", "reason"],
    ),
    "another topic": (lambda f: f.select(F.lit("b").alias("topic"), "value"), ["topic", "value"]),
    "the sink's own topic": (lambda f: f.select(F.lit("a").alias("topic"), "value"), ["value"]),
    "a constant": (lambda f: f.select(F.lit("x").alias("value")), ["value"]),
}


@pytest.mark.parametrize("name", ROWS)
def test_columns_with_content_are_sent_to_the_sink(spark: SparkSession, name: str) -> None:
    """The gateway recreates columns that hold only null."""
    leaf = one_row_per_task(spark, 1).mapInArrow(_read, SCHEMA)
    make, columns = ROWS[name]
    sink = Sink.model_validate({"topic": "a", "format": "raw"})
    assert telling(encode(make(leaf), sink, Path()), "a") == columns
