"""What `exactly_once` does if a batch that it knows comes again, but reads or distributes other records."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from support.dropin import deliver, read
from support.expiry import expire
from support.pipelines import Bench
from tailrace.progress.stream_plan import UNNAMED, StreamPlan
from tailrace.spark_stream import function_digest, planned_sink, spark_source
from tailrace.testing import Record, produce

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]
Shuffle = Callable[[DataFrame], DataFrame]


def by_value(rows: DataFrame) -> DataFrame:
    """Distribute the rows by their values."""
    return rows.repartition(3, "value")


def as_read(rows: DataFrame) -> DataFrame:
    """Leave the rows where they were read."""
    return rows


def fill(one: Bench, start: int, end: int) -> None:
    """Write these numbers to the two partitions of the source."""
    produce(one.kafka, one.source, [Record(b"%d" % number, partition=number % 2) for number in range(start, end)])


def numbers(one: Bench) -> list[int]:
    """Return what the sink holds, sorted."""
    return sorted(int(value or b"") for value in one.values())


def faulty(rows: DataFrame, folder: Path) -> DataFrame:
    """Fail in the tasks whose numbers the file `broken` holds."""
    flag = str(folder / "broken")

    def check(value):  # type: ignore[no-untyped-def]  # PySpark reads hints as another kind of function
        from pathlib import Path

        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and Path(flag).exists() and str(context.partitionId()) in Path(flag).read_text():
            raise ValueError("the fault of the test")
        return bytes(value)

    return rows.select(F.udf(check, "binary")("value").alias("value"))


def fail_in_part(one: Bench, folder: Path, job: Callable[[], None]) -> None:
    """Run until the first sink partition is delivered, and the second is not."""
    (folder / "broken").write_text("1")
    with pytest.raises(Exception, match="the fault of the test"):
        job()
    one.settle()
    (folder / "broken").unlink()
    assert 0 < len(one.values()) < 40


def forget(folder: Path, batch: int = 0) -> None:
    """Remove Spark's note that a batch is done, as if Spark had ended before it wrote the note."""
    for name in (f"{batch}", f".{batch}.crc"):
        (folder / "commits" / name).unlink()


@pytest.mark.parametrize("shuffle", [by_value, as_read], ids=["shuffled", "as-read"])
def test_batch_that_an_older_checkpoint_plans_with_other_records_is_refused(
    bench: MakeBench, tmp_path: Path, shuffle: Shuffle
) -> None:
    """Behind a shuffle too, where the sink partitions look the same: skipping them would lose the new records."""
    one = bench(partitions=2)
    fill(one, 0, 10)
    deliver(shuffle(read(one)), one, tmp_path / "c")
    shutil.copytree(tmp_path / "c", tmp_path / "backup")
    fill(one, 10, 20)
    deliver(shuffle(read(one)), one, tmp_path / "c")
    fill(one, 20, 30)
    with pytest.raises(Exception, match="TR-307"):
        deliver(shuffle(read(one)), one, tmp_path / "backup")
    assert numbers(one) == list(range(20))
    deliver(shuffle(read(one)), one, tmp_path / "c")
    assert numbers(one) == list(range(30))


def test_batch_that_an_older_checkpoint_plans_with_the_same_records_is_skipped(
    bench: MakeBench, tmp_path: Path
) -> None:
    """It is the batch that was delivered, so the query continues behind it."""
    one = bench(partitions=2)
    fill(one, 0, 10)
    deliver(by_value(read(one)), one, tmp_path / "c")
    shutil.copytree(tmp_path / "c", tmp_path / "backup")
    fill(one, 10, 20)
    deliver(by_value(read(one)), one, tmp_path / "c")
    deliver(by_value(read(one)), one, tmp_path / "backup")
    fill(one, 20, 30)
    deliver(by_value(read(one)), one, tmp_path / "backup")
    assert numbers(one) == list(range(30))


