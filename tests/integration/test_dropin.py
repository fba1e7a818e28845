"""`format("tailrace")` and `exactly_once`, for jobs that use nothing else of Tailrace."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import tailrace
from support.pipelines import Bench
from tailrace.config import Kafka
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import markers_group
from tailrace.progress.stream_plan import AnyPlan
from tailrace.testing import Record, consume, produce

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> None:
    """Register the sink with the session, as a job does."""
    tailrace.register(spark)


def options(one: Bench, **more: str) -> dict[str, str]:
    """Return the options of Spark's Kafka sink, and more."""
    return {"kafka.bootstrap.servers": one.kafka, "topic": one.sink, "ledger.topic": f"{one.name}.ledger", **more}


def stream(spark: SparkSession, one: Bench) -> DataFrame:
    """Read the source topic with Spark's own source."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", one.kafka)
    return reader.option("subscribe", one.source).option("startingOffsets", "earliest").load()


def break_once(one: Bench, folder: Path, job: Callable[[], None]) -> None:
    """Let the function fail in the middle of a batch."""
    (folder / "broken").touch()
    with pytest.raises(Exception, match="the fault of the test"):
        job()
    one.settle()
    (folder / "broken").unlink()


def test_batch_job_writes_each_row_once(bench: MakeBench, spark: SparkSession) -> None:
    """It uses Spark's column names and types: strings and binary, headers, a partition."""
    one = bench(out=2)
    frame = spark.range(100).select(
        F.col("id").cast("string").alias("key"),
        F.col("id").cast("string").alias("value"),
        F.expr("array(named_struct('key', 'h', 'value', CAST('x' AS BINARY)))").alias("headers"),
        F.expr("CAST(id % 2 AS INT)").alias("partition"),
    )
    frame.write.format("tailrace").options(**options(one)).mode("append").save()
    got = consume(one.kafka, one.sink)
    assert sorted(int(each.value or b"") for each in got) == list(range(100))
    assert all(each.partition == int(each.key or b"") % 2 and tuple(each.headers) == (("h", b"x"),) for each in got)


def test_batch_job_with_an_id_can_be_repeated(bench: MakeBench, spark: SparkSession) -> None:
    """The same rows are skipped; other rows with the same id are refused."""
    one = bench()

    def job(count: int, name: str) -> None:
        frame = spark.range(count).select(F.col("id").cast("string").alias("value"))
        frame.write.format("tailrace").options(**options(one, id=name)).mode("append").save()

    job(50, "day-1")
    job(50, "day-1")
    assert len(one.values()) == 50
    with pytest.raises(Exception, match="TR-302"):
        job(60, "day-1")
    job(50, "day-2")
    assert len(one.values()) == 100


def test_topic_column_routes_each_row(bench: MakeBench, spark: SparkSession) -> None:
    """Rows with a null topic go to the rejected topic, if one is named."""
    one = bench()
    other, rejected = one.topics("other"), one.topics("rejected")
    rows = [(one.sink, "a"), (other, "b"), (None, "c")]
    frame = spark.createDataFrame(rows, "topic string, value string")
    given = options(one, **{"rejected.topic": rejected})
    del given["topic"]
    frame.write.format("tailrace").options(**given).mode("append").save()
    assert (one.values(), one.values(other), one.values(rejected)) == ([b"a"], [b"b"], [b"c"])


@pytest.mark.parametrize(
    ("change", "columns", "words"),
    [
        ({"topik": "x"}, "value string", "TR-105.*did you mean 'topic'"),
        ({"kafka.acks": "1"}, "value string", "TR-105.*acks=1 contradicts"),
        ({"kafka.transactional.id": "x"}, "value string", "TR-105.*kafka.transactional.id"),
        ({"topic": "no-such-topic"}, "value string", "TR-202.*no-such-topic"),
        ({}, "key string", "TR-106.*value"),
        ({}, "value int", "TR-106.*'value' is int"),
        ({}, "value string, topic int", "TR-106.*'topic' is int"),
        ({}, "value string, colour string", "TR-106.*'colour'"),
    ],
)
def test_wrong_options_and_columns_are_refused_before_anything_is_written(
    bench: MakeBench, spark: SparkSession, change: dict[str, str], columns: str, words: str
) -> None:
    """The error has a code, and the closest valid name."""
    one = bench()
    frame = spark.createDataFrame([], columns)
    with pytest.raises(Exception, match=f"(?s){words}"):
        frame.write.format("tailrace").options(**options(one, **change)).mode("append").save()
    assert one.values() == []


