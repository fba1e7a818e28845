"""What Spark deals rows out by and a batch does not show: what its query has computed, and what SQL becomes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from support.dropin import Change, deliver, read
from support.pipelines import Bench, numbered
from tailrace import errors

pytestmark = [pytest.mark.integration, pytest.mark.takes(8)]

MakeBench = Callable[..., Bench]
THRESHOLD = "spark.sql.autoBroadcastJoinThreshold"


@pytest.fixture
def one(bench: MakeBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Fill two source partitions, and a table, whose folder the environment names."""
    made = bench(partitions=2)
    monkeypatch.setenv("TABLE", str(tmp_path / "table"))
    rows = made.spark.createDataFrame([(each,) for each in numbered(0, 10)], "value binary")
    rows.coalesce(1).write.parquet(str(tmp_path / "table"))
    for partition in range(2):
        made.send(numbered(20 * partition, 20 * partition + 20), partition)
    return made


@pytest.fixture
def shuffling(spark: SparkSession) -> Iterator[None]:
    """Let Spark broadcast no table by its size."""
    before = spark.conf.get(THRESHOLD)
    spark.conf.set(THRESHOLD, "-1")
    yield
    spark.conf.set(THRESHOLD, str(before))


def known(rows: DataFrame) -> DataFrame:
    """Note which records a table has."""
    table = rows.sparkSession.read.parquet(os.environ["TABLE"]).withColumn("known", F.lit(1))
    return rows.join(F.broadcast(table), "value", "left")


def found(rows: DataFrame) -> DataFrame:
    """Note the same by a subquery."""
    rows.sparkSession.read.parquet(os.environ["TABLE"]).createOrReplaceTempView("found_values")
    return rows.withColumn("known", F.expr("nullif(value in (select value from found_values), false)"))


def first(rows: DataFrame) -> DataFrame:
    """Keep one record of each length, which are several."""
    return rows.withColumn("size", F.length("value")).dropDuplicates(["size"])


def split(frame: DataFrame) -> DataFrame:
    """Write the records that are known in other tasks than the others."""
    return frame.where("known is not null").select("value").union(frame.where("known is null").select("value"))


@pytest.mark.parametrize(
    ("query", "batch", "words"),
    [
        pytest.param(known, split, "branch of a union.*another table", id="branches by a table"),
        pytest.param(known, lambda frame: frame.repartition(2, "known"), "another table", id="a table's column"),
        pytest.param(found, split, "branch of a union.*a subquery", id="branches by a subquery"),
        pytest.param(found, lambda frame: frame.repartition(2, "known"), "a subquery", id="a subquery's column"),
        pytest.param(
            lambda rows: rows.withColumn("chance", F.rand(42)),
            lambda frame: frame.repartition(2, "chance"),
            "may give a different value",
            id="chance",
        ),
        pytest.param(first, lambda frame: frame.repartition(2, "value"), "a deduplication keeps", id="a chosen row"),
        pytest.param(first, lambda frame: frame.groupBy("value").count(), "a deduplication keeps", id="its group"),
    ],
)
def test_batch_that_is_dealt_out_by_what_the_query_may_compute_otherwise_is_refused(
    one: Bench, tmp_path: Path, query: Change, batch: Change, words: str
) -> None:
    """The same steps within the batch were refused, and did no less harm in the query."""
    with pytest.raises(Exception, match=rf"(?s)TR-103.*{words}"):
        deliver(query(read(one)), one, tmp_path / "c", lambda frame: batch(frame).select("value"))
    assert one.values() == []


def test_batch_that_is_dealt_out_by_the_records_is_delivered_whatever_the_query_adds(
    one: Bench, tmp_path: Path
) -> None:
    """What may differ goes along as a value."""
    rows = known(read(one)).withColumn("chance", F.rand(42))
    deliver(rows, one, tmp_path / "c", lambda frame: frame.repartition(2, "value").select("value"))
    assert sorted(filter(None, one.values())) == numbered(0, 40)


FORMS = {
    "in": "select value from firsts where value in (select value from numbers)",
    "exists": "select value from firsts where exists (select 1 from numbers where numbers.value = firsts.value)",
    "a product": "select firsts.value from firsts, numbers where firsts.value = numbers.value",
    "either of two": (
        "select firsts.value from firsts, numbers where (firsts.value = numbers.value and size = 6) "
        "or (firsts.value = numbers.value and size = 7)"
    ),
    "a single value": (
        "select value from firsts where (select max(n) from numbers where numbers.value = firsts.value) > 0"
    ),
}


@pytest.mark.usefixtures("shuffling")
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_join_that_spark_makes_of_sql_is_refused_if_a_replay_may_deal_otherwise(
    one: Bench, tmp_path: Path, form: str, *, cached: bool
) -> None:
    """Only what Spark executes shows that it shuffles, and by which keys; a cache hides none of them."""

    def joined(frame: DataFrame) -> DataFrame:
        (first(frame).cache() if cached else first(frame)).createOrReplaceTempView("firsts")
        values = F.format_string("%06d", "id").cast("binary").alias("value")
        frame.sparkSession.range(40).select(values, F.lit(1).alias("n")).createOrReplaceTempView("numbers")
        return frame.sparkSession.sql(FORMS[form]).select("value")

    with pytest.raises(
        Exception, match=r"(?s)TR-103.*(join|shuffle) by .*value.*(a deduplication keeps|order in which rows arrive)"
    ):
        deliver(read(one), one, tmp_path / "first", joined)
    assert one.values() == []
    one.spark.conf.set(THRESHOLD, "10000000")
    deliver(read(one), one, tmp_path / "again", joined)
    assert len(one.values()) == 1


