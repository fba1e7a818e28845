"""Which frames `exactly_once` can cut the same way again, and which it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from support.dropin import Change, deliver, fill, numbers, read
from support.pipelines import Bench
from tailrace.testing import Record, produce

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]
ADAPTIVE = "spark.sql.adaptive.enabled"


def failing(rows: DataFrame, folder: Path) -> DataFrame:
    """Fail on the number that the file `broken` holds."""
    flag = str(folder / "broken")

    def check(value):  # type: ignore[no-untyped-def]  # PySpark reads hints as another kind of function
        from pathlib import Path

        if Path(flag).exists() and bytes(value).decode() == Path(flag).read_text():
            raise ValueError("the fault of the test")
        return bytes(value)

    return rows.select(F.udf(check, "binary")("value").alias("value"))


def listed(frame: DataFrame) -> DataFrame:
    """Make the rows again from what Python has collected."""
    return frame.sparkSession.createDataFrame(frame.collect(), frame.schema)


def from_pandas(frame: DataFrame) -> DataFrame:
    """Make the rows again from a pandas frame."""
    return frame.sparkSession.createDataFrame(frame.toPandas(), frame.schema)


def with_all(frame: DataFrame) -> DataFrame:
    """Join each row with each of a table, without a broadcast."""
    return frame.crossJoin(frame.sparkSession.range(2).hint("shuffle_replicate_nl")).where("id = 0").select("value")


def by_hidden_chance(frame: DataFrame) -> DataFrame:
    """Distribute the rows by a random number that the plan no longer shows."""
    return frame.withColumn("r", F.rand()).localCheckpoint().repartition(2, "r").drop("r")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda frame: frame.localCheckpoint(), "no longer shows what its tasks read"),
        (listed, "no longer shows what its tasks read"),
        (from_pandas, "no longer shows what its tasks read"),
        (lambda frame: frame.union(listed(frame)), r"ParallelCollectionPartition.*union it with table\.coalesce\(1\)"),
        (lambda frame: frame.rdd.repartition(2).toDF(frame.schema), "no longer shows what its tasks read"),
        (lambda frame: frame.union(frame).coalesce(3), "branches of a union"),
        (with_all, "no longer shows what its tasks read"),
        (by_hidden_chance, "the repartition by r depends on another table"),
    ],
    ids=["localCheckpoint", "list", "pandas", "union", "rdd", "coalesced-union", "cartesian", "hidden-chance"],
)
def test_frame_that_hides_what_its_tasks_read_is_refused(
    bench: MakeBench, tmp_path: Path, change: Change, words: str
) -> None:
    """Spark's order of reading would decide what a sink partition gets, and differs on a replay."""
    one = bench(partitions=2)
    fill(one, 0, 40)
    with pytest.raises(Exception, match=rf"(?s)TR-103.*the query's rows cannot be cut the same way again.*{words}"):
        deliver(read(one), one, tmp_path / "c", change)
    assert numbers(one) == []
    deliver(read(one), one, tmp_path / "c")
    assert numbers(one) == list(range(40))


def header(frame: DataFrame) -> DataFrame:
    """Add two rows of a table, as one partition of it."""
    table = frame.sparkSession.createDataFrame([(b"40",), (b"41",)], "value binary")
    return frame.union(table.coalesce(1))


def with_range(frame: DataFrame) -> DataFrame:
    """Add four numbers."""
    table = frame.sparkSession.range(40, 44)
    return frame.union(table.select(F.col("id").cast("string").cast("binary").alias("value")))


def with_nothing(frame: DataFrame) -> DataFrame:
    """Add a list without rows."""
    return frame.union(frame.sparkSession.createDataFrame([], frame.schema))


def limited(frame: DataFrame) -> DataFrame:
    """Use most of what a batch's frame can be put through without losing sight of what it reads."""
    kept = frame.cache().sortWithinPartitions("value").sample(True, 1.0).where("false")
    joined = frame.join(
        frame.sparkSession.range(50).select(F.col("id").cast("string").cast("binary").alias("value")).hint("merge"),
        "value",
    )
    return joined.unionByName(kept).unionByName(frame.rdd.toDF(frame.schema).limit(0))


