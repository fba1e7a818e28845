"""What a pipeline's frame needs for each batch, and the frames that no replay could repeat."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from tailrace.driver.frame_analysis import Analysis, Planning, analyse, planned_cut
from tailrace.driver.leaf import one_row_per_task
from tailrace.driver.spark_jobs import answers, kept_job
from tailrace.errors import ConfigInvalid, FunctionInvalid, InvariantBroken

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


@pytest.fixture(scope="module")
def leaf(spark: SparkSession) -> DataFrame:
    """Return the frame that reads."""
    return reading(spark)


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Return a table in files, with a name for each key."""
    place = str(tmp_path_factory.mktemp("table") / "names")
    spark.range(5).selectExpr("id AS k", "concat('n', id) AS name").write.parquet(place)
    return spark.read.parquet(place)


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
    assert found.cut == (cut,)
    assert str(found.partitions) in cut
    assert any("it shuffles" in each for each in found.reasons)


def test_random_column_that_decides_no_task_may_occur_with_a_shuffle(leaf: DataFrame) -> None:
    """A random column is refused only as a key."""
    found = analyse(leaf.withColumn("r", F.rand()).repartition(4, "key"), leaf)
    assert (found.planning, found.cut) == (Planning.BUILT, ("hashpartitioning(key, 4)",))


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


# -- what Spark does with a kept plan --------------------------------------------------------------


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


def test_leaf_is_never_the_broadcast_side(spark: SparkSession, table: DataFrame) -> None:
    """A plain range would be, for it looks smaller than any table."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    small = spark.range(0, TASKS, 1, TASKS).mapInArrow(read, "key long")
    with pytest.raises(FunctionInvalid, match="send the records to the tasks"):
        analyse(small.join(table, F.col("key") == F.col("k")), small)
    large = one_row_per_task(spark, TASKS).mapInArrow(read, "key long")
    assert analyse(large.join(table, F.col("key") == F.col("k")), large).cut == ()
