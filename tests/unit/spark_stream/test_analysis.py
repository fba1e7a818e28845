"""Which operators of a stream are known to shuffle its rows, and which of them could not be repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tailrace.config import Pipeline
from tailrace.driver.catalyst import Patterns
from tailrace.driver.repeatable import check_stream, plans_read
from tailrace.errors import FunctionInvalid
from tailrace.spark_stream.analysis import check_joins, check_shuffles, refuse_other_streams, refuse_unsupported

Tables = Iterator[pd.DataFrame]


class Nothing(StatefulProcessor):
    """Keep no state, and return no rows."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Ignore the handle."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Tables:  # noqa: N802, N803 - PySpark's names
        """Read the rows."""
        yield from rows

    def close(self) -> None:
        """Do nothing."""


def with_state(rows: DataFrame, key: str = "value") -> DataFrame:
    """Keep state by group, in the older way."""

    def nothing(key: Any, tables: Tables, state: Any) -> Tables:
        yield from tables

    return rows.groupBy(key).applyInPandasWithState(nothing, "value long", "n long", "append", "NoTimeout")


def with_processor(rows: DataFrame, key: str = "value") -> DataFrame:
    """Keep state by group, in the newer way."""
    grouped = rows.groupBy(key)
    return grouped.transformWithStateInPandas(Nothing(), "value long", "append", "none")


def late(rows: DataFrame) -> DataFrame:
    """Give the rows a watermark."""
    return rows.withWatermark("timestamp", "1 minute")