@pytest.mark.parametrize("finished", [False, True])
def test_batch_of_an_earlier_version_behind_a_shuffle_is_finished(
    bench: MakeBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    """Its plan does not say what it reads, so it is taken for the batch that Spark brings again."""
    one = bench(partitions=2)
    fill(one, 0, 40)

    def job() -> None:
        deliver(faulty(by_value(read(one)), tmp_path), one, tmp_path / "c", id=one.name)

    with monkeypatch.context() as earlier:
        earlier.setattr(planned_sink, "_planned_by", lambda spark: one.name)
        earlier.setattr(spark_source, "read_from_kafka", lambda frame: ())
        if finished:
            job()
            forget(tmp_path / "c")
        else:
            fail_in_part(one, tmp_path, job)
    fill(one, 40, 50)
    job()
    assert numbers(one) == list(range(50))


def test_first_batch_of_another_checkpoint_with_the_same_id_is_not_taken_for_the_old_one(
    bench: MakeBench, tmp_path: Path
) -> None:
    """The id names the same ledger entry, whose batch 0 has read less."""
    one = bench(partitions=2)
    fill(one, 0, 10)
    deliver(by_value(read(one)), one, tmp_path / "c", id=one.name)
    fill(one, 10, 20)
    with pytest.raises(Exception, match="TR-307"):
        deliver(by_value(read(one)), one, tmp_path / "other", id=one.name)
    deliver(by_value(read(one)), one, tmp_path / "c", id=one.name)
    assert numbers(one) == list(range(20))


@pytest.mark.parametrize("shuffle", [by_value, as_read], ids=["shuffled", "as-read"])
def test_batch_of_a_source_other_than_kafka_is_known_by_its_query(
    bench: MakeBench, spark: SparkSession, tmp_path: Path, shuffle: Shuffle
) -> None:
    """What the tasks read of it is unknown, so a batch that Spark has planned again is refused."""
    one = bench()
    (tmp_path / "in").mkdir()

    def add(start: int, end: int) -> None:
        (tmp_path / "in" / f"{start}.txt").write_text("".join(f"{number}\n" for number in range(start, end)))

    def job(folder: str) -> None:
        deliver(shuffle(spark.readStream.text(str(tmp_path / "in"))), one, tmp_path / folder, id=one.name)

    add(0, 10)
    job("c")
    shutil.copytree(tmp_path / "c", tmp_path / "backup")
    forget(tmp_path / "c")
    job("c")
    assert numbers(one) == list(range(10))
    add(10, 20)
    with pytest.raises(Exception, match="TR-307"):
        job("other")
    job("c")
    add(20, 30)
    with pytest.raises(Exception, match="TR-307"):
        job("backup")
    job("c")
    assert numbers(one) == list(range(30))


def test_batch_of_a_query_with_state_is_read_again_though_all_of_it_is_delivered(
    bench: MakeBench, tmp_path: Path
) -> None:
    """Its state is made only then, and Spark refuses to note a batch without it."""
    one = bench(partitions=2)
    fill(one, 0, 20)
    kept = read(one).dropDuplicates(["value"])
    deliver(kept, one, tmp_path / "c", id=one.name)
    forget(tmp_path / "c")
    fill(one, 10, 30)
    deliver(kept, one, tmp_path / "c", id=one.name)
    assert numbers(one) == list(range(30))


def test_files_that_spark_divides_otherwise_after_a_restart_are_refused(
    bench: MakeBench, spark: SparkSession, tmp_path: Path
) -> None:
    """It divides them by the number of cores that it has then, and the number of tasks may be the same."""
    one = bench()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.txt").write_text("".join(f"{number:07}\n" for number in range(32)))

    def job(cores: int) -> None:
        for name, value in (("openCostInBytes", 1), ("minPartitionNum", cores)):
            spark.conf.set(f"spark.sql.files.{name}", value)
        rows = spark.readStream.text(str(tmp_path / "in")).select(F.col("value").cast("binary").alias("value"))
        deliver(faulty(rows, tmp_path), one, tmp_path / "c", id=one.name)

    try:
        fail_in_part(one, tmp_path, lambda: job(4))
        with pytest.raises(Exception, match=r"(?s)TR-302.*spark.sql.files.minPartitionNum to that number"):
            job(3)
        job(4)
        forget(tmp_path / "c")
        job(3)  # all of it is delivered, so nobody need cut it
    finally:
        for name in ("openCostInBytes", "minPartitionNum"):
            spark.conf.unset(f"spark.sql.files.{name}")
    assert numbers(one) == list(range(32))


def test_files_that_one_task_reads_are_finished_however_spark_divides_them(
    bench: MakeBench, spark: SparkSession, tmp_path: Path
) -> None:
    """Behind `coalesce(1)` it has all of their rows with any number of cores."""
    one = bench()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.txt").write_text("".join(f"{number:07}\n" for number in range(32)))

    def job(cores: int) -> None:
        for name, value in (("openCostInBytes", 1), ("minPartitionNum", cores)):
            spark.conf.set(f"spark.sql.files.{name}", value)
        rows = spark.readStream.text(str(tmp_path / "in")).select(F.col("value").cast("binary").alias("value"))
        deliver(faulty(rows.coalesce(1), tmp_path), one, tmp_path / "c", id=one.name)

    (tmp_path / "broken").write_text("0")
    try:
        with pytest.raises(Exception, match="the fault of the test"):
            job(4)
        one.settle()
        (tmp_path / "broken").unlink()
        job(1)
    finally:
        for name in ("openCostInBytes", "minPartitionNum"):
            spark.conf.unset(f"spark.sql.files.{name}")
    assert numbers(one) == list(range(32))


def by_hash(rows: DataFrame) -> DataFrame:
    """Distribute the rows by a computed column."""
    return rows.withColumn("k", F.hash("value") % 5).repartition(2, "k").drop("k")


def by_another_hash(rows: DataFrame) -> DataFrame:
    """Distribute the rows by a column of the same name, computed in another way."""
    return rows.withColumn("k", F.hash("value") % 7).repartition(2, "k").drop("k")


def by_text(rows: DataFrame) -> DataFrame:
    """Distribute the rows by an expression."""
    return rows.repartition(2, F.reverse(F.concat(F.lit("x"), F.col("value").cast("string"))))


@pytest.mark.parametrize("place", ["query", "batch"])
@pytest.mark.parametrize("other", [by_text, by_another_hash])
def test_changed_shuffle_of_a_partly_delivered_batch_is_refused(
    bench: MakeBench, tmp_path: Path, place: str, other: Shuffle
) -> None:
    """It would move rows between a sink partition that is delivered and one that is not; the old one finishes."""
    one = bench(partitions=2)
    fill(one, 0, 40)

    def job(shuffle: Shuffle) -> None:
        if place == "query":
            deliver(faulty(shuffle(read(one)), tmp_path), one, tmp_path / "c")
        else:
            deliver(read(one), one, tmp_path / "c", then=lambda rows: faulty(shuffle(rows), tmp_path))

    fail_in_part(one, tmp_path, lambda: job(by_hash))
    before = numbers(one)
    with pytest.raises(Exception, match=r"TR-302.*other shuffles"):
        job(other)
    assert numbers(one) == before
    job(by_hash)
    assert numbers(one) == list(range(40))


def test_partly_delivered_batch_is_refused_in_a_session_with_another_policy(
    bench: MakeBench, spark: SparkSession, tmp_path: Path
) -> None:
    """The keys are computed by the same expression, in another calendar, which Spark does not note."""
    one, policy = bench(partitions=2), "spark.sql.legacy.timeParserPolicy"
    fill(one, 0, 40)

    def job() -> None:
        day = F.timestamp_seconds(F.col("value").cast("string").cast("long") * 86_400 - 15_000_000_000)  # in 1494
        rows = read(one).repartition(2, F.date_format(day, "yyyy-MM-dd"))
        deliver(faulty(rows, tmp_path), one, tmp_path / "c")

    fail_in_part(one, tmp_path, job)
    before = numbers(one)
    spark.conf.set(policy, "LEGACY")
    try:
        with pytest.raises(Exception, match=rf"TR-302.*another {policy} \(its default, now LEGACY\)"):
            job()
    finally:
        spark.conf.unset(policy)
    assert numbers(one) == before
    job()
    assert numbers(one) == list(range(40))


@pytest.mark.takes(12)
def test_changed_shuffle_of_an_undelivered_batch_decides_from_then_on(bench: MakeBench, tmp_path: Path) -> None:
    """No sink partition has rows yet. As soon as one has, the new shuffle must not change again."""
    one = bench(partitions=2)
    fill(one, 0, 40)

    def job(shuffle: Shuffle) -> None:
        deliver(faulty(shuffle(read(one)), tmp_path), one, tmp_path / "c")

    (tmp_path / "broken").write_text("01")
    with pytest.raises(Exception, match="the fault of the test"):
        job(by_hash)
    one.settle()
    assert one.values() == []
    fail_in_part(one, tmp_path, lambda: job(by_text))
    with pytest.raises(Exception, match=r"TR-302.*other shuffles"):
        job(by_hash)
    job(by_text)
    assert numbers(one) == list(range(40))


def test_changed_shuffle_of_a_delivered_batch_is_allowed(bench: MakeBench, tmp_path: Path) -> None:
    """Spark brings the batch again, and it is skipped; the next one is cut by the new shuffle."""
    one = bench(partitions=2)
    fill(one, 0, 40)
    deliver(by_hash(read(one)), one, tmp_path / "c")
    forget(tmp_path / "c")
    fill(one, 40, 50)
    deliver(by_text(read(one)), one, tmp_path / "c")
    assert numbers(one) == list(range(50))


def in_python(kind: str, divisor: int, tasks: int = 2) -> Shuffle:
    """Return a shuffle by a column that a Python function computes, always under the same names."""

    def key(value):  # type: ignore[no-untyped-def]  # PySpark reads hints as another kind of function
        return int(value) % divisor

    def keys(values: pd.Series) -> pd.Series:
        return values.map(key)

    def added(tables):  # type: ignore[no-untyped-def]
        for each in tables:
            yield each.assign(k=each["value"].map(key))

    match kind:
        case "udf":
            return lambda rows: rows.withColumn("k", F.udf(key, "int")("value")).repartition(tasks, "k").drop("k")
        case "pandas":
            pandas_udf: Any = F.pandas_udf  # type: ignore[attr-defined]
            return lambda rows: rows.repartition(tasks, pandas_udf(keys, "int")("value"))
        case _:
            return lambda rows: rows.mapInPandas(added, "value binary, k int").repartition(tasks, "k").drop("k")


@pytest.mark.takes(15)
@pytest.mark.parametrize("kind", ["udf", "pandas", "map"])
def test_changed_python_function_below_a_key_of_a_partly_delivered_batch_is_refused(
    bench: MakeBench, tmp_path: Path, kind: str
) -> None:
    """Spark prints only its name. The function as it was is recognised, although it was defined again."""
    one = bench(partitions=2)
    fill(one, 0, 40)

    def job(divisor: int) -> None:
        deliver(faulty(in_python(kind, divisor)(read(one)), tmp_path), one, tmp_path / "c")

    fail_in_part(one, tmp_path, lambda: job(5))
    before = numbers(one)
    with pytest.raises(Exception, match=r"TR-302.*other shuffles"):
        job(7)
    assert numbers(one) == before
    job(5)
    assert numbers(one) == list(range(40))


def test_open_batch_of_an_earlier_version_that_noted_only_the_names_of_python_functions_is_finished(
    bench: MakeBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the function has changed is unknown, so it is taken for the same; from then on its code is noted."""
    one = bench(partitions=2)
    fill(one, 0, 40)

    def job(divisor: int) -> None:
        deliver(faulty(in_python("udf", divisor)(read(one)), tmp_path), one, tmp_path / "c")

    with monkeypatch.context() as earlier:
        earlier.setattr(function_digest, "digest", lambda command: "")
        earlier.setattr(planned_sink, "StreamPlan", partial(StreamPlan, version=UNNAMED))
        fail_in_part(one, tmp_path, lambda: job(5))
    fail_in_part(one, tmp_path, lambda: job(5))
    with pytest.raises(Exception, match=r"TR-302.*other shuffles"):
        job(7)
    job(5)
    assert numbers(one) == list(range(40))


@pytest.mark.takes(12)
def test_query_that_is_refused_with_other_sink_partitions_leaves_the_plan_to_the_old_one(
    bench: MakeBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan of an earlier version gets the code that delivers its rest. It must not name code that is refused."""
    one = bench(partitions=2)
    fill(one, 0, 40)

    def job(divisor: int, tasks: int = 2) -> None:
        deliver(faulty(in_python("udf", divisor, tasks)(read(one)), tmp_path), one, tmp_path / "c")

    with monkeypatch.context() as earlier:
        earlier.setattr(function_digest, "digest", lambda command: "")
        earlier.setattr(planned_sink, "StreamPlan", partial(StreamPlan, version=UNNAMED))
        fail_in_part(one, tmp_path, lambda: job(5))
    before = numbers(one)
    with pytest.raises(Exception, match=r"TR-302.*would now have 3"):
        job(7, tasks=3)
    assert numbers(one) == before
    job(5)
    assert numbers(one) == list(range(40))


@pytest.mark.takes(15)
def test_key_that_a_python_function_computes_next_to_one_of_the_time_is_delivered_once(
    bench: MakeBench, tmp_path: Path
) -> None:
    """Spark computes both in one operator, and only the first decides where a record goes."""
    one = bench(partitions=2)
    fill(one, 0, 40)

    def job(divisor: int) -> None:
        key = F.udf(lambda value: int(value) % divisor, "int")
        second = F.udf(lambda now, chance: f"{now} {chance}", "string")
        rows = read(one)

        def then(frame: DataFrame) -> DataFrame:
            keyed = frame.withColumn("k", key("value")).withColumn("at", second(F.current_timestamp(), F.rand()))
            return faulty(keyed.repartition(2, "k").where("at is not null"), tmp_path)

        deliver(rows, one, tmp_path / "c", then)

    fail_in_part(one, tmp_path, lambda: job(5))
    with pytest.raises(Exception, match=r"TR-302.*other shuffles"):
        job(7)
    job(5)
    assert numbers(one) == list(range(40))


@pytest.mark.parametrize("delivered", ["part", "all"])
def test_batch_that_an_earlier_ledger_topic_has_delivered_is_refused(
    bench: MakeBench, tmp_path: Path, delivered: str
) -> None:
    """The new topic has neither the plan nor the markers, and a batch that is done changes it at will."""
    one = bench(partitions=2)
    fill(one, 0, 40)
    if delivered == "part":
        fail_in_part(one, tmp_path, lambda: deliver(faulty(read(one), tmp_path), one, tmp_path / "c"))
    else:
        deliver(faulty(read(one), tmp_path), one, tmp_path / "c")
        forget(tmp_path / "c")
    before, other = numbers(one), f"{one.name}.other-ledger"
    with pytest.raises(Exception, match=rf"TR-306.*'{one.name}.ledger' has markers of it up to batch 0"):
        deliver(faulty(read(one), tmp_path), one, tmp_path / "c", as_read, **{"ledger.topic": other})
    assert numbers(one) == before
    deliver(faulty(read(one), tmp_path), one, tmp_path / "c")
    assert numbers(one) == list(range(40))
    fill(one, 40, 50)
    deliver(faulty(read(one), tmp_path), one, tmp_path / "c", as_read, **{"ledger.topic": other})
    assert numbers(one) == list(range(50))


@pytest.mark.parametrize("delivered", ["part", "all"])
def test_batch_that_began_in_a_partition_whose_first_records_are_gone_names_a_way_out(
    bench: MakeBench, tmp_path: Path, delivered: str
) -> None:
    """Spark begins it where the partition begins now. The refusal names a way out for a query."""
    one = bench()
    produce(one.kafka, one.source, [Record(b"0")])
    rows = read(one, subscribe=one.source, failOnDataLoss="false", **{"kafka.metadata.max.age.ms": "1000"})
    deliver(faulty(rows, tmp_path), one, tmp_path / "c")
    one.grow(2)
    more = [Record(b"%d" % number, partition=number % 2) for number in range(2, 40)]
    produce(one.kafka, one.source, more, options={"client.id": "knows-the-new-partition"})

    def job() -> None:
        deliver(faulty(rows, tmp_path), one, tmp_path / "c")

    if delivered == "part":
        fail_in_part(one, tmp_path, job)
    else:
        job()
        forget(tmp_path / "c", 1)
    before = numbers(one)
    expire(one.kafka, one.source, 5, partition=1)
    refusal = pytest.raises(Exception, match=r"(?s)TR-302.*if records are gone, check the output")
    with refusal if delivered == "part" else contextlib.nullcontext():  # what is delivered need not be cut
        job()
    assert numbers(one) == before
