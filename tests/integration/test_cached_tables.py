"""Lookup tables in a cache: Spark learns their size when the cache is filled, and then plans another join."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from support import dropin
from support.pipelines import Bench
from tailrace import errors
from tailrace.spark_stream import planned_sink
from tailrace.testing import Record, produce

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]
SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "2000000",  # between the size of the files and that in memory
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(autouse=True)
def settings(spark: SparkSession) -> Iterator[None]:
    """Set what decides the join until the test ends."""
    before = {name: str(spark.conf.get(name)) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


def table(spark: SparkSession, folder: Path) -> DataFrame:
    """Return a table that is a hundred times larger in memory than in its file, in a cache that is not filled."""
    path = folder / "table"
    if not path.exists():
        rows = spark.range(20000).select(F.col("id").cast("string").cast("binary").alias("value"))
        rows.withColumn("pad", F.lit("x" * 400)).coalesce(1).write.parquet(str(path))
    return spark.read.parquet(str(path)).cache()


def fill(one: Bench) -> None:
    """Write forty numbers, twenty to each partition of the source."""
    produce(one.kafka, one.source, [Record(b"%d" % number, partition=number // 20) for number in range(40)])


def numbers(one: Bench) -> list[int]:
    """Return what the sink holds, sorted."""
    return sorted(int(value or b"") for value in one.values())


def deliver(one: Bench, users: DataFrame, folder: Path, **keys: Column) -> None:
    """Deliver what the source contains, joined with a table by its value and these keys.

    Fail late on a number if the file `broken` exists.
    """
    flag = str(folder / "broken")

    def check(value):  # type: ignore[no-untyped-def]  # PySpark reads hints as another kind of function
        import time
        from pathlib import Path

        if Path(flag).exists() and int(bytes(value)) == 24:
            time.sleep(4)
            raise ValueError("the fault of the test")
        return bytes(value)

    def joined(frame: DataFrame) -> DataFrame:
        keyed = frame.withColumns(keys).join(users.withColumns(dict.fromkeys(keys, F.lit(0))), ["value", *keys])
        return keyed.select(F.udf(check, "binary")("value").alias("value"))

    dropin.deliver(dropin.read(one), one, folder / "c", joined)


@pytest.mark.takes(30)
def test_replay_delivers_the_rest_of_a_batch_joined_with_a_table_whose_cache_was_empty(
    bench: MakeBench, spark: SparkSession, tmp_path: Path
) -> None:
    """The plan names what each writing task gets, so both come from one planning, with the table's true size."""
    one = bench(partitions=2)
    fill(one)
    users = table(spark, tmp_path)
    (tmp_path / "broken").touch()
    with pytest.raises(Exception, match="the fault of the test"):
        deliver(one, users, tmp_path)
    one.settle()
    (tmp_path / "broken").unlink()
    assert 0 < len(numbers(one)) < 40
    users.unpersist(blocking=True)
    again = table(spark, tmp_path)  # as another process begins
    deliver(one, again, tmp_path)
    again.unpersist()
    assert numbers(one) == list(range(40))


@pytest.mark.takes(10)
def test_random_key_of_a_join_with_a_cached_table_is_refused_only_if_spark_shuffles(
    bench: MakeBench, spark: SparkSession, tmp_path: Path
) -> None:
    """Before its cache is filled, the table looks small enough for a broadcast."""
    one = bench(partitions=2)
    fill(one)
    users, salt = table(spark, tmp_path), F.floor(F.rand(7) * 1)
    with pytest.raises(Exception, match=r"TR-103.*join by salt.*rand"):
        deliver(one, users, tmp_path, salt=salt)
    users.unpersist()
    assert numbers(one) == []
    deliver(one, spark.read.parquet(str(tmp_path / "table")), tmp_path, salt=salt)
    assert numbers(one) == list(range(40))