FUNCTION = """
    from pyspark.sql import functions as F
    def some(frame):
        numbers = frame.sparkSession.range(40).select(F.format_string("%06d", "id").cast("binary").alias("value"))
        numbers.createOrReplaceTempView("numbers")
        frame.withColumn("size", F.length("value")).dropDuplicates(["size"]).createOrReplaceTempView("firsts")
        return frame.sparkSession.sql("select value from firsts where value in (select value from numbers)")
"""


@pytest.mark.usefixtures("shuffling")
def test_stateful_pipeline_with_a_join_that_spark_makes_of_sql_is_refused(one: Bench) -> None:
    """How Spark joins shows when it has planned the first batch, of which nothing is written then."""
    one.write("some.py", FUNCTION)
    with pytest.raises(
        errors.FunctionInvalid, match=r"shuffle by .*value.*(a deduplication keeps|order in which rows arrive)"
    ):
        one.run(
            process={"function": "some.py:some"},
            checkpoint=str(one.folder / "state"),
            spark={THRESHOLD: "-1"},
        )
    assert one.values() == []


@pytest.mark.usefixtures("shuffling")
def test_join_within_a_cache_that_has_a_name_is_refused_if_a_replay_may_deal_otherwise(
    one: Bench, tmp_path: Path
) -> None:
    """Spark calls its operator by the name, and it was not recognised as one of a cache."""

    def cached(frame: DataFrame) -> DataFrame:
        salts = frame.sparkSession.range(4).selectExpr("cast(id as int) salt")
        salted = frame.withColumn("salt", (F.rand(42) * 4).cast("int")).join(salts, "salt")
        salted.createOrReplaceTempView("salted")
        frame.sparkSession.sql("cache table named as select * from salted")
        return frame.sparkSession.table("named").select("value")

    with pytest.raises(Exception, match=r"(?s)TR-103.*(join|shuffle) by .*salt"):
        deliver(read(one), one, tmp_path / "c", cached)
    one.spark.catalog.clearCache()
    assert one.values() == []


@pytest.mark.parametrize("form", ["checkpoint", "rdd", "checkpoint of a query"])
def test_grouping_by_what_a_checkpoint_or_an_rdd_of_the_batch_may_hold_is_refused(
    one: Bench, tmp_path: Path, form: str
) -> None:
    """Its plan does not show how its columns were computed."""

    def chance(rows: DataFrame) -> DataFrame:
        return rows.withColumn("chance", F.floor(F.rand(42) * 4))

    def grouped(frame: DataFrame) -> DataFrame:
        rows = frame if form == "checkpoint of a query" else chance(frame)
        kept = rows.sparkSession.createDataFrame(rows.rdd, rows.schema) if form == "rdd" else rows.localCheckpoint()
        return kept.groupBy("chance", "value").count().select("value")

    query = chance(read(one)) if form == "checkpoint of a query" else read(one)
    with pytest.raises(Exception, match=r"(?s)TR-103.*an RDD or a checkpoint.*use cache\(\)"):
        deliver(query, one, tmp_path / "c", grouped)
    assert one.values() == []


@pytest.mark.usefixtures("shuffling")
@pytest.mark.parametrize("form", ["in the batch", "in the query"])
def test_join_with_a_table_that_was_checkpointed_before_the_query_is_delivered(
    one: Bench, tmp_path: Path, form: str
) -> None:
    """Its checkpoint is older than the batch, so it cannot have been made from it."""
    table = one.spark.read.parquet(os.environ["TABLE"]).localCheckpoint()

    def joined(rows: DataFrame) -> DataFrame:
        return rows.join(table, "value").select("value")

    if form == "in the query":
        deliver(joined(read(one)), one, tmp_path / "c")
    else:
        deliver(read(one), one, tmp_path / "c", joined)
    assert sorted(filter(None, one.values())) == numbered(0, 10)


def test_distinct_union_that_names_its_branches_by_a_table_is_refused(one: Bench, tmp_path: Path) -> None:
    """A record whose branch changes is another row then, and another task's."""

    def kinds(frame: DataFrame) -> DataFrame:
        rows = known(frame)
        ours = rows.where("known is not null").select("value", F.lit(b"known").alias("key"))
        return ours.union(rows.where("known is null").select("value", F.lit(b"unknown").alias("key"))).distinct()

    with pytest.raises(Exception, match=r"(?s)TR-103.*another table"):
        deliver(read(one), one, tmp_path / "c", kinds)
    assert one.values() == []


@pytest.mark.parametrize("form", ["first", "merged", "counted"])
def test_sorted_batch_that_one_task_writes_is_delivered(one: Bench, tmp_path: Path, form: str) -> None:
    """A sort deals rows out by a sample of them, which is no matter before one task gets all."""

    def ordered(frame: DataFrame) -> DataFrame:
        if form == "counted":
            keyed = frame.withColumn("key", F.upper(F.col("value").cast("string"))).groupBy("key").count()
            rows = keyed.orderBy(F.desc("key")).limit(15)
            return rows.select(F.col("key").cast("binary").alias("value"))
        rows = frame.orderBy(F.desc("value"))
        return rows.limit(15) if form == "first" else rows.coalesce(1)

    deliver(read(one), one, tmp_path / "c", ordered)
    assert sorted(filter(None, one.values())) == numbered(0 if form == "merged" else 25, 40)
