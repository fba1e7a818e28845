"""What Spark does with a plan that is kept from batch to batch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from support.frames import TASKS


def collected(frame: DataFrame, batch: int, column: str) -> list[Any]:
    """Return one column of a batch."""
    frame.sparkSession.sparkContext.setLocalProperty("batch", str(batch))
    return sorted(row[column] for row in frame.collect())


def test_kept_plan_reads_each_batch_in_tasks_of_their_own(leaf: DataFrame) -> None:
    """The local property tells them which batch."""
    frame = leaf.filter("key >= 0").withColumn("task", F.spark_partition_id())
    assert collected(frame, 1, "value") == ["batch 1"] * TASKS
    assert collected(frame, 2, "value") == ["batch 2"] * TASKS
    assert [row["task"] == row["key"] for row in frame.collect()] == [True] * TASKS


def test_kept_plan_freezes_the_time(leaf: DataFrame) -> None:
    """A frame that is planned for the batch has the time of the batch."""
    frame = leaf.withColumn("x", F.current_timestamp())
    first = collected(frame, 1, "x")
    time.sleep(0.01)
    assert collected(frame, 2, "x") == first
    assert collected(frame.select("*"), 2, "x") > first


def test_kept_plan_delivers_the_rows_of_an_old_shuffle(leaf: DataFrame) -> None:
    """The records of the second batch would be lost."""
    frame = leaf.repartition(2, "key")
    assert collected(frame, 1, "value") == ["batch 1"] * TASKS
    assert collected(frame, 2, "value") == ["batch 1"] * TASKS
    assert collected(frame.select("*"), 2, "value") == ["batch 2"] * TASKS


def test_kept_plan_keeps_the_rows_of_another_table(leaf: DataFrame, tmp_path: Path) -> None:
    """A frame that is planned for the batch reads them again."""
    spark, file = leaf.sparkSession, tmp_path / "name"
    place = str(file)

    def row(key: int) -> tuple[int, str]:
        with open(place) as text:
            return key, text.read()

    rows = spark.sparkContext.parallelize(range(TASKS), 1).map(row)
    frame = leaf.join(F.broadcast(spark.createDataFrame(rows, "k long, name string")), F.col("key") == F.col("k"))
    file.write_text("old")
    assert collected(frame, 1, "name") == ["old"] * TASKS
    file.write_text("new")
    assert collected(frame, 2, "name") == ["old"] * TASKS
    assert collected(frame.select("*"), 2, "name") == ["new"] * TASKS


def test_only_a_rebuilt_frame_draws_new_random_numbers(leaf: DataFrame) -> None:
    """Planning again is not enough: the seed is in the logical plan."""

    def build() -> DataFrame:
        return leaf.withColumn("x", F.rand())

    frame = build()
    first = collected(frame, 1, "x")
    assert collected(frame.select("*"), 2, "x") == first
    assert collected(build(), 2, "x") != first


def test_kept_plan_counts_each_batch_separately(leaf: DataFrame) -> None:
    """Spark resets the counters of observe() to 0 before each execution."""
    frame = leaf.filter(F.col("value") == "batch 1").observe("seen", F.count(F.lit(1)).alias("rows")).select("key")

    def observed(batch: int) -> int:
        collected(frame, batch, "key")
        return int(frame._jdf.queryExecution().observedMetrics().apply("seen").getLong(0))

    assert [observed(batch) for batch in (1, 1, 2, 1)] == [TASKS, TASKS, 0, TASKS]