@pytest.mark.parametrize(
    ("change", "end"),
    [
        (lambda frame: frame.cache(), 40),
        (limited, 40),
        (header, 42),
        (with_range, 44),
        (with_nothing, 40),
        (lambda frame: from_pandas(frame).coalesce(1), 40),
        (lambda frame: frame.where("value < '2'").union(frame.where("value >= '2'")).coalesce(1), 40),
        (lambda frame: frame.localCheckpoint().coalesce(1), 40),
        (lambda frame: frame.repartition(3, "value").union(frame.where("false").repartition(3, "value")), 40),
        (lambda frame: frame.repartition(4, "value").coalesce(2), 40),
    ],
    ids=[
        "cache",
        "narrow",
        "header",
        "range",
        "empty-list",
        "pandas-alone",
        "union-alone",
        "checkpoint-alone",
        "union-of-shuffles",
        "coalesced-shuffle",
    ],
)
def test_frame_that_shows_what_its_tasks_read_is_delivered(
    bench: MakeBench, tmp_path: Path, change: Change, end: int
) -> None:
    """So is one with a single sink partition, which gets all of the batch however its rows are ordered."""
    one = bench(partitions=2)
    fill(one, 0, 40)
    deliver(read(one), one, tmp_path / "c", change)
    assert numbers(one) == list(range(end))


@pytest.fixture
def adaptive(spark: SparkSession) -> Iterator[None]:
    """Let Spark merge the partitions of shuffles by their sizes, as is its default."""
    spark.conf.set(ADAPTIVE, "true")
    yield
    spark.conf.set(ADAPTIVE, "false")


@pytest.mark.usefixtures("adaptive")
@pytest.mark.parametrize("place", ["query", "batch", "cached"])
def test_shuffle_that_adaptive_execution_may_merge_is_refused(
    bench: MakeBench, spark: SparkSession, tmp_path: Path, place: str
) -> None:
    """The error names the setting; if only a broadcast table is shuffled, adaptive execution moves no record."""
    one = bench(partitions=2)
    fill(one, 0, 40)
    changes: dict[str, tuple[DataFrame, Change]] = {
        "query": (read(one).repartition("value"), lambda frame: frame),
        "batch": (read(one), lambda frame: frame.repartition("value")),
        "cached": (read(one), lambda frame: frame.repartition("value").cache()),
    }
    with pytest.raises(Exception, match=rf"(?s)TR-103.*cut the same way again.*{ADAPTIVE}"):
        deliver(changes[place][0], one, tmp_path / "c", changes[place][1])
    assert numbers(one) == []
    table = spark.range(50).select(F.col("id").cast("string").cast("binary").alias("value")).dropDuplicates()
    deliver(read(one), one, tmp_path / "d", lambda frame: frame.join(F.broadcast(table), "value"))
    assert numbers(one) == list(range(40))


@pytest.mark.usefixtures("adaptive")
def test_shuffle_into_one_partition_is_delivered_under_adaptive_execution(bench: MakeBench, tmp_path: Path) -> None:
    """Adaptive execution has nothing to merge or split there."""
    one = bench(partitions=2)
    fill(one, 0, 40)
    last = F.max(F.col("value").cast("string").cast("int")).cast("string").cast("binary").alias("value")
    deliver(read(one), one, tmp_path / "c", lambda frame: frame.groupBy().agg(last))
    assert numbers(one) == [39]


def order(rows: DataFrame) -> list[int]:
    """Return the partitions of the source in the order in which the first run of a query lists them."""
    found: list[int] = []

    def look(frame: DataFrame, number: int) -> None:
        for each in frame._jdf.queryExecution().toRdd().partitions():
            found.append(each.inputPartition().get().offsetRange().partition())

    rows.writeStream.foreachBatch(look).trigger(availableNow=True).start().awaitTermination()
    return found


def test_coalesced_batch_is_finished_whatever_order_spark_reads_in(bench: MakeBench, tmp_path: Path) -> None:
    """A replay lists few partitions in their order; the first run in one that depends on the topic's name."""
    for _ in range(20):
        one = bench(partitions=3)
        fill(one, 0, 40)
        if order(read(one)) != [0, 1, 2]:
            break

    def job() -> None:
        deliver(read(one), one, tmp_path / "c", lambda frame: failing(frame.coalesce(1), tmp_path))

    (tmp_path / "broken").write_text("39")
    with pytest.raises(Exception, match="the fault of the test"):
        job()
    one.settle()
    (tmp_path / "broken").unlink()
    job()
    assert numbers(one) == list(range(40))


