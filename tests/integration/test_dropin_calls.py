"""What `exactly_once` does if it is called more than once for a batch, or for two queries, under one name."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import tailrace
from support.pipelines import Bench
from tailrace.kafka.cluster import Cluster
from tailrace.progress.lease import Lease, Phase, running
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import driver_id
from tailrace.testing import Record, produce, wait_until

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]
Sink = Callable[[DataFrame, int], None]
EVEN, ODD = "cast(cast(value as string) as int) % 2 = 0", "cast(cast(value as string) as int) % 2 = 1"


def options(one: Bench, **more: str) -> dict[str, str]:
    """Return the options of the sink, and more."""
    return {"kafka.bootstrap.servers": one.kafka, "topic": one.sink, "ledger.topic": f"{one.name}.ledger", **more}


def fill(one: Bench, start: int, end: int) -> None:
    """Write these numbers to the two partitions of the source, odd and even ones to each."""
    produce(one.kafka, one.source, [Record(b"%d" % number, partition=number // 2 % 2) for number in range(start, end)])


def query(spark: SparkSession, one: Bench, folder: Path, write: Sink, columns: Sequence[str] = ("value",)) -> Any:
    """Return the writer of a query that reads the source topic."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", one.kafka)
    rows = reader.option("subscribe", one.source).option("startingOffsets", "earliest").load().selectExpr(*columns)
    return rows.writeStream.foreachBatch(write).option("checkpointLocation", str(folder))


def run(spark: SparkSession, one: Bench, folder: Path, write: Sink) -> None:
    """Deliver what the source contains."""
    query(spark, one, folder, write).trigger(availableNow=True).start().awaitTermination()


def numbers(one: Bench, topic: str | None = None) -> list[int]:
    """Return what a topic holds, sorted; by default the sink."""
    return sorted(int(value or b"") for value in one.values(topic))


def one_sink(one: Bench, other: str) -> Sink:
    """Return a function that calls one sink twice."""
    sink = tailrace.exactly_once(**options(one))

    def write(frame: DataFrame, number: int) -> None:
        sink(frame.where(EVEN), number)
        sink(frame.where(ODD), number)

    return write


def two_sinks(one: Bench, other: str) -> Sink:
    """Return a function that calls two sinks without ids."""
    first, second = tailrace.exactly_once(**options(one)), tailrace.exactly_once(**options(one, topic=other))

    def write(frame: DataFrame, number: int) -> None:
        first(frame.where(EVEN), number)
        second(frame.where(ODD), number)

    return write


def new_sinks(one: Bench, other: str) -> Sink:
    """Return a function that makes its sinks for each batch."""

    def write(frame: DataFrame, number: int) -> None:
        tailrace.exactly_once(**options(one))(frame.where(EVEN), number)
        tailrace.exactly_once(**options(one, topic=other))(frame.where(ODD), number)

    return write


@pytest.mark.takes(13)
@pytest.mark.parametrize("calls", [one_sink, two_sinks, new_sinks])
def test_second_call_for_a_batch_under_the_same_name_is_refused(
    bench: MakeBench, spark: SparkSession, tmp_path: Path, calls: Callable[[Bench, str], Sink]
) -> None:
    """It would be taken for a replay of the first call and skipped. With an id of its own, it delivers the rest."""
    one = bench(partitions=2)
    other = one.topics("other")
    fill(one, 0, 40)
    with pytest.raises(Exception, match=r"(?s)TR-105.*batch 0.*id of its own"):
        run(spark, one, tmp_path / "c", calls(one, other))
    assert (numbers(one), numbers(one, other)) == (list(range(0, 40, 2)), [])
    first = tailrace.exactly_once(**options(one))
    second = tailrace.exactly_once(**options(one, topic=other, id=f"{one.name}-odd"))

    def write(frame: DataFrame, number: int) -> None:
        first(frame.where(EVEN), number)
        second(frame.where(ODD), number)

    run(spark, one, tmp_path / "c", write)
    fill(one, 40, 50)
    run(spark, one, tmp_path / "c", write)
    assert (numbers(one), numbers(one, other)) == (list(range(0, 50, 2)), list(range(1, 50, 2)))


def test_second_call_for_a_batch_is_refused_while_the_first_one_writes(
    bench: MakeBench, spark: SparkSession, tmp_path: Path
) -> None:
    """Threads of the function may write two frames at once. Of each sink partition, one frame's rows were skipped."""
    one = bench(partitions=2)
    fill(one, 0, 20)
    sink = tailrace.exactly_once(**options(one))
    run(spark, one, tmp_path / "c", sink)
    fill(one, 20, 60)
    failures: list[Exception] = []

    def call(frame: DataFrame, number: int) -> None:
        try:
            sink(frame, number)
        except Exception as error:
            failures.append(error)

    def write(frame: DataFrame, number: int) -> None:
        both = [InheritableThread(target=call, args=(frame.where(half), number)) for half in (EVEN, ODD)]
        for each in both:
            each.start()
        for each in both:
            each.join()

    run(spark, one, tmp_path / "c", write)
    assert ["TR-105" in str(each) for each in failures] == [True]
    assert [set(numbers(one)) >= set(range(first, 60, 2)) for first in (20, 21)].count(True) == 1