def same(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a group as it is."""
    return rows


SHUFFLED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "aggregate": lambda rows: rows.groupBy("value").count(),
    "distinct": lambda rows: rows.distinct(),
    "deduplicate": lambda rows: rows.dropDuplicates(["value"]),
    "deduplicate within watermark": lambda rows: late(rows).dropDuplicatesWithinWatermark(["value"]),
    "groups": lambda rows: rows.groupBy("value").applyInPandas(same, rows.schema),
    "groups in Arrow": lambda rows: rows.groupBy("value").applyInArrow(lambda table: table, rows.schema),
    "state by group": with_state,
    "state by key": with_processor,
    "limit": lambda rows: rows.limit(5),
    "repartition": lambda rows: rows.repartition(2, "value"),
}
LEFT: dict[str, Callable[[DataFrame], DataFrame]] = {
    "select": lambda rows: rows.select(F.col("value") + 1),
    "filter": lambda rows: rows.filter("value > 1"),
    "watermark": late,
    "map in pandas": lambda rows: rows.mapInPandas(lambda tables: tables, rows.schema),
}


@pytest.mark.parametrize("name", [*SHUFFLED, *LEFT])
def test_each_operator_that_spark_plans_with_an_exchange_counts_as_a_shuffle(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """One that is not known would let code change that decides what a sink partition gets."""
    stream = spark.readStream.format("rate").load()
    rows = (SHUFFLED | LEFT)[name](stream)
    rows.explain()
    planned = "Exchange" in capsys.readouterr().out
    assert planned == (name in SHUFFLED)
    assert (check_shuffles(rows) > 0) == planned


@pytest.mark.parametrize(
    "merged",
    [
        lambda rows: rows.groupBy("value").count().coalesce(2),
        lambda rows: with_state(rows).select("value").coalesce(3).filter("value > 1"),
        lambda rows: (
            late(rows).dropDuplicatesWithinWatermark(["value"]).join(salts(rows), F.col("value") == 1).coalesce(2)
        ),
    ],
)
def test_stream_with_state_whose_tasks_spark_would_merge_is_refused(
    spark: SparkSession, merged: Callable[[DataFrame], DataFrame]
) -> None:
    """It merges them by the executors that keep the state: an open batch would fit its plan at no later start."""
    with pytest.raises(FunctionInvalid, match=r"coalesce\([23]\) merges tasks by the executors"):
        check_shuffles(merged(spark.readStream.format("rate").load()))


@pytest.mark.parametrize(
    "merged",
    [
        lambda rows: rows.groupBy("value").count().coalesce(1),
        lambda rows: rows.groupBy("value").count().join(salts(rows).coalesce(2), F.col("value") == F.col("half")),
        lambda rows: rows.coalesce(2).groupBy("value").count(),
        lambda rows: rows.groupBy("value").count().repartition(8, "value").coalesce(2),
        lambda rows: late(rows).coalesce(2),
    ],
    ids=["into one", "a table", "before the state", "behind a shuffle", "without state"],
)
def test_tasks_that_spark_always_merges_in_the_same_way_are_not_refused(
    spark: SparkSession, merged: Callable[[DataFrame], DataFrame]
) -> None:
    """No executor keeps state of them, or there is one way to merge all."""
    check_shuffles(merged(spark.readStream.format("rate").load()))


def salted(rows: DataFrame, expression: str = "cast(rand(42) * 4 AS int)") -> DataFrame:
    """Give each row a salt; the seed says nothing of the order in which rows come."""
    return rows.withColumn("salt", F.expr(expression))


def salts(rows: DataFrame, hint: str | None = None) -> DataFrame:
    """Return a table of all salts, which Spark broadcasts if no hint says otherwise."""
    table = rows.sparkSession.range(4).selectExpr("cast(id AS int) AS salt", "cast(id % 2 AS int) AS half")
    return table.hint(hint) if hint else table


def other(rows: DataFrame) -> DataFrame:
    """Return a second stream."""
    return rows.sparkSession.readStream.format("rate").load()


def large(rows: DataFrame) -> DataFrame:
    """Return a table of which Spark does not know the size, and does not broadcast it."""
    return rows.sparkSession.createDataFrame(rows.sparkSession.sparkContext.parallelize([(1, 2)]), "salt int, half int")


BY_CHANCE: dict[str, Callable[[DataFrame], DataFrame]] = {
    "aggregate": lambda rows: salted(rows).groupBy("salt").count(),
    "aggregate by an expression": lambda rows: rows.groupBy((F.rand() * 4).cast("int")).count(),
    "aggregate of a clean one": lambda rows: salted(rows.groupBy("value").count()).groupBy("salt").count(),
    "distinct": lambda rows: salted(rows).distinct(),
    "deduplicate": lambda rows: salted(rows).dropDuplicates(["value", "salt"]),
    "deduplicate within watermark": lambda rows: late(salted(rows)).dropDuplicatesWithinWatermark(["salt"]),
    "state by group": lambda rows: with_state(salted(rows), "salt"),
    "state by key": lambda rows: with_processor(salted(rows), "salt"),
    "join by hint": lambda rows: salted(rows).join(salts(rows, "merge"), "salt"),
    "join on the right": lambda rows: salts(rows, "shuffle_hash").join(salted(rows), "salt"),
    "join of streams": lambda rows: salted(rows).join(salted(other(rows)).select("salt"), "salt"),
    "join by an expression": lambda rows: salted(rows).join(
        salts(rows, "merge").drop("salt"), F.expr("salt % 2 = half")
    ),
    "join by one of two keys": lambda rows: salted(rows).join(
        salts(rows, "merge").withColumnRenamed("half", "value"), ["value", "salt"]
    ),
    "a Python function": lambda rows: rows.groupBy(
        F.udf(lambda value: value, "long").asNondeterministic()("value")
    ).count(),
}
BY_RECORD: dict[str, Callable[[DataFrame], DataFrame]] = {
    "aggregate": lambda rows: rows.select((F.col("value") % 4).alias("key")).groupBy("key").count(),
    "aggregate by time": lambda rows: late(rows).groupBy(F.window("timestamp", "1 minute")).count(),
    "aggregate by the batch's time": lambda rows: rows.groupBy(F.window(F.current_timestamp(), "1 minute")).count(),
    "aggregate of everything": lambda rows: salted(rows).groupBy().count(),
    "aggregate of a random value": lambda rows: salted(rows).groupBy("value").agg(F.max("salt")),
    "aggregate of one by chance": lambda rows: salted(rows).groupBy("value", "salt").count().groupBy("value").count(),
    "aggregate by a column of a table": lambda rows: (
        rows.join(large(rows), rows["value"] == F.col("salt")).groupBy("half").count()
    ),
    "deduplicate": lambda rows: salted(rows).dropDuplicates(["value"]),
    "state by group": with_state,
    "state by key": with_processor,
    "join": lambda rows: salted(rows, "cast(value AS int)").join(salts(rows, "merge"), "salt"),
    "join with a table's random key": lambda rows: salted(rows, "1").join(
        salted(rows.sparkSession.range(4)).hint("merge"), "salt"
    ),
    "join that broadcasts by hint": lambda rows: salted(rows).join(F.broadcast(large(rows)), "salt"),
    "join of streams": lambda rows: rows.join(other(rows).select("value"), "value"),
}
# Spark broadcasts the table or shuffles, by its size.
BY_CHOICE: dict[str, Callable[[DataFrame], DataFrame]] = {
    "a table of unknown size": lambda rows: salted(rows).join(large(rows), "salt"),
    "a small table": lambda rows: salted(rows).join(salts(rows), "salt"),
    "a table on the left": lambda rows: salts(rows).join(salted(rows), "salt"),
}


@pytest.mark.parametrize("name", BY_CHANCE)
def test_shuffle_by_chance_is_refused(spark: SparkSession, name: str) -> None:
    """A batch that is delivered in part would be divided otherwise on a replay."""
    rows = BY_CHANCE[name](spark.readStream.format("rate").load())
    with pytest.raises(FunctionInvalid, match="may give a different value on a replay"):
        check_shuffles(rows)


@pytest.mark.parametrize("name", BY_RECORD)
def test_shuffle_by_the_records_is_allowed(spark: SparkSession, name: str) -> None:
    """Chance may decide what decides no sink partition."""
    rows = BY_RECORD[name](spark.readStream.format("rate").load())
    check_shuffles(rows)
    check_joins(rows)


@pytest.mark.parametrize("name", BY_CHOICE)
def test_join_by_chance_with_a_table_is_refused_once_spark_shuffles_for_it(spark: SparkSession, name: str) -> None:
    """The plan that is analysed does not show it."""
    rows = BY_CHOICE[name](spark.readStream.format("rate").load())
    check_shuffles(rows)
    with pytest.raises(FunctionInvalid, match=r"the join by .* may give a different value on a replay"):
        check_joins(rows)


def judge(rows: DataFrame) -> None:
    """Refuse what may be dealt out differently, as `exactly_once` does."""
    check_stream(rows._jdf.queryExecution().analyzed(), Patterns(rows.sparkSession._jvm), clock=True, joins=False)


def split(rows: DataFrame, odd: Any, other: DataFrame | None = None) -> DataFrame:
    """Take records into one branch or the other, as a condition says."""
    return rows.where(odd).union((rows if other is None else other).where(~odd))


def by_table(rows: DataFrame, how: str = "left_anti") -> DataFrame:
    """Take records into one branch or the other, as a table says."""
    table = F.broadcast(large(rows).withColumnRenamed("salt", "value").select("value"))
    return rows.select("value").join(table, "value").union(rows.select("value").join(table, "value", how))


def by_drawn(rows: DataFrame, draw: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """Take records into one branch or the other, as rows say that are drawn from a constant table."""
    table = draw(rows.sparkSession.range(9).toDF("value"))
    return rows.select("value").join(table, "value").union(rows.select("value").join(table, "value", "left_anti"))


def enriched(rows: DataFrame) -> DataFrame:
    """Keep every record, with what a table knows of it."""
    return rows.join(F.broadcast(large(rows)), F.col("value") == F.col("half"), "left")


ODD = "value % 2 = 1"
UNCERTAIN: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "a condition by chance": (lambda rows: split(rows, F.rand(3) < 0.5), "rand"),
    "a condition on a column by chance": (lambda rows: split(salted(rows), F.col("salt") == 0), "rand"),
    "a condition by time": (lambda rows: split(rows, F.col("timestamp") < F.current_timestamp()), "current_timestamp"),
    "a sample": (lambda rows: rows.union(rows.sample(0.5)), "a sample"),
    "a join": (by_table, "another table"),
    "a sample of a constant table": (
        lambda rows: by_drawn(rows, lambda table: table.sample(0.5)), "a sample of a table",
    ),
    "rows of a constant table by chance": (
        lambda rows: by_drawn(rows, lambda table: table.where(F.rand(7) < 0.5)), "rand",
    ),
    "a subquery": (lambda rows: split(rows, F.expr("value IN (SELECT id FROM range(3))")), "a subquery"),
    "a left join and a condition": (
        lambda rows: split(enriched(rows), F.isnull("salt")),
        "another table",
    ),
    "a generator": (
        lambda rows: rows.union(enriched(rows).select(
            "timestamp", F.explode(F.when(F.col("salt") > 0, F.array("value")))
        )),
        "another table",
    ),
    "a repartition by what differs": (
        lambda rows: rows.where(F.rand() < 0.5).withColumn("topic", F.lit("a")).union(
            rows.where(F.rand() < 0.5).withColumn("topic", F.lit("b"))
        ).repartition(2, "topic"),
        "rand",
    ),
    "a repartition by a branch's chance": (
        lambda rows: rows.select((F.lit(1) + 1).alias("k")).union(salted(rows).select("salt")).repartition(2, "k"),
        "rand",
    ),
}  # fmt: skip
CERTAIN: dict[str, Callable[[DataFrame], DataFrame]] = {
    "conditions on the records": lambda rows: split(rows, F.expr(ODD)),
    "every record twice": lambda rows: rows.union(rows),
    "a random value": lambda rows: split(salted(rows), F.expr(ODD)),
    "a left join": lambda rows: split(enriched(rows), F.expr(ODD)),
    "a branch without rows": lambda rows: rows.where(F.rand() < 0.5).union(rows.where("false")),
    "a table": lambda rows: rows.where(F.rand() < 0.5).select("value").union(rows.sparkSession.range(3)),
    "a single task": lambda rows: split(rows, F.rand() < 0.5).coalesce(1),
    "a repartition by the records": lambda rows: split(rows, F.rand() < 0.5).repartition(2, "value"),
    "a grouping by the records": lambda rows: by_table(rows).groupBy("value").count(),
    "chosen rows of a constant table": lambda rows: by_drawn(rows, lambda table: table.where("value > 3")),
    "a constant table": lambda rows: rows.select("value").join(rows.sparkSession.range(3).toDF("value"), "value").union(
        rows.select("value").join(rows.sparkSession.range(3).toDF("value"), "value", "left_anti")
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNCERTAIN)
def test_union_whose_branches_may_exchange_records_is_refused(spark: SparkSession, name: str) -> None:
    """A record that a replay finds in a branch that is delivered would be lost."""
    change, words = UNCERTAIN[name]
    with pytest.raises(FunctionInvalid, match=words):
        judge(change(spark.readStream.format("rate").load()))


@pytest.mark.parametrize("name", CERTAIN)
def test_union_whose_branches_keep_their_records_is_allowed(spark: SparkSession, name: str) -> None:
    """A branch that depends on the records alone has the same ones on a replay."""
    judge(CERTAIN[name](spark.readStream.format("rate").load()))


ONE_TASK = {"a single task", "a repartition by the records", "a grouping by the records"}
ALONE = {"a branch without rows", "a table"}


@pytest.mark.parametrize("name", CERTAIN)
def test_stateful_pipeline_with_branches_needs_what_deals_their_rows_out(spark: SparkSession, name: str) -> None:
    """The order of the branches may be that of a set, and decides which sink partition has which."""
    rows = CERTAIN[name](spark.readStream.format("rate").load())
    if name in ONE_TASK | ALONE:
        check_shuffles(rows)
        return
    with pytest.raises(FunctionInvalid, match=r"(?s)unions branches of the records.*repartition\(n, column\) by"):
        check_shuffles(rows)


def pipeline(checkpoint: str) -> Pipeline:
    """Return a pipeline with this checkpoint."""
    sections = {"source": {"topics": ["in"]}, "process": {"function": "f.py:f"}, "sink": {"topic": "out"}}
    return Pipeline.model_validate({"pipeline": "p", "checkpoint": checkpoint, **sections})


@pytest.mark.parametrize("place", ["ledger", "state/"])
def test_stream_that_spark_supports_is_not_refused(spark: SparkSession, place: str) -> None:
    """Neither one with state nor one without."""
    rows = spark.readStream.format("rate").load()
    refuse_unsupported(rows, pipeline(place))
    if place != "ledger":
        refuse_unsupported(late(rows).groupBy(F.window("timestamp", "1 minute")).count(), pipeline(place))
        refuse_unsupported(with_processor(rows), pipeline(place))


def test_stream_that_spark_does_not_support_is_refused_in_its_words(spark: SparkSession) -> None:
    """It says so by itself only when the query starts."""
    rows = spark.readStream.format("rate").load().groupBy("value").count()
    with pytest.raises(FunctionInvalid, match=r"function 'f.py:f' as a stream: .*watermark"):
        refuse_unsupported(rows, pipeline("state/"))


def test_state_whose_files_cannot_be_checked_is_refused_on_an_object_store(spark: SparkSession) -> None:
    """Each batch would end the run once its outputs were committed."""
    with pytest.raises(FunctionInvalid, match="transformWithState"):
        refuse_unsupported(with_processor(spark.readStream.format("rate").load()), pipeline("s3a://bucket/p"))


def subqueried(rows: DataFrame) -> DataFrame:
    """Note which records a table has."""
    return rows.withColumn("known", F.expr("value IN (SELECT id FROM range(5) JOIN (SELECT 1) WHERE id > 1)"))


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: split(subqueried(rows), F.col("known")),
        lambda rows: subqueried(rows).repartition(2, "known"),
    ],
    ids=["branches", "repartition"],
)
def test_rows_that_are_dealt_out_by_what_a_subquery_adds_are_refused(
    spark: SparkSession, change: Callable[[DataFrame], DataFrame]
) -> None:
    """The table may change before a replay, whatever time Spark keeps."""
    rows = change(spark.readStream.format("rate").load())
    with pytest.raises(FunctionInvalid, match="a subquery, whose table may have changed"):
        check_stream(rows._jdf.queryExecution().analyzed(), Patterns(spark._jvm), clock=False, joins=False)


def test_stream_of_the_functions_own_is_refused_before_anything_runs(spark: SparkSession) -> None:
    """Neither the plan nor the ledger has a place for its offsets."""
    records = spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute")
    other = spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute")
    refuse_other_streams(records, records)
    renamed = records.selectExpr("value as again", "timestamp as at")
    refuse_other_streams(records.join(renamed, F.col("value") == F.col("again")), records)
    with pytest.raises(FunctionInvalid, match="reads another stream than the records"):
        refuse_other_streams(records.join(other, "value"), records)


def test_plan_with_too_many_steps_is_refused_with_what_to_do(spark: SparkSession) -> None:
    """Python cannot follow it, and said so without a word about the function."""
    rows = spark.readStream.format("rate").load()
    with pytest.raises(FunctionInvalid, match="too many steps") as caught, plans_read():
        check_shuffles(long(rows).repartition(2, "value"))
    assert "withColumns" in caught.value.then


def long(rows: DataFrame) -> DataFrame:
    """Change a column step by step."""
    for _ in range(300):
        rows = rows.withColumn("value", F.col("value") + 1)
    return rows
