"""Shuffles by columns that depend on which of several rows an operator keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from tailrace.driver.catalyst import Patterns, tree
from tailrace.driver.column_doubts import Doubts
from tailrace.driver.repeatable import Judged, check_batch
from tailrace.errors import FunctionInvalid

Change = Callable[[DataFrame], DataFrame]


def check(frame: DataFrame, change: Change) -> None:
    """Check what becomes of the frame of a batch."""
    patterns, query = Patterns(frame.sparkSession._jvm), tree(frame._jdf.queryExecution().analyzed())
    sound = Doubts(patterns, lambda node: None, clock=False)
    plan = change(frame)._jdf.queryExecution().analyzed()
    check_batch(plan, patterns, query.plan.rdd().id(), Judged(query, sound, sound), joins=True)


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    """Return the frame of a batch, as Spark passes it."""
    rows = spark.sparkContext.parallelize([(1, 2, "page")])
    return spark.createDataFrame(rows, "id long, at long, page string")


def first(frame: DataFrame, *order: str) -> DataFrame:
    """Keep one row of each id."""
    number = F.row_number().over(Window.partitionBy("id").orderBy(*order))
    return frame.withColumn("n", number).select("*", F.col("n").alias("m")).where("m = 1")


def recent(frame: DataFrame) -> DataFrame:
    """Keep the rows of the last hour."""
    return frame.where(F.timestamp_seconds("at") > F.current_timestamp() - F.expr("interval 1 hour"))


def known(frame: DataFrame) -> DataFrame:
    """Keep the rows whose pages a table has."""
    return frame.join(F.broadcast(frame.sparkSession.createDataFrame([("page",)], "page string")), "page")


def closed(frame: DataFrame) -> DataFrame:
    """Return the ids whose picked row has a certain page."""
    return frame.dropDuplicates(["id"]).where("page = 'closed'").select("id", F.lit(True).alias("closed"))


def flagged(frame: DataFrame, condition: str) -> DataFrame:
    """Add a column that a subquery over the batch decides."""
    closed(frame).createOrReplaceTempView("rows_closed")
    frame.createOrReplaceTempView("rows_of_batch")
    return frame.withColumn("c", F.expr(condition))


def latest(frame: DataFrame) -> DataFrame:
    """Return the latest row of each id of a table, by all columns that are used later."""
    versions = frame.sparkSession.range(9).selectExpr("id % 3 AS id", "id AS version", "id % 2 AS kind")
    number = F.row_number().over(Window.partitionBy("id").orderBy(F.desc("version"), "kind"))
    return versions.withColumn("n", number).where("n = 1").select("id", "kind")


def _mean(values: pd.Series) -> float:
    return float(values.mean())


def middle(column: str) -> Column:
    """Aggregate a column in Python, as its rows arrive."""
    pandas_udf: Any = F.pandas_udf  # type: ignore[attr-defined]
    made: Column = pandas_udf("double")(_mean)(column)
    return made


def table(frame: DataFrame) -> DataFrame:
    """Return a table that is joined by a shuffle."""
    return frame.sparkSession.range(3).selectExpr("cast(id as string) page", "id as x").hint("merge")


CHOSEN: dict[str, tuple[Change, str]] = {
    "a deduplication, then a repartition": (
        lambda frame: frame.dropDuplicates(["id"]).repartition(2, "page"),
        "which of several rows a deduplication keeps",
    ),
    "a deduplication, then an expression": (
        lambda frame: frame.dropDuplicates(["id"]).withColumn("k", F.upper("page")).repartition(2, "k"),
        "which of several rows a deduplication keeps",
    ),
    "a deduplication, then a join": (
        lambda frame: frame.dropDuplicates(["id"]).join(table(frame), "page"),
        "which of several rows a deduplication keeps",
    ),
    "a deduplication, then a grouping": (
        lambda frame: frame.dropDuplicates(["id"]).groupBy("page").count(),
        "which of several rows a deduplication keeps",
    ),
    "a deduplication, then branches": (
        lambda frame: frame.dropDuplicates(["id"]).where("at > 1").union(frame.where("at <= 1")),
        "which of several rows a deduplication keeps",
    ),
    "a limit": (lambda frame: frame.limit(3).repartition(2, "page"), "which rows a limit keeps"),
    "a row number": (lambda frame: first(frame, "at").repartition(2, "page"), "the order in which rows arrive"),
    "max_by": (
        lambda frame: frame.groupBy("id").agg(F.max_by("page", "at").alias("page")).repartition(2, "page"),
        "the order in which rows arrive",
    ),
    "max_by of several": (
        lambda frame: (
            frame.groupBy("id")
            .agg(F.expr("max_by(page, at, 3)").alias("pages"))
            .select(F.explode("pages").alias("page"))
            .repartition(2, "page")
        ),
        "the order in which rows arrive",
    ),
    "a user's aggregation": (
        lambda frame: frame.groupBy("id").agg(middle("at").alias("m")).repartition(2, "m"),
        "the order in which rows arrive",
    ),
    "a flag of rows that were picked": (
        lambda frame: frame.join(F.broadcast(closed(frame)), "id", "left").repartition(2, "closed"),
        "which of several rows a deduplication keeps",
    ),
    "a flag of rows that were picked, by a subquery": (
        lambda frame: flagged(frame, "id IN (SELECT id FROM rows_closed)").groupBy("c").count(),
        "which of several rows a deduplication keeps",
    ),
    "a flag of rows that a subquery's limit keeps": (
        lambda frame: flagged(frame, "id IN (SELECT id FROM rows_of_batch LIMIT 3)").groupBy("c").count(),
        "which rows a limit keeps",
    ),
    "a comparison with an average of the batch": (
        lambda frame: flagged(frame, "at > (SELECT avg(at) FROM rows_of_batch)").groupBy("c").count(),
        "the order in which rows arrive",
    ),
    "a flag of rows that a limit keeps": (
        lambda frame: frame.join(
            F.broadcast(frame.limit(3).select("id", F.lit(True).alias("kept"))), "id", "left"
        ).repartition(2, "kept"),
        "which rows a limit keeps",
    ),
    "an average of large integers": (
        lambda frame: frame.groupBy("id").agg(F.avg("at").alias("a")).repartition(2, "a"),
        "the order in which rows arrive",
    ),
    "a product": (
        lambda frame: frame.groupBy("id").agg(F.product("at").alias("p")).repartition(2, "p"),
        "the order in which rows arrive",
    ),
    "a regression": (
        lambda frame: frame.groupBy("id").agg(F.regr_slope("at", "id").alias("r")).repartition(2, "r"),
        "the order in which rows arrive",
    ),
    "a sum of doubles": (
        lambda frame: frame.groupBy("id").agg(F.sum(F.sqrt("at")).alias("s")).repartition(2, "s"),
        "the order in which rows arrive",
    ),
    "a deviation": (
        lambda frame: frame.groupBy("page").agg(F.stddev("at").alias("s")).repartition(2, "s"),
        "the order in which rows arrive",
    ),
    "a running count of rows": (
        lambda frame: (
            frame.withColumn(
                "n", F.count("*").over(Window.partitionBy("id").orderBy("at").rowsBetween(Window.unboundedPreceding, 0))
            )
            .where("n = 1")
            .repartition(2, "page")
        ),
        "the order in which rows arrive",
    ),
    "a first value": (
        lambda frame: frame.groupBy("id").agg(F.first("page").alias("page")).repartition(2, "page"),
        "the order in which rows arrive",
    ),
    "a set": (
        lambda frame: frame.groupBy("id").agg(F.collect_set("page").alias("pages")).repartition(2, "pages"),
        "the order in which rows arrive",
    ),
    "a list": (
        lambda frame: frame.groupBy("id").agg(F.listagg("page").alias("pages")).repartition(2, "pages"),
        "the order in which rows arrive",
    ),
    "a count of recent rows": (
        lambda frame: recent(frame).groupBy("id").count().repartition(2, "count"),
        "later on a replay",
    ),
    "a grouping by a count of recent rows": (
        lambda frame: recent(frame).groupBy("id").count().groupBy("count").agg(F.max("id")),
        "later on a replay",
    ),
    "a count of recent rows in a window": (
        lambda frame: recent(frame).withColumn("n", F.count("*").over(Window.partitionBy("id"))).repartition(2, "n"),
        "later on a replay",
    ),
    "a count of a sample": (
        lambda frame: frame.sample(0.5).groupBy("id").count().repartition(2, "count"),
        "a sample",
    ),
    "a count of rows that a table has": (
        lambda frame: known(frame).groupBy("id").count().repartition(2, "count"),
        "another table",
    ),
}
SAME: dict[str, Change] = {
    "a deduplication alone": lambda frame: frame.dropDuplicates(["id"]),
    "a deduplication by the later key too": lambda frame: frame.dropDuplicates(["id", "page"]).repartition(2, "page"),
    "a deduplication by all columns": lambda frame: frame.dropDuplicates().groupBy("page").count(),
    "a deduplication, then its key": lambda frame: frame.dropDuplicates(["id"]).repartition(2, "id"),
    "a deduplication, then a broadcast": lambda frame: frame.dropDuplicates(["id"]).join(
        F.broadcast(table(frame)), "page"
    ),
    "a shuffle, then a deduplication": lambda frame: (
        frame.repartition(2, "page").dropDuplicates(["id"]).repartition("id")
    ),
    "the first rows": lambda frame: frame.orderBy(F.desc("at")).select("id", "page").limit(3),
    "a sorted batch in one task": lambda frame: frame.orderBy("at").coalesce(1),
    "a total of all rows of each": lambda frame: frame.withColumn(
        "n", F.count("*").over(Window.partitionBy("id").rowsBetween(-(2**63), 2**63 - 1))
    ).repartition(2, "n"),
    "a limit alone": lambda frame: frame.limit(3),
    "a limit above a shuffle": lambda frame: frame.repartition(2, "page").limit(3),
    "a row number by the later key too": lambda frame: first(frame, "at", "page").repartition(2, "page"),
    "a row number without a filter": lambda frame: frame.withColumn(
        "n", F.row_number().over(Window.partitionBy("id").orderBy("at"))
    ).repartition(2, "page"),
    "a rank, which rows of the same order share": lambda frame: frame.withColumn(
        "n", F.rank().over(Window.partitionBy("id").orderBy("at"))
    ).where("n = 1").repartition(2, "page"),
    "a count": lambda frame: frame.where("at > 1").groupBy("id").count().repartition(2, "count"),
    "a group of recent rows": lambda frame: recent(frame).groupBy(F.col("id").alias("k")).count().repartition(2, "k"),
    "a count of what a table may have": lambda frame: frame.join(
        F.broadcast(table(frame)), "page", "left"
    ).groupBy("id").count().repartition(2, "count"),
    "a grouping by a count of rows that a table has": lambda frame: (
        known(frame).groupBy("id").count().groupBy("count").agg(F.max("id"))
    ),
    "a grouping by what a subquery adds": lambda frame: (
        frame.withColumn("known", F.expr("id IN (SELECT id FROM range(3))")).groupBy("known").count()
    ),
    "a user's aggregation, then its key": lambda frame: (
        frame.groupBy("id").agg(middle("at").alias("m")).repartition(2, "id")
    ),
    "a column of the latest row of each key": lambda frame: (
        frame.join(F.broadcast(latest(frame)), "id", "left").groupBy("kind").count()
    ),
    "a comparison with the most of the batch": lambda frame: (
        flagged(frame, "at = (SELECT max(at) FROM rows_of_batch)").groupBy("c").count()
    ),
    "a flag of rows by their own values": lambda frame: frame.join(
        F.broadcast(frame.where("page = 'x'").select("id", F.lit(True).alias("x")).distinct()), "id", "left"
    ).repartition(2, "x"),
    "a sum of integers": lambda frame: (
        frame.groupBy("id")
        .agg(F.sum("at").alias("s"), F.avg(F.col("at").cast("int")).alias("a"))
        .repartition(2, "s", "a")
    ),
    "max": lambda frame: frame.groupBy("id").agg(F.max("page").alias("page")).repartition(2, "page"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOSEN)
def test_shuffle_by_a_column_of_a_row_that_was_picked_is_refused(frame: DataFrame, name: str) -> None:
    """A replay may pick another row, which the shuffle would move into another sink partition."""
    change, words = CHOSEN[name]
    with pytest.raises(FunctionInvalid, match=words):
        check(frame, change)


@pytest.mark.parametrize("name", SAME)
def test_shuffle_by_what_all_candidates_share_is_allowed(frame: DataFrame, name: str) -> None:
    """Whichever row is picked, the shuffle moves it into the same sink partition."""
    check(frame, SAME[name])


@pytest.mark.parametrize("rows", ["id <= (SELECT max(id) FROM range(3))", "id <= unix_timestamp()"])
def test_grouping_by_what_a_left_join_adds_is_allowed_whatever_chooses_the_rows_of_its_table(
    frame: DataFrame, rows: str
) -> None:
    """It is allowed with any table, which may change as much."""
    chosen = frame.sparkSession.range(3).withColumn("x", F.col("id") * 2).where(rows)
    check(frame, lambda frame: frame.join(F.broadcast(chosen), "id", "left").groupBy("x").count())


def test_grouping_by_what_a_left_join_adds_is_refused_if_chance_chooses_the_rows_of_its_table(frame: DataFrame) -> None:
    """A replay would count the same record in another group."""
    drawn = frame.sparkSession.range(3).withColumn("x", F.col("id") * 2).where(F.rand() < 0.5)
    with pytest.raises(FunctionInvalid, match="rand"):
        check(frame, lambda frame: frame.join(F.broadcast(drawn), "id", "left").groupBy("x").count())