def test_call_that_failed_may_be_repeated_by_the_function(
    bench: MakeBench, spark: SparkSession, tmp_path: Path
) -> None:
    """A function that tries its batch again delivers what is missing; Spark itself calls it once per run."""
    one = bench(partitions=2)
    fill(one, 0, 40)
    sink = tailrace.exactly_once(**options(one))
    runs: list[str] = []

    def write(frame: DataFrame, number: int) -> None:
        runs.append(frame.sparkSession.sparkContext.getLocalProperty("spark.jobGroup.id") or "")
        broken = F.expr(f"if({ODD}, raise_error('the fault of the test'), value)")
        with pytest.raises(Exception, match="the fault of the test"):
            sink(frame.select(broken.cast("binary").alias("value")), number)
        one.settle()
        if len(runs) == 1:
            raise ValueError("the function's own fault")
        sink(frame, number)

    with pytest.raises(Exception, match="the function's own fault"):
        run(spark, one, tmp_path / "c", write)
    run(spark, one, tmp_path / "c", write)
    assert len(set(runs)) == 2 == len(runs)
    assert numbers(one) == list(range(40))


def test_query_that_was_edited_may_use_the_sink_that_it_has(
    bench: MakeBench, spark: SparkSession, tmp_path: Path
) -> None:
    """In a notebook, the sink is made once. What it knows of the query before, like its columns, is no longer true."""
    one = bench(partitions=2)
    sink = tailrace.exactly_once(**options(one))
    for number, columns in enumerate((["value"], ["value", "value as key"], ["value"])):
        fill(one, 10 * number, 10 * number + 10)
        rows = query(spark, one, tmp_path / "c", sink, columns)
        rows.trigger(availableNow=True).start().awaitTermination()
    assert numbers(one) == list(range(30))


def test_query_that_was_edited_is_judged_anew_by_the_sink_that_it_has(
    bench: MakeBench, spark: SparkSession, tmp_path: Path
) -> None:
    """Otherwise a replay would deal its records out by another chance: some would be lost, others delivered twice."""
    one = bench(partitions=2)
    sink = tailrace.exactly_once(**options(one))

    def write(frame: DataFrame, number: int) -> None:
        sink(frame.repartition(2, "key"), number)

    for number, key in enumerate(("value", "cast(rand() as string)")):
        fill(one, 10 * number, 10 * number + 10)
        started = query(spark, one, tmp_path / "c", write, ["value", f"{key} as key"]).trigger(availableNow=True)
        if number:
            with pytest.raises(Exception, match=r"(?s)TR-103.*repartition by .*key"):
                started.start().awaitTermination()
        else:
            started.start().awaitTermination()
    assert numbers(one) == list(range(10))


def test_query_that_starts_again_with_its_sink_has_no_task_that_fails(
    bench: MakeBench, spark: SparkSession, tmp_path: Path
) -> None:
    """It takes its ids anew, which fences the gateway's producers; with one attempt a task, the query would end."""
    one = bench(partitions=2)
    sink, tracker = tailrace.exactly_once(**options(one)), spark.sparkContext.statusTracker()

    def failing(frame: DataFrame, number: int) -> None:
        sink(frame, number)
        raise RuntimeError("the fault of the test")

    fill(one, 0, 10)
    with pytest.raises(Exception, match="the fault of the test"):
        run(spark, one, tmp_path / "c", failing)
    for number in (1, 2):
        fill(one, 10 * number, 10 * number + 10)
        started = query(spark, one, tmp_path / "c", sink).trigger(availableNow=True).start()
        started.awaitTermination()
        jobs = [tracker.getJobInfo(each) for each in tracker.getJobIdsForGroup(str(started.runId))]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        assert stages
        assert [stage.numFailedTasks for stage in stages if stage is not None] == [0] * len(stages)
    assert numbers(one) == list(range(30))