@pytest.mark.takes(12)
def test_streaming_query_migrates_by_changing_one_word(bench: MakeBench, spark: SparkSession, tmp_path: Path) -> None:
    """Restarted with its checkpoint, it continues without a duplicate."""
    one = bench(partitions=2)

    def job() -> None:
        gateway = stream(spark, one).select("key", "value").writeStream.format("tailrace").options(**options(one))
        query = gateway.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        query.awaitTermination()

    produce(one.kafka, one.source, [Record(b"%d" % number, partition=number % 2) for number in range(20)])
    job()
    produce(one.kafka, one.source, [Record(b"%d" % number, partition=number % 2) for number in range(20, 30)])
    job()
    assert sorted(int(value or b"") for value in one.values()) == list(range(30))


def faulty(folder: Path) -> Callable[[DataFrame], DataFrame]:
    """Return a function that fails on source partition 1 while the file `broken` exists."""
    flag = str(folder / "broken")

    def check(value, partition):  # type: ignore[no-untyped-def]  # PySpark reads hints as another kind of function
        import os

        if partition == 1 and os.path.exists(flag):
            raise ValueError("the fault of the test")
        return bytes(value)

    return lambda frame: frame.select(F.udf(check, "binary")("value", "partition").alias("value"))


@pytest.mark.parametrize("partitions", [2, 3])
def test_exactly_once_finishes_a_partly_delivered_batch(
    bench: MakeBench, spark: SparkSession, tmp_path: Path, partitions: int
) -> None:
    """It does so although Spark renumbers its tasks after the restart."""
    one = bench(partitions=partitions)

    def job() -> None:
        rows = faulty(tmp_path)(stream(spark, one))
        query = (
            rows.writeStream.foreachBatch(tailrace.exactly_once(**options(one)))
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    _fill(one, partitions)
    break_once(one, tmp_path, job)
    job()
    assert [int(value or b"") for value in one.values()] == _filled(partitions)


def test_partly_delivered_batch_is_finished_exactly_once_after_a_change_to_at_least_once(
    bench: MakeBench, spark: SparkSession, tmp_path: Path
) -> None:
    """The batch keeps the delivery that it was planned with; the next batch gets the new one, and leaves no markers."""
    one = bench(partitions=2)

    def job(**more: str) -> None:
        rows = faulty(tmp_path)(stream(spark, one))
        sink = tailrace.exactly_once(**options(one, id=one.name, **more))
        writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "c"))
        writer.trigger(availableNow=True).start().awaitTermination()

    _fill(one, 2)
    break_once(one, tmp_path, job)
    assert 0 < len(one.values()) < len(_filled(2))
    produce(one.kafka, one.source, [Record(b"999", partition=0)])
    job(delivery="at-least-once", **{"kafka.acks": "1"})
    assert [int(value or b"") for value in one.values()] == [*_filled(2), 999]
    with Ledger(one.name, f"{one.name}.ledger", Kafka(bootstrap_servers=one.kafka), 8, -1) as ledger:
        assert {marker.next for marker in ledger.markers().values()} == {1}


@pytest.mark.takes(12)
def test_exactly_once_refuses_a_ledger_behind_its_markers(
    bench: MakeBench, spark: SparkSession, tmp_path: Path
) -> None:
    """A batch that is delivered in part would be planned again; once the ledger is restored, the batch is finished."""
    one = bench(partitions=2)

    def job() -> None:
        rows = faulty(tmp_path)(stream(spark, one))
        writer = rows.writeStream.foreachBatch(tailrace.exactly_once(**options(one, id=one.name)))
        writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()

    def replaced(plan: AnyPlan | None) -> AnyPlan:
        with Ledger(one.name, f"{one.name}.ledger", Kafka(bootstrap_servers=one.kafka), 8, -1) as ledger:
            ledger.take()
            found = ledger.latest()
            assert found is not None
            if plan is not None:
                ledger.write(plan, {})
        return found

    _fill(one, 2)
    job()
    older = replaced(None)
    _fill(one, 2)
    break_once(one, tmp_path, job)
    before = one.values()
    newest = replaced(older)
    with pytest.raises(Exception, match=r"TR-303.*a sink partition has written batch 1.*the last plan.* of batch 0"):
        job()
    assert one.values() == before
    replaced(newest)
    job()
    assert [int(value or b"") for value in one.values()] == sorted(_filled(2) * 2)