@pytest.mark.takes(20)
def test_batch_that_spark_would_write_by_another_cut_than_planned_is_refused_before_a_row_is_sent(
    bench: MakeBench, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that fills between the planning and the write gives other rows to each task."""
    one = bench(partitions=2)
    fill(one)
    users = table(spark, tmp_path)
    monkeypatch.setattr(planned_sink, "fill_tables", lambda *_: None)
    with pytest.raises(Exception, match=r"(?s)TR-302.*when Spark planned its write.*of this attempt was sent"):
        deliver(one, users, tmp_path)
    assert numbers(one) == []
    deliver(one, users, tmp_path)
    users.unpersist()
    assert numbers(one) == list(range(40))


FUNCTION = """
    import time
    from pathlib import Path
    from pyspark.sql import functions as F
    from pyspark.sql.types import LongType
    FOLDER = {folder!r}
    TABLE = [(number, f"name{{number}}") for number in range(2000)]
    def check(number):
        if number == 34 and Path(FOLDER, "broken").exists():
            time.sleep(4)
            raise ValueError("the fault of the test")
        return number
    def enrich(frame):
        users = frame.sparkSession.createDataFrame(TABLE, "user long, name string").cache()
        rows = frame.dropDuplicates(["id", "user"]).join(users, "user")
        return rows.select(F.udf(check, LongType())("id").cast("string").cast("binary").alias("value"))
    def salted(frame):
        table = frame.sparkSession.createDataFrame(TABLE, "user long, name string").cache()
        table = table.withColumn("salt", F.lit(0))
        rows = frame.dropDuplicates(["id", "user"]).withColumn("salt", F.floor(F.rand(7)))
        return rows.join(table, ["user", "salt"]).select(F.col("id").cast("string").cast("binary").alias("value"))
"""


def enrich(one: Bench, function: str = "enrich") -> None:
    """Run a pipeline that keeps state by id and user, and joins a cached table by user, twenty records a batch."""
    one.run(
        source={"format": "json", "schema": "id BIGINT, user BIGINT", "partitions": None},
        process={"function": f"enrich.py:{function}"},
        batch={"target": 0, "max_records": 20},
        checkpoint=str(one.folder / "state"),
    )


def enrich_in_part(one: Bench) -> list[int]:
    """Deliver the first batch and a part of the second; return what the sink holds."""
    one.write("enrich.py", FUNCTION.format(folder=str(one.folder)))
    for part in range(2):
        one.send([b'{"id": %d, "user": %d}' % (n, 1999 - 7 * n) for n in range(20 * part, 20 * part + 20)], part)
    (one.folder / "broken").touch()
    with pytest.raises(errors.FunctionFailed):
        enrich(one)
    one.settle()
    (one.folder / "broken").unlink()
    before = numbers(one)
    assert 20 < len(before) < 40
    return before


@pytest.mark.takes(40)
def test_stateful_pipeline_with_a_cached_lookup_table_delivers_each_record_once(bench: MakeBench) -> None:
    """A start has an empty cache, and the batch that it finishes may have been joined with a full one."""
    one = bench(partitions=2)
    enrich_in_part(one)
    enrich(one)
    assert numbers(one) == list(range(40))


@pytest.mark.takes(20)
def test_stateful_pipeline_with_a_random_key_of_a_join_is_refused_only_if_spark_shuffles(
    bench: MakeBench, spark: SparkSession
) -> None:
    """How it joins is known only when it plans a batch, of which nothing is written then."""
    one = bench(partitions=2)
    one.write("enrich.py", FUNCTION.format(folder=str(one.folder)))
    one.send([b'{"id": %d, "user": %d}' % (number, number) for number in range(40)])
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    with pytest.raises(errors.FunctionInvalid, match=r"the join by salt depends on rand"):
        enrich(one, "salted")
    assert numbers(one) == []
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", SETTINGS["spark.sql.autoBroadcastJoinThreshold"])
    enrich(one, "salted")
    assert numbers(one) == list(range(40))


@pytest.mark.takes(40)
def test_stateful_batch_that_would_be_joined_in_another_way_is_refused_once_a_part_is_delivered(
    bench: MakeBench, spark: SparkSession
) -> None:
    """A shuffle's partitions have the same numbers whatever its key is, so the keys are compared too."""
    one = bench(partitions=2)
    before = enrich_in_part(one)
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    with pytest.raises(errors.CutChanged, match=r"hashpartitioning\(user, 2\)"):
        enrich(one)
    assert numbers(one) == before
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", SETTINGS["spark.sql.autoBroadcastJoinThreshold"])
    enrich(one)
    assert numbers(one) == list(range(40))


DIVIDED = """
    from pyspark.sql import functions as F

    def joined(frame):
        numbers = frame.sparkSession.range(40).select(F.col("id").cast("string").cast("binary").alias("value"))
        table = numbers.repartition(8, "value").cache()
        return frame.repartition(8, "value").join(table.hint("merge"), "value")
"""


@pytest.mark.takes(10)
def test_sink_partitions_that_spark_would_merge_beside_a_cached_table_are_refused_at_the_start(
    bench: MakeBench,
) -> None:
    """Nothing is planned; with as many sink partitions as the shuffle has, everything is delivered."""
    one = bench(partitions=2)
    one.write("divided.py", DIVIDED)
    fill(one)
    process = {"function": "divided.py:joined"}
    with pytest.raises(errors.FunctionInvalid, match=r"sink.partitions \(4\) merges the 8 partitions"):
        one.run(process=process, sink={"partitions": 4})
    assert numbers(one) == []
    one.run(process=process, sink={"partitions": 8})
    assert numbers(one) == list(range(40))
