"""What decides the branch of a record in `exactly_once`, as it is compared after a restart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tailrace.spark_stream.shuffle_keys import NONE, ShuffleKeys, moved, with_branches


def noted(rows: DataFrame) -> ShuffleKeys:
    """Return what is noted of a query whose batches are written as they are."""
    batch = rows.sparkSession.range(1)._jdf.queryExecution().analyzed()
    return with_branches(NONE, rows._jdf.queryExecution().analyzed(), batch, -1)


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    """Provide a stream."""
    return spark.readStream.format("rate").load()


def split(rows: DataFrame, condition: Any) -> DataFrame:
    """Take records into one branch or the other."""
    return rows.where(condition).union(rows.where(~condition))


def test_list_of_values_counts_in_any_order(rows: DataFrame) -> None:
    """A set is listed in another order by each process."""
    first, second = (noted(split(rows, F.col("value").isin(*each))) for each in ([1, 2, 3], [3, 1, 2]))
    other = noted(split(rows, F.col("value").isin(1, 2, 4)))
    assert first.code == second.code
    assert first.code != other.code


def test_condition_counts_in_full_where_spark_cuts_it_short(rows: DataFrame) -> None:
    """Spark prints the first 25 arguments of a call."""

    def among(numbers: Sequence[int]) -> ShuffleKeys:
        return noted(split(rows, F.array_contains(F.array(*map(F.lit, numbers)), F.col("value"))))

    first, same, other = (among([*range(29), last]) for last in (30, 30, 31))
    assert first.code == same.code
    assert first.code != other.code


def test_key_behind_a_union_counts_in_each_branch(rows: DataFrame) -> None:
    """The union's column has the id of the first branch's."""

    def nested(divisor: int) -> ShuffleKeys:
        low = rows.where("value < 10").select("value", F.lit(1).alias("g"))
        high = rows.where("value >= 10").select("value", (F.col("value") % divisor).alias("g"))
        return noted(split(low.union(high), F.col("g") > 0))

    assert nested(2).code == nested(2).code
    assert nested(2).code != nested(3).code


def test_table_counts_without_the_names_that_a_session_gives_it(spark: SparkSession, rows: DataFrame) -> None:
    """PySpark draws a new name for each frame that a query names, and Spark adds the number of cores to a range."""

    def known(partitions: int) -> ShuffleKeys:
        kinds = spark.sql("select id from {numbers}", numbers=spark.range(0, 3, 1, partitions)).withColumnRenamed(
            "id", "value"
        )
        return noted(
            rows.select("value").join(kinds, "value").union(rows.select("value").join(kinds, "value", "left_anti"))
        )

    assert known(2).code == known(3).code != ""


def test_branches_are_told_by_what_they_make(rows: DataFrame) -> None:
    """They have the same records, and only their order says which task writes which."""
    made = [rows.select(F.lit(topic).alias("topic"), "value", F.rand().alias("x")) for topic in ("a", "b")]
    was, now = (noted(first.union(second)) for first, second in (made, made[::-1]))
    assert was.code == now.code
    assert was.branches == now.branches[::-1]
    assert was.branches == noted(made[0].union(made[1])).branches
    assert moved(was.branches, now.branches)


def test_branches_are_told_by_what_their_columns_are_made_of(rows: DataFrame) -> None:
    """The difference may be below the last expression."""
    made = [
        rows.withColumn("x", how(F.col("value").cast("string"))).select(F.concat("x", F.lit("!")).alias("y"))
        for how in (F.upper, F.lower)
    ]
    was, now = (noted(first.union(second)) for first, second in (made, made[::-1]))
    assert moved(was.branches, now.branches)


@pytest.mark.parametrize(
    ("was", "now", "so"),
    [
        (("a", "b"), ("a", "b"), False),
        (("a", "b"), ("b", "a"), True),
        (("a", "b"), ("a", "c"), False),
        (("a", "b"), ("b", "c"), True),
        (("a", "b", "c"), ("a", "c", "b"), True),
        (("a", "a"), ("a", "a"), False),
        ((), ("a", "b"), False),
    ],
)
def test_branch_has_moved_if_another_has_its_place(was: tuple[str, ...], now: tuple[str, ...], *, so: bool) -> None:
    """One that is nowhere any more was mended where it is."""
    assert moved(was, now) is so