@pytest.mark.parametrize("place", ["query", "batch"])
@pytest.mark.parametrize(
    ("shuffle", "words"),
    [
        (lambda rows: rows.repartition(3), "order of arrival"),
        (lambda rows: rows.withColumn("r", F.rand()).repartition(3, "r").drop("r"), r"rand\(\), which may"),
        (lambda rows: rows.repartitionByRange(3, "value"), "a sample"),
    ],
)
def test_exactly_once_refuses_a_shuffle_that_a_replay_would_not_repeat(
    bench: MakeBench,
    spark: SparkSession,
    tmp_path: Path,
    shuffle: Callable[[DataFrame], DataFrame],
    words: str,
    place: str,
) -> None:
    """This holds in the query and in the foreachBatch function; a repartition by a column is delivered."""
    one = bench(partitions=2)
    sink = tailrace.exactly_once(**options(one, id=one.name))

    def job(rows: DataFrame, write: Callable[[DataFrame, int], None]) -> None:
        gateway = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "c"))
        gateway.trigger(availableNow=True).start().awaitTermination()

    _fill(one, 2)
    rows = stream(spark, one).select("value")
    in_query, in_batch = (shuffle(rows), sink), (rows, lambda frame, number: sink(shuffle(frame), number))
    with pytest.raises(Exception, match=rf"TR-103.*the query's rows cannot be cut the same way again.*{words}"):
        job(*(in_query if place == "query" else in_batch))
    assert one.values() == []
    job(rows.repartition(3, "value"), sink)
    assert [int(value or b"") for value in one.values()] == _filled(2)


def test_exactly_once_refuses_an_old_batch_whose_markers_may_have_expired(
    bench: MakeBench, spark: SparkSession, tmp_path: Path
) -> None:
    """Whether it was delivered is unknown: brokers keep markers for a week."""
    one = bench(partitions=2)
    _fill(one, 2)
    rows = stream(spark, one).select("value")

    def job() -> None:
        query = (
            rows.writeStream.foreachBatch(tailrace.exactly_once(**options(one, id=one.name)))
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    job()
    (tmp_path / "c" / "commits" / "0").unlink()  # as if Spark had ended before it recorded the batch
    admin = AdminClient({"bootstrap.servers": one.kafka})
    admin.delete_consumer_groups([markers_group(one.name)])[markers_group(one.name)].result(timeout=30)
    with Ledger(one.name, f"{one.name}.ledger", Kafka(bootstrap_servers=one.kafka), 8, -1) as ledger:
        ledger.take()
        plan = ledger.latest()
        assert plan is not None
        ledger.write(replace(plan, at=time.time() - 7 * 24 * 3600), {})
    with pytest.raises(Exception, match=r"TR-306.*2 of its 2 sink partitions have no marker"):
        job()
    assert [int(value or b"") for value in one.values()] == _filled(2)


def test_plain_format_refuses_a_replay_whose_rows_have_moved(
    bench: MakeBench, spark: SparkSession, tmp_path: Path
) -> None:
    """It cannot see what a task reads, so it stops instead of delivering twice; nothing is lost or duplicated."""
    one = bench()
    one.source = renumbered(spark, one)

    def job() -> None:
        gateway = faulty(tmp_path)(stream(spark, one)).writeStream.format("tailrace").options(**options(one))
        query = gateway.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        query.awaitTermination()

    # The gateway starts before the batch: otherwise the fault could come before anything is delivered.
    warm = options(one) | {"topic": one.topics("warm")}
    spark.createDataFrame([(b"warm",)], "value binary").write.format("tailrace").options(**warm).mode("append").save()
    _fill(one, 3)
    break_once(one, tmp_path, job)
    before = one.values()
    assert before
    with pytest.raises(Exception, match="TR-302"):
        job()
    after = one.values()
    assert len(after) == len(set(after))
    assert set(before) <= set(after) <= {b"%06d" % number for number in _filled(3)}


def renumbered(spark: SparkSession, one: Bench) -> str:
    """Return a topic with three partitions, whose order Spark reverses after a restart.

    At first their order is that of a Java hash map, which the topic's name decides; from the offset log, it is sorted.
    """
    jvm: Any = spark._jvm
    for _ in range(50):
        topic = one.topics("in", partitions=3)
        order = jvm.java.util.HashMap()
        for number in range(3):
            order.put(jvm.org.apache.kafka.common.TopicPartition(topic, number), None)
        if [each.partition() for each in order.keySet()] == [2, 1, 0]:
            return topic
    raise LookupError("none of 50 names of topics gives the reverse order")


def _fill(one: Bench, partitions: int) -> None:
    for partition in range(partitions):
        values = range(partition * 100, partition * 100 + 10 * (partition + 1))
        produce(one.kafka, one.source, [Record(b"%06d" % number, partition=partition) for number in values])


def _filled(partitions: int) -> list[int]:
    return [n for p in range(partitions) for n in range(p * 100, p * 100 + 10 * (p + 1))]
