"""Frames that need other batches, that no replay could repeat, or whose rows no record accounts for."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from support.frames import TASKS, Function, chance, reading, same, sql
from tailrace.driver.frame_analysis import Planning, analyse
from tailrace.driver.leaf import one_row_per_task
from tailrace.errors import ConfigInvalid, FunctionInvalid

STATEFUL: dict[str, tuple[Function, str]] = {
    "groupBy": (lambda f, t: f.groupBy("key").count(), "it aggregates"),
    "agg": (lambda f, t: f.agg(F.count("*")), "it aggregates"),
    "pivot": (lambda f, t: f.groupBy("key").pivot("value", ["a"]).count(), "it aggregates"),
    "distinct": (lambda f, t: f.distinct(), "it removes duplicates"),
    "dropDuplicates": (lambda f, t: f.dropDuplicates(["key"]), "it removes duplicates"),
    "limit": (lambda f, t: f.limit(3), "it limits the whole stream"),
    "offset": (lambda f, t: f.offset(3), "it skips the first rows"),
    "intersect": (lambda f, t: f.select("key").intersect(t.select("k")), "it intersects"),
    "intersectAll": (lambda f, t: f.select("key").intersectAll(t.select("k")), "it intersects"),
    "subtract": (lambda f, t: f.select("key").subtract(t.select("k")), "it subtracts"),
    "exceptAll": (lambda f, t: f.select("key").exceptAll(t.select("k")), "it subtracts"),
    "below a join": (lambda f, t: f.groupBy("key").count().join(t, F.col("key") == t.k), "it aggregates"),
}


@pytest.mark.parametrize("name", STATEFUL)
def test_frame_that_needs_other_batches_is_refused(leaf: DataFrame, table: DataFrame, name: str) -> None:
    """The error names the folder that would hold its state."""
    function, words = STATEFUL[name]
    with pytest.raises(ConfigInvalid, match=rf"the pipeline is stateful \({words}.*holds no state"):
        analyse(function(leaf, table), leaf)


def wide(frame: DataFrame, table: DataFrame) -> DataFrame:
    """Return a join by equality that Spark shuffles."""
    return frame.hint("merge").join(table, frame.key == table.k)


UNREPEATABLE: dict[str, tuple[Function, str]] = {
    "round robin": (lambda f, t: f.repartition(3), "order of arrival"),
    "ranges": (lambda f, t: f.repartitionByRange(3, "key"), "a sample"),
    "sort": (lambda f, t: f.sort("key"), "a sample"),
    "a random key": (lambda f, t: f.repartition(3, F.rand()), r"rand\(\), which may"),
    "a random column": (lambda f, t: f.withColumn("r", F.rand()).repartition(3, "r"), r"rand\(\), which may"),
    "a random column below others": (
        lambda f, t: f.withColumn("r", F.rand()).withColumn("s", F.col("r") + 1).mapInArrow(same, "s double")
        .repartition(3, "s"),
        r"rand\(\), which may",
    ),
    "random rows": (lambda f, t: f.select(F.explode(F.shuffle(F.array("key", "key"))).alias("x")).repartition(3, "x"),
        r"shuffle\(\), which may",
    ),
    "a unique id": (lambda f, t: f.withColumn("r", F.expr("uuid()")).repartition(3, "r"), r"uuid\(\), which may"),
    "a number for each row": (
        lambda f, t: f.repartition(3, F.monotonically_increasing_id()), r"monotonically_increasing_id\(\)",
    ),
    "the task's number": (
        lambda f, t: f.withColumn("r", F.spark_partition_id()).repartition(3, "r"), r"spark_partition_id\(\)",
    ),
    "a function that is not deterministic": (
        lambda f, t: f.withColumn("r", chance()).repartition(3, "r"), r"<lambda>\(\), which may",
    ),
    "the time": (
        lambda f, t: f.withColumn("r", F.current_timestamp()).repartition(3, "r"),
        r"current_timestamp\(\), which is later",
    ),
    "another table": (lambda f, t: f.join(t, f.key == t.k).repartition(3, "name"), r"another table \(parquet\)"),
    "a subquery": (
        sql("SELECT /*+ REPARTITION(3, top) */ * FROM (SELECT *, (SELECT max(k) FROM names) AS top FROM records)"),
        "a subquery",
    ),
    "random groups": (
        lambda f, t: f.groupBy(F.rand()).applyInPandas(lambda group: group, f.schema), r"rand\(\), which may",
    ),
    "groups by the time": (
        lambda f, t: f.groupBy(F.current_date()).applyInPandas(lambda group: group, f.schema), r"current_date\(\)",
    ),
    "random groups together with a table's": (
        lambda f, t: f.withColumn("r", chance()).groupBy("r").cogroup(t.groupBy("k"))
        .applyInPandas(lambda one, two: one, "key long, value string, at timestamp, r long"),
        r"<lambda>\(\), which may",
    ),
    "a random key of a join": (lambda f, t: wide(f.withColumn("key", chance()), t), r"<lambda>\(\), which may"),
    "a random key that a filter has made one of a join": (
        lambda f, t: f.withColumn("r", chance()).hint("merge").crossJoin(t).where("r = k"),
        r"the shuffle by .*<lambda>\(\), which may",
    ),
    "a join by the time": (
        lambda f, t: f.hint("merge").join(t, f.key + F.unix_timestamp() == t.k), r"current_timestamp\(\)",
    ),
    "zipWithIndex": (lambda f, t: f.zipWithIndex(), "AttachDistributedSequence"),
    "a common table expression": (
        sql("WITH one AS (SELECT *, rand() AS r FROM records) SELECT /*+ REPARTITION(3, r) */ * FROM one"),
        r"rand\(\), which may",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNREPEATABLE)
def test_cut_that_a_replay_would_not_repeat_is_refused(leaf: DataFrame, table: DataFrame, name: str) -> None:
    """The error names what the cut depends on."""
    function, words = UNREPEATABLE[name]
    with pytest.raises(FunctionInvalid, match=f"cannot be cut the same way again: .*{words}"):
        analyse(function(leaf, table), leaf)


REFUSED: dict[str, tuple[Function, str]] = {
    "a join with itself": (lambda f, t: f.alias("a").join(f.alias("b"), "key"), "joins the records with themselves"),
    "a union with itself": (lambda f, t: f.filter("key > 1").union(f.filter("key <= 1")), "unions the records with"),
    "a query of itself": (sql("SELECT *, (SELECT max(key) FROM records) FROM records"), "in a subquery"),
    "a common table expression twice": (
        sql("WITH one AS (SELECT * FROM records) SELECT a.key FROM one a JOIN one b ON a.key = b.key"),
        "joins the records with themselves",
    ),
    "a union with a table": (lambda f, t: f.select("key").union(t.select("k")), "with another table, whose"),
    "coalesce": (lambda f, t: f.coalesce(2), r"coalesce\(\)"),
    "coalesce behind a shuffle": (lambda f, t: f.repartition(4, "key").coalesce(2), r"coalesce\(\)"),
    "a right join": (lambda f, t: f.join(t, f.key == t.k, "right"), "right outer join with the records on the left"),
    "a full join": (lambda f, t: f.join(t, f.key == t.k, "full"), "full outer join"),
    "a left join from the table": (lambda f, t: t.join(f, f.key == t.k, "left"), "left outer join with the records on"),
    "a semi join from the table": (lambda f, t: t.join(f, f.key == t.k, "left_semi"), "left semi join"),
    "an anti join from the table": (lambda f, t: t.join(f, f.key == t.k, "left_anti"), "left anti join"),
    "a window": (
        lambda f, t: f.withColumn("n", F.row_number().over(Window.partitionBy("key").orderBy("value"))),
        "batch boundaries are arbitrary",
    ),
    "a broadcast of the records": (
        lambda f, t: F.broadcast(f).join(t, f.key == t.k), "send the records to the tasks that read the other table",
    ),
    "a filter that is never true": (lambda f, t: f.filter(F.lit(False)), "no row comes out"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_frame_with_rows_that_no_record_accounts_for_is_refused(leaf: DataFrame, table: DataFrame, name: str) -> None:
    """Records would be read twice or not at all, or rows would come out with every batch."""
    function, words = REFUSED[name]
    with pytest.raises(FunctionInvalid, match=f"cannot be delivered exactly once: .*{words}"):
        analyse(function(leaf, table), leaf)


def test_product_with_a_table_that_is_not_broadcast_is_refused(leaf: DataFrame, table: DataFrame) -> None:
    """Each task would read the records again."""
    spark = leaf.sparkSession
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    try:
        with pytest.raises(FunctionInvalid, match="each record would be read once for each part of the table"):
            analyse(leaf.crossJoin(table), leaf)
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


def test_cached_records_are_refused(spark: SparkSession, table: DataFrame) -> None:
    """Each batch would repeat the first one; another table may be cached."""
    leaf = reading(spark)
    cached = leaf.filter("key > 0").cache()
    try:
        with pytest.raises(FunctionInvalid, match="it caches the records"):
            analyse(cached.select("key"), leaf)
        assert analyse(leaf.join(table.cache(), leaf.key == table.k), leaf).planning is Planning.PLANNED
    finally:
        cached.unpersist()
        table.unpersist()


@pytest.mark.parametrize(
    "function",
    [
        lambda f, t: t,
        lambda f, t: f.sparkSession.createDataFrame(f.rdd, f.schema),
        lambda f, t: f.localCheckpoint(eager=False),
    ],
)
def test_frame_that_does_not_come_from_the_records_is_refused(
    leaf: DataFrame, table: DataFrame, function: Function
) -> None:
    """A frame that hides where it comes from is refused too."""
    with pytest.raises(FunctionInvalid, match="does not come from the records"):
        analyse(function(leaf, table), leaf)


def test_stream_joined_with_the_records_is_refused(leaf: DataFrame) -> None:
    """The stream's offsets are in no plan."""
    other = leaf.sparkSession.readStream.format("rate").load().withColumnRenamed("value", "other")
    with pytest.raises(FunctionInvalid, match="it reads another stream"):
        analyse(leaf.join(other, F.col("key") == F.col("other")), leaf)


def test_leaf_is_never_the_broadcast_side(spark: SparkSession, table: DataFrame) -> None:
    """A plain range would be, for it looks smaller than any table."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    small = spark.range(0, TASKS, 1, TASKS).mapInArrow(read, "key long")
    with pytest.raises(FunctionInvalid, match="send the records to the tasks"):
        analyse(small.join(table, F.col("key") == F.col("k")), small)
    large = one_row_per_task(spark, TASKS).mapInArrow(read, "key long")
    assert analyse(large.join(table, F.col("key") == F.col("k")), large).cut == ()