@pytest.mark.parametrize("entry", ["stateless", "stateful"])
def test_sink_with_the_id_of_a_pipeline_ends_no_driver(
    bench: MakeBench, spark: SparkSession, tmp_path: Path, entry: str
) -> None:
    """It is refused before it takes anything; and if the pipeline is down, its plans are not written over."""
    one, state = bench(partitions=2), tmp_path / "state"
    fill(one, 0, 10)
    stateful: dict[str, Any] = {"checkpoint": str(state), "source": {"partitions": None}}
    one.run(**(stateful if entry == "stateful" else {}))
    pipeline = one.pipeline()
    sink = tailrace.exactly_once(**options(one, id=one.name))
    with Ledger.of(pipeline) as ledger, Lease(pipeline, "0dd") as lease:
        ledger.take()
        plan = ledger.latest()
        assert plan is not None
        lease.hold(Phase.LEADING)
        wait_until(lambda: running(Cluster(pipeline.kafka), one.name), "the brokers to know the driver", 30)
        with pytest.raises(Exception, match=r"(?s)TR-105.*is running"):
            run(spark, one, tmp_path / "c", sink)
        ledger.write(plan, {})  # not fenced
    wait_until(lambda: not running(Cluster(pipeline.kafka), one.name), "the brokers to forget the driver", 60)
    with pytest.raises(Exception, match=r"(?s)TR-105.*has plans of a pipeline"):
        run(spark, one, tmp_path / "c", sink)
    with Ledger.of(pipeline) as ledger:
        assert ledger.latest() == plan


def test_query_that_was_killed_while_it_wrote_a_plan_starts_again_at_once(
    bench: MakeBench, spark: SparkSession, tmp_path: Path
) -> None:
    """Only taking the ledger ends the transaction that it has left, behind which nothing can be read."""
    one = bench(partitions=2)
    fill(one, 0, 10)
    run(spark, one, tmp_path / "c", tailrace.exactly_once(**options(one, id=one.name)))
    killed = Producer({
        "bootstrap.servers": one.kafka, "transactional.id": driver_id(one.name), "transaction.timeout.ms": 600_000
    })  # fmt: skip
    killed.init_transactions(30)
    killed.begin_transaction()
    for partition in range(8):
        killed.produce(f"{one.name}.ledger", b"half a plan", b"another", partition=partition)
    assert killed.flush(30) == 0
    fill(one, 10, 20)
    run(spark, one, tmp_path / "c", tailrace.exactly_once(**options(one, id=one.name)))
    assert numbers(one) == list(range(20))


@pytest.mark.takes(15)
def test_second_query_with_the_id_of_an_active_one_is_refused(
    bench: MakeBench, spark: SparkSession, tmp_path: Path
) -> None:
    """Both read the same offsets, so its batch 0 would be skipped. Once the first query has ended, its id is free."""
    one = bench(partitions=2)
    sink = tailrace.exactly_once(**options(one, id=one.name))
    fill(one, 0, 40)
    active = query(spark, one, tmp_path / "a", sink).start()
    try:
        wait_until(lambda: len(one.values()) == 40, "the first query to deliver", 60)
        for again in (sink, tailrace.exactly_once(**options(one, id=one.name))):
            with pytest.raises(Exception, match=r"TR-105.*active query"):
                run(spark, one, tmp_path / uuid.uuid4().hex, again)
        fill(one, 40, 50)
        wait_until(lambda: len(one.values()) == 50, "the first query to continue", 60)
    finally:
        active.stop()
    fill(one, 50, 60)
    run(spark, one, tmp_path / "a", tailrace.exactly_once(**options(one, id=one.name)))
    assert numbers(one) == list(range(60))


def test_rest_of_a_batch_is_not_delivered_to_another_topic(
    bench: MakeBench, spark: SparkSession, tmp_path: Path
) -> None:
    """The plan names the topic, so the batch is finished where it was begun; the next one may go elsewhere."""
    one = bench(partitions=2)
    other = one.topics("other")
    fill(one, 0, 40)
    flag = str(tmp_path / "broken")

    def check(value):  # type: ignore[no-untyped-def]  # PySpark reads hints as another kind of function
        import os

        if int(value) // 2 % 2 and os.path.exists(flag):
            raise ValueError("the fault of the test")
        return bytes(value)

    def job(topic: str) -> None:
        sink = tailrace.exactly_once(**options(one, topic=topic))
        checked = F.udf(check, "binary")("value").alias("value")
        run(spark, one, tmp_path / "c", lambda frame, number: sink(frame.select(checked), number))

    Path(flag).touch()
    with pytest.raises(Exception, match="the fault of the test"):
        job(one.sink)
    one.settle()
    Path(flag).unlink()
    before = numbers(one)
    assert len(before) == 20
    with pytest.raises(Exception, match=rf"(?s)TR-310.*{one.sink}.*{other}"):
        job(other)
    assert (numbers(one), numbers(one, other)) == (before, [])
    job(one.sink)
    fill(one, 40, 50)
    job(other)
    assert (numbers(one), numbers(one, other)) == (list(range(40)), list(range(40, 50)))
