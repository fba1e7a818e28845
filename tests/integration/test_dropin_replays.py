"""What `exactly_once` does if a batch that it knows comes again, but reads or distributes other records."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from support.dropin import deliver, fail_in_part, faulty, fill, forget, numbers, read
from support.expiry import expire
from support.pipelines import Bench
from tailrace.spark_stream import planned_sink, spark_source
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


@pytest.mark.parametrize("kind", ["state", "clock"])
def test_batch_of_an_older_checkpoint_is_refused_if_its_time_matters(
    bench: MakeBench, tmp_path: Path, kind: str
) -> None:
    """Of the same records, it may make other rows, in other tasks, of which some have delivered."""
    one = bench(partitions=2)

    def query() -> DataFrame:
        if kind == "state":
            return read(one).dropDuplicates(["value"])
        return read(one).where("timestamp < current_timestamp() + interval 1 day")

    fill(one, 0, 10)
    deliver(query(), one, tmp_path / "c")
    shutil.copytree(tmp_path / "c", tmp_path / "backup")
    fill(one, 10, 20)
    deliver(query(), one, tmp_path / "c")
    with pytest.raises(Exception, match=r"(?s)TR-307.*at another time, on which the query depends"):
        deliver(query(), one, tmp_path / "backup")
    assert numbers(one) == list(range(20))


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


@contextlib.contextmanager
def lines(one: Bench, folder: Path, then: Shuffle = as_read) -> Iterator[Callable[[int], None]]:
    """Return a query over a file of 32 lines, which Spark divides by a number of cores."""
    (folder / "in").mkdir()
    (folder / "in" / "0.txt").write_text("".join(f"{number:07}\n" for number in range(32)))

    def job(cores: int) -> None:
        for name, value in (("openCostInBytes", 1), ("minPartitionNum", cores)):
            one.spark.conf.set(f"spark.sql.files.{name}", value)
        rows = one.spark.readStream.text(str(folder / "in")).select(F.col("value").cast("binary").alias("value"))
        deliver(faulty(then(rows), folder), one, folder / "c", id=one.name)

    try:
        yield job
    finally:
        for name in ("openCostInBytes", "minPartitionNum"):
            one.spark.conf.unset(f"spark.sql.files.{name}")


def test_files_that_spark_divides_otherwise_after_a_restart_are_refused(bench: MakeBench, tmp_path: Path) -> None:
    """It divides them by the number of cores that it has then, and the number of tasks may be the same."""
    one = bench()
    with lines(one, tmp_path) as job:
        fail_in_part(one, tmp_path, lambda: job(4))
        with pytest.raises(Exception, match=r"(?s)TR-302.*spark.sql.files.minPartitionNum to that number"):
            job(3)
        job(4)
        forget(tmp_path / "c")
        job(3)  # all of it is delivered, so nobody need cut it
    assert numbers(one) == list(range(32))


def test_files_that_one_task_reads_are_finished_however_spark_divides_them(bench: MakeBench, tmp_path: Path) -> None:
    """Behind `coalesce(1)` it has all of their rows with any number of cores."""
    one = bench()
    (tmp_path / "broken").write_text("0")
    with lines(one, tmp_path, lambda rows: rows.coalesce(1)) as job:
        with pytest.raises(Exception, match="the fault of the test"):
            job(4)
        one.settle()
        (tmp_path / "broken").unlink()
        job(1)
    assert numbers(one) == list(range(32))


@pytest.mark.parametrize("form", ["beside the records", "in one task with them"])
def test_batch_with_a_table_in_one_task_is_finished_however_spark_divides_the_table(
    bench: MakeBench, spark: SparkSession, tmp_path: Path, form: str
) -> None:
    """It divides a table by the number of cores, too, and one task has all of it."""
    one = bench(partitions=2)
    fill(one, 0, 38)

    def with_table(cores: int, frame: DataFrame) -> DataFrame:
        rows = spark.sparkContext.parallelize([(bytearray(b"%d" % number),) for number in range(38, 40)], cores)
        table = spark.createDataFrame(rows, frame.schema)
        return frame.union(table.coalesce(1)) if form == "beside the records" else frame.union(table).coalesce(1)

    def job(cores: int) -> None:
        deliver(read(one), one, tmp_path / "c", lambda frame: faulty(with_table(cores, frame), tmp_path), id=one.name)

    (tmp_path / "broken").write_text("0")
    with pytest.raises(Exception, match="the fault of the test"):
        job(3)
    one.settle()
    (tmp_path / "broken").unlink()
    job(2)
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