def rate(spark: SparkSession) -> DataFrame:
    """Read from a source that is neither Kafka's nor of files."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("numPartitions", 2).load()
    return rows.select(F.col("value").cast("string").alias("value"))


def test_source_other_than_kafka_is_refused_unless_its_rows_are_shuffled(
    bench: MakeBench, spark: SparkSession, tmp_path: Path
) -> None:
    """What a task of it reads is not known, so only a key can decide what a sink partition gets."""
    one = bench()
    with pytest.raises(Exception, match=r"(?s)TR-103.*a source other than Kafka"):
        deliver(rate(spark), one, tmp_path / "c")
    deliver(rate(spark).repartition(2, "value"), one, tmp_path / "d")
    assert numbers(one)[:10] == list(range(10))


def test_hidden_frame_in_a_coalesced_union_is_refused(bench: MakeBench, spark: SparkSession, tmp_path: Path) -> None:
    """Where a branch is cached on some executor, Spark merges the branches' partitions in turn."""
    one, other = bench(partitions=2), bench(partitions=2)
    fill(one, 0, 40)
    fill(other, 0, 4)
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", other.kafka)
    for option, offset in {"startingOffsets": 0, "endingOffsets": 2}.items():
        reader = reader.option(option, json.dumps({other.source: {"0": offset, "1": offset}}))
    none = reader.option("subscribe", other.source).load().select("value").where("value = 'none'")

    def change(frame: DataFrame) -> DataFrame:
        hidden = listed(frame).cache()
        hidden.count()
        return hidden.union(none).coalesce(2)

    with pytest.raises(Exception, match=r"(?s)TR-103.*no longer shows what its tasks read"):
        deliver(read(one), one, tmp_path / "c", change)
    assert numbers(one) == []


def test_tasks_with_state_are_not_merged_but_into_one(bench: MakeBench, tmp_path: Path) -> None:
    """Spark merges them by the executors that keep their state, which a restart forgets."""
    one = bench(partitions=2)
    fill(one, 0, 40)
    kept = read(one).dropDuplicates(["value"])
    for number, (query, change) in enumerate(
        [(kept.coalesce(2), lambda frame: frame), (kept, lambda frame: frame.coalesce(2))]
    ):
        with pytest.raises(Exception, match=r"(?s)TR-103.*coalesce\(2\) merges tasks by the executors"):
            deliver(query, one, tmp_path / f"c{number}", change)
    assert numbers(one) == []
    deliver(kept, one, tmp_path / "c", lambda frame: frame.coalesce(1))
    assert numbers(one) == list(range(40))
    fill(one, 40, 80)
    deliver(kept, one, tmp_path / "c", lambda frame: frame.repartition(4, "value").coalesce(2))
    assert numbers(one) == list(range(80))


LOOKUP = """
    from pyspark.sql import functions as F

    def joined(frame):
        table = frame.sparkSession.read.parquet({folder!r}).hint("merge")
        return frame.join(table, "id").select(F.col("id").cast("string").cast("binary").alias("value"))
"""


def test_stateful_pipeline_joins_a_table_of_a_newer_kind_of_source(bench: MakeBench, spark: SparkSession) -> None:
    """Only tasks that read Kafka have ranges; those that read the table have none."""
    one, setting = bench(partitions=2), "spark.sql.sources.useV1SourceList"
    folder = str(one.folder / "lookup")
    spark.range(100).selectExpr("cast(id as int) id", "id as other").write.parquet(folder)
    one.write("j.py", LOOKUP.format(folder=folder))
    one.send([b'{"id":%d}' % number for number in range(20)])
    spark.conf.set(setting, "")
    try:
        one.run(
            source={"format": "json", "schema": "id INT"},
            process={"function": "j.py:joined"},
            sink={"format": "raw"},
            checkpoint="state/",
        )
    finally:
        spark.conf.unset(setting)
    assert numbers(one) == list(range(20))


KAFKA_LOOKUP = """
    from pyspark.sql import functions as F

    def joined(frame):
        table = (frame.sparkSession.read.format("kafka").option("kafka.bootstrap.servers", {kafka!r})
            .option("subscribe", {topic!r}).load())
        users = table.select(F.get_json_object(table["value"].cast("string"), "$.user").cast("int").alias("user"))
        rows = frame.join(users.hint("merge"), frame["id"] == users["user"], "left")
        return rows.select(F.col("id").cast("string").cast("binary").alias("value"))
"""


def test_lookup_table_of_kafka_is_no_part_of_a_stateful_pipelines_source(bench: MakeBench, spark: SparkSession) -> None:
    """Read as the source is, its records would be judged by the source's schema, and rejected with each batch."""
    one, setting = bench(partitions=2), "spark.sql.sources.useV1SourceList"
    users = one.topics(f"users-{one.name}")
    produce(one.kafka, users, [Record(b'{"user":%d}' % number) for number in range(30)])
    one.write("j.py", KAFKA_LOOKUP.format(kafka=one.kafka, topic=users))
    made: dict[str, Any] = {
        "source": {"format": "json", "schema": "id INT NOT NULL"},
        "process": {"function": "j.py:joined"},
        "sink": {"format": "raw"},
        "checkpoint": "state/",
    }
    spark.conf.set(setting, "")
    try:
        for first in (0, 20):
            one.send([b'{"id":%d}' % number for number in range(first, first + 20)])
            one.run(**made)
    finally:
        spark.conf.unset(setting)
    assert numbers(one) == list(range(40))
    assert one.rejected() == []
