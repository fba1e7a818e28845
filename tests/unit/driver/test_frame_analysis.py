"""What a pipeline's frame needs for each batch, and which shuffles of it a replay repeats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from support.frames import TASKS, Function, chance, reading, same, sql
from tailrace.driver.frame_analysis import Analysis, Planning, analyse, planned_cut
from tailrace.driver.spark_jobs import answers, kept_job
from tailrace.errors import FunctionInvalid, InvariantBroken
from tailrace.progress.cuts import same_cut, without_numbers

KEPT: dict[str, Function] = {
    "columns": lambda f, t: f.select("key").withColumn("twice", F.col("key") * 2).drop("key"),
    "filter": lambda f, t: f.filter("key > 1 AND value LIKE 'a%'"),
    "explode": lambda f, t: f.select(F.explode(F.array("key", "key"))),
    "unpivot": lambda f, t: f.unpivot("key", ["value"], "a", "b"),
    "a Python function": lambda f, t: f.withColumn("x", F.udf(lambda value: value, "long")("key")),
    "a Python function that is not deterministic": lambda f, t: f.withColumn("x", chance()),
    "a function on Arrow batches": lambda f, t: f.mapInArrow(same, f.schema),
    "order within a task": lambda f, t: f.sortWithinPartitions("key"),
    "the task's number": lambda f, t: f.withColumn("task", F.spark_partition_id()),
    "a number for each row": lambda f, t: f.withColumn("n", F.monotonically_increasing_id()),
    "what a session has": lambda f, t: f.selectExpr("current_timezone()", "current_user()", "current_database()"),
    "a constant table": lambda f, t: f.join(F.broadcast(t.sparkSession.range(5)), F.col("key") == F.col("id")),
    "a time that is written down": lambda f, t: f.filter("at > timestamp '2026-01-01'"),
    "counters": lambda f, t: f.observe("large", F.count_if(F.col("key") > 1)),
    "a watermark that nothing needs": lambda f, t: f.withWatermark("at", "1 minute"),
    "a common table expression": sql("WITH one AS (SELECT * FROM records) SELECT key FROM one"),
}


@pytest.mark.parametrize("name", KEPT)
def test_frame_that_depends_only_on_the_records_is_planned_once(leaf: DataFrame, table: DataFrame, name: str) -> None:
    """Its plan is kept, and the tasks that read are those that write."""
    counts = name == "counters"
    assert analyse(KEPT[name](leaf, table), leaf) == Analysis(Planning.KEPT, (), (), None, counts)


def packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pack all rows of a task into one row of bytes, as the last stage of a pipeline does."""
    rows = [row for each in batches for row in each.to_pylist()]
    yield pa.RecordBatch.from_pylist([{"written": repr(rows).encode()}], pa.schema([("written", pa.binary())]))


@pytest.mark.parametrize("name", KEPT)
def test_kept_frame_delivers_each_batch_when_it_reuses_the_first_rdd(
    leaf: DataFrame, table: DataFrame, name: str
) -> None:
    """It yields the same rows as a frame that is planned for each batch."""
    frame = KEPT[name](leaf, table).mapInArrow(packed, "written binary")
    job, context = kept_job(frame), leaf.sparkSession.sparkContext
    for batch in (1, 2):
        context.setLocalProperty("batch", str(batch))
        planned_again = [bytes(row["written"]) for row in frame.select("*").collect()]
        assert answers(job) == planned_again
        assert len(planned_again) == TASKS


PLANNED: dict[str, tuple[Function, str]] = {
    "current_timestamp": (lambda f, t: f.withColumn("x", F.current_timestamp()), "current_timestamp()"),
    "now": (lambda f, t: f.withColumn("x", F.expr("now()")), "now()"),
    "current_date": (lambda f, t: f.filter(F.col("at") > F.current_date()), "current_date()"),
    "localtimestamp": (lambda f, t: f.withColumn("x", F.localtimestamp()), "localtimestamp()"),
    "current_time": (lambda f, t: f.withColumn("x", F.expr("current_time()")), "current_time()"),
    "unix_timestamp": (lambda f, t: f.withColumn("x", F.unix_timestamp()), "current_timestamp()"),
    "a time in words": (lambda f, t: f.withColumn("x", F.lit("now").cast("timestamp")), "'now'"),
    "a day in words": (lambda f, t: f.filter("at > 'Yesterday'"), "'Yesterday'"),
    "the time in a subquery": (sql("SELECT key, (SELECT now()) AS x FROM records"), "now()"),
    "an inner join": (lambda f, t: f.join(t, f.key == t.k), "another table (parquet)"),
    "a left join": (lambda f, t: f.join(t, f.key == t.k, "left"), "another table (parquet)"),
    "a join from the right": (lambda f, t: t.join(f, f.key == t.k, "right"), "another table (parquet)"),
    "a semi join": (lambda f, t: f.join(t, f.key == t.k, "left_semi"), "another table (parquet)"),
    "an anti join": (lambda f, t: f.join(t, f.key == t.k, "left_anti"), "another table (parquet)"),
    "a join without an equality": (lambda f, t: f.join(t, f.key < t.k), "another table (parquet)"),
    "a product with a small table": (lambda f, t: f.crossJoin(t), "another table (parquet)"),
    "an aggregate of another table": (
        lambda f, t: f.join(t.groupBy("k").count(), f.key == F.col("k")), "another table (parquet)",
    ),
    "rows made in Python": (
        lambda f, t: f.join(F.broadcast(f.sparkSession.createDataFrame([(1,)], "k long")), F.col("key") == F.col("k")),
        "created in Python",
    ),
    "a subquery": (sql("SELECT *, (SELECT max(k) FROM names) AS top FROM records"), "another table (parquet)"),
    "EXISTS": (
        sql("SELECT * FROM records WHERE EXISTS (SELECT 1 FROM names WHERE k = key)"), "another table (parquet)",
    ),
    "IN": (sql("SELECT * FROM records WHERE key IN (SELECT k FROM names)"), "another table (parquet)"),
    "a lateral join": (
        sql("SELECT key, name FROM records, LATERAL (SELECT name FROM names WHERE k = key)"), "another table (parquet)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANNED)
def test_frame_that_a_kept_plan_would_freeze_is_planned_for_each_batch(
    leaf: DataFrame, table: DataFrame, name: str
) -> None:
    """The reason is given in words; the tasks that read are still those that write."""
    function, words = PLANNED[name]
    found = analyse(function(leaf, table), leaf)
    assert (found.planning, found.cut, found.partitions) == (Planning.PLANNED, (), None)
    assert len(found.reasons) == 1
    assert words in found.reasons[0]


SHUFFLED: dict[str, tuple[Function, str]] = {
    "repartition": (lambda f, t: f.repartition(4, "key"), "hashpartitioning(key, 4)"),
    "repartition by an expression": (
        lambda f, t: f.repartition(4, F.col("key") % 2), "hashpartitioning((key % 2), 4)",
    ),
    "repartition by a function": (
        lambda f, t: f.withColumn("x", F.udf(lambda value: value, "long")("key")).repartition(4, "x"),
        "hashpartitioning(x, 4)",
    ),
    "groups in pandas": (
        lambda f, t: f.groupBy("key").applyInPandas(lambda group: group, f.schema), "hashpartitioning(key, 2)",
    ),
    "groups in Arrow": (
        lambda f, t: f.groupBy("key").applyInArrow(lambda group: group, f.schema), "hashpartitioning(key, 2)",
    ),
    "a join of two large tables": (
        lambda f, t: f.hint("merge").join(t, f.key == t.k), "hashpartitioning(key, 2)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHUFFLED)
def test_shuffle_by_record_contents_is_planned_for_each_batch(leaf: DataFrame, table: DataFrame, name: str) -> None:
    """The cut names the partitioning, so that a plan in the ledger can hold it."""
    function, cut = SHUFFLED[name]
    found = analyse(function(leaf, table), leaf)
    assert (found.planning, found.shuffles) == (Planning.PLANNED, 1)
    assert without_numbers(found.cut) == (cut,)
    assert str(found.partitions) in cut
    assert any("it shuffles" in each for each in found.reasons)


def test_shuffles_by_two_columns_of_one_name_are_told_apart(leaf: DataFrame, table: DataFrame) -> None:
    """Which of two joins shuffles depends on the sizes of the tables, and a replay may find others."""

    def cut(first: str, second: str) -> tuple[str, ...]:
        names, others = table.toDF("key", "name"), table.toDF("key", "other")
        joined = leaf.join(names.hint(first), "key").withColumn("key", F.length("value").cast("long"))
        frame = joined.join(others.hint(second), "key")
        found = analyse(frame, leaf).cut
        assert planned_cut(frame.select("*"), leaf)[0] == found
        return found

    by_records, by_name = cut("merge", "broadcast"), cut("broadcast", "merge")
    assert without_numbers(by_records) == without_numbers(by_name) == ("hashpartitioning(key, 2)",)
    assert not same_cut(by_records, by_name)
    assert same_cut(by_records, cut("merge", "broadcast"))
    assert same_cut(without_numbers(by_records), by_name)  # as an earlier version has planned


def test_shuffles_by_two_functions_in_join_conditions_are_told_apart(leaf: DataFrame, table: DataFrame) -> None:
    """Spark gives the results of both one name, and prints both calls alike."""
    first, second = F.udf(lambda key: key, "long"), F.udf(lambda key: key + 1, "long")

    def cut(one: str, other: str) -> tuple[str, ...]:
        names, others = table.toDF("k", "name"), table.toDF("l", "other")
        joined = leaf.join(names.hint(one), first(leaf.key) == F.col("k"))
        return analyse(joined.join(others.hint(other), second(leaf.key) == F.col("l")), leaf).cut

    by_first, by_second = cut("merge", "broadcast"), cut("broadcast", "merge")
    assert without_numbers(by_first) == without_numbers(by_second)
    assert not same_cut(by_first, by_second)
    assert same_cut(by_first, cut("merge", "broadcast"))


def test_shuffles_by_one_call_on_two_columns_of_one_name_are_told_apart(leaf: DataFrame, table: DataFrame) -> None:
    """A column that is named by its text may be used again where the name has another value."""
    by = F.udf(lambda key: key, "long")(F.col("key"))

    def cut(one: str, other: str) -> tuple[str, ...]:
        names, others = table.toDF("k", "name"), table.toDF("l", "other")
        joined = leaf.join(names.hint(one), by == F.col("k"))
        again = joined.withColumn("key", F.length("value").cast("long"))
        return analyse(again.join(others.hint(other), by == F.col("l")), leaf).cut

    first, second = cut("merge", "broadcast"), cut("broadcast", "merge")
    assert without_numbers(first) == without_numbers(second)
    assert not same_cut(first, second)
    assert same_cut(first, cut("merge", "broadcast"))


def test_shuffle_by_a_function_of_transformed_values_is_the_same_in_each_frame(
    leaf: DataFrame, table: DataFrame
) -> None:
    """PySpark numbers the variables of such expressions on from frame to frame."""
    change = F.udf(lambda keys: keys[0], "long")

    def cut() -> tuple[str, ...]:
        keys = F.transform(F.array(leaf.key), lambda key: key + 1)
        return analyse(leaf.join(table.hint("merge"), change(keys) == table.k), leaf).cut

    assert cut() == cut()


def test_shuffles_by_two_fields_of_one_name_are_told_apart(leaf: DataFrame, table: DataFrame) -> None:
    """Spark's optimizer takes such a field out of its structure, and names its column only by the field."""
    nested = leaf.select(
        F.struct(F.col("key").alias("city"), F.lit(1).alias("x")).alias("shipping"),
        F.struct(F.length("value").cast("long").alias("city"), F.lit(2).alias("x")).alias("billing"),
        "value",
    )
    nested = nested.repartition(2, "value")  # or it would make the structures only after the joins

    def cut(one: str, other: str) -> tuple[str, ...]:
        names, others = table.toDF("k", "name"), table.toDF("l", "other")
        joined = nested.join(names.hint(one), nested.shipping.city == F.col("k"))
        joined = joined.join(others.hint(other), nested.billing.city == F.col("l"))
        return analyse(joined.select("value", "name", "other"), leaf).cut

    by_shipping, by_billing = cut("merge", "broadcast"), cut("broadcast", "merge")
    assert "_extract_city" in by_shipping[-1]
    assert without_numbers(by_shipping) == without_numbers(by_billing)
    assert not same_cut(by_shipping, by_billing)
    assert same_cut(by_shipping, cut("merge", "broadcast"))


def test_random_column_that_decides_no_task_may_occur_with_a_shuffle(leaf: DataFrame) -> None:
    """A random column is refused only as a key."""
    found = analyse(leaf.withColumn("r", F.rand()).repartition(4, "key"), leaf)
    assert (found.planning, without_numbers(found.cut)) == (Planning.BUILT, ("hashpartitioning(key, 4)",))


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("rand()", "rand()"),
        ("randn()", "randn()"),
        ("uuid()", "uuid()"),
        ("shuffle(array(key, key))", "shuffle()"),
        ("randstr(5)", "randstr()"),
        ("uniform(1, 5)", "uniform()"),
    ],
)
def test_random_function_is_built_for_each_batch(leaf: DataFrame, expression: str, words: str) -> None:
    """Its seed is in the plan from the moment the user's function is called."""
    found = analyse(leaf.withColumn("x", F.expr(expression)), leaf)
    assert found.planning is Planning.BUILT
    assert found.reasons == (f"{words} draws new values for each batch",)


def test_sample_is_built_for_each_batch(leaf: DataFrame) -> None:
    """Otherwise another batch would be sampled at the same positions."""
    assert analyse(leaf.sample(0.5), leaf) == Analysis(
        Planning.BUILT, ("sample() draws different rows for each batch",), (), None
    )


def test_strongest_reason_decides(leaf: DataFrame, table: DataFrame) -> None:
    """All reasons are listed."""
    frame = leaf.join(table, leaf.key == table.k).withColumns({"r": F.rand(), "t": F.current_timestamp()})
    found = analyse(frame, leaf)
    assert found.planning is Planning.BUILT
    assert len(found.reasons) == 3


def test_other_tables_may_be_computed_in_any_way(leaf: DataFrame, table: DataFrame) -> None:
    """It may be aggregated, sorted or distributed round-robin: no record goes through that."""
    other = table.repartition(3).distinct().sort("k").limit(4).union(table.coalesce(1)).groupBy("k").count()
    found = analyse(leaf.join(other, leaf.key == other.k, "left"), leaf)
    assert (found.planning, found.cut) == (Planning.PLANNED, ())


def test_tasks_behind_a_shuffle_are_not_merged_beside_a_cached_table_that_is_divided_like_it(
    leaf: DataFrame, table: DataFrame
) -> None:
    """Spark would merge them by the hosts that keep the table, which are others after a restart."""
    kept = table.repartition(8, "k").cache()
    rows = leaf.repartition(8, "key").join(kept.hint("merge"), leaf.key == kept.k, "left")
    try:
        with pytest.raises(FunctionInvalid, match=r"sink.partitions \(4\) merges the 8 .*\(InMemoryTableScan\)"):
            analyse(rows, leaf, 4)
        for most in (8, None):
            assert analyse(rows, leaf, most).partitions == 8
        with pytest.raises(FunctionInvalid, match=r"\(4\) merges the 8"):
            planned_cut(rows.coalesce(4), leaf)
        assert planned_cut(rows, leaf)[1] == 8
        # Shuffled or broadcast, the table comes from wherever it is kept.
        for other in (table.cache().hint("merge"), F.broadcast(kept), table.hint("merge")):
            joined = leaf.repartition(8, "key").join(other, leaf.key == other.k, "left")
            assert analyse(joined, leaf, 2).partitions == 8
    finally:
        kept.unpersist()
        table.unpersist()


def test_tasks_are_merged_beside_a_bucketed_table_of_which_no_host_keeps_a_part(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Object stores and local folders have none; Spark merges neighbours then. On HDFS it is refused."""
    leaf = reading(spark)
    numbers = spark.range(40).withColumnRenamed("id", "k")
    numbers.write.bucketBy(8, "k").saveAsTable("buckets", path=str(tmp_path / "buckets"))
    try:
        kept = spark.table("buckets").hint("merge")
        rows = leaf.repartition(8, "key").join(kept, leaf.key == kept.k, "left")
        assert analyse(rows, leaf, 4).partitions == 8
        monkeypatch.setattr("tailrace.driver.merging._FILES", frozenset())  # as if it had asked, and hosts had it
        with pytest.raises(FunctionInvalid, match=r"merges the 8 .*\(Scan parquet spark_catalog.default.buckets\)"):
            analyse(rows, leaf, 4)
    finally:
        spark.sql("DROP TABLE buckets")


def test_adaptive_execution_is_not_accepted(leaf: DataFrame) -> None:
    """It would choose the number of tasks by the size of a batch."""
    spark = leaf.sparkSession
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    try:
        with pytest.raises(InvariantBroken, match="adaptive"):
            analyse(leaf.repartition(3, "key"), leaf)
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", "false")
