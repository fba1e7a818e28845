"""`format("tailrace")` if a replay has fewer or more tasks than the batch had when it began."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import tailrace
from support.pipelines import Bench
from tailrace.testing import Record, produce, wait_until

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]
ROWS = 40


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> None:
    """Register the sink with the session, as a job does."""
    tailrace.register(spark)


class Job:
    """A job, or a streaming query, that writes the numbers from 0, with as many tasks as a run asks for.

    The query reads six topic partitions: with fewer than five, Spark would read them in another order after a restart.
    """

    def __init__(self, one: Bench, spark: SparkSession, folder: Path, streams: bool) -> None:
        self.one, self.spark, self.folder, self.streams = one, spark, folder, streams
        self.value = "cast(id as string)"
        self.ledger, self.replay = f"{one.name}.ledger", "by-content"
        if streams:
            produce(one.kafka, one.source, [Record(b"%d" % n, partition=n % 6) for n in range(ROWS)])

    def run(self, tasks: int) -> None:
        """Deliver the rows with one task or two."""
        one = self.one
        given = {"kafka.bootstrap.servers": one.kafka, "topic": one.sink, "ledger.topic": self.ledger}
        given["replay"] = self.replay
        if not self.streams:
            rows = held(self.spark.range(0, ROWS, 1, tasks), self.folder, self.value)
            rows.write.format("tailrace").options(**given, id=one.name).mode("append").save()
            return
        reader = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", one.kafka)
        read = reader.option("subscribe", one.source).option("startingOffsets", "earliest").load()
        read = read.selectExpr("cast(cast(value as string) as long) as id")
        rows = held(read.coalesce(tasks), self.folder, self.value)
        writer = rows.writeStream.format("tailrace").options(**given)
        writer = writer.option("checkpointLocation", str(self.folder / "c")).trigger(availableNow=True)
        writer.start().awaitTermination()

    def run_holding(self, tasks: int, fails: bool) -> None:
        """Hold task 0 until another task has delivered its rows or the job has ended."""
        before, ended = len(self.one.values()), threading.Event()

        def let_go() -> None:
            try:
                wait_until(
                    lambda: ended.is_set() or len(self.one.values()) > before, "a task to deliver", 60, every=0.2
                )
            finally:
                (self.folder / "go").touch()

        (self.folder / "held").write_text("fails" if fails else "")
        with ThreadPoolExecutor(1) as pool:  # the job stays in this thread: Spark's active session is that of a thread
            waiting = pool.submit(let_go)
            try:
                self.run(tasks)
            finally:
                ended.set()
                waiting.result()
                self.one.settle()
                (self.folder / "held").unlink()
                (self.folder / "go").unlink()

    def deliver_last_task(self) -> None:
        """Run with two tasks, of which the first fails when the other one has delivered its rows."""
        with pytest.raises(Exception, match="the fault of the test"):
            self.run_holding(2, fails=True)
        assert 0 < len(self.one.values()) < ROWS

    def forget(self) -> None:
        """Remove Spark's note that the batch is done, as if Spark had ended before it wrote the note."""
        for each in (self.folder / "c" / "commits").glob("*"):
            each.unlink()


def held(rows: DataFrame, folder: Path, value: str) -> DataFrame:
    """Return the values of the rows. While a file `held` exists, task 0 waits for a file `go`, and may then fail."""
    flag, go = str(folder / "held"), str(folder / "go")

    def check(value):  # type: ignore[no-untyped-def]  # PySpark reads hints as another kind of function
        import time
        from pathlib import Path

        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.partitionId() == 0 and Path(flag).exists():
            fails = Path(flag).read_text() == "fails"
            until = time.monotonic() + 60
            while not Path(go).exists() and time.monotonic() < until:
                time.sleep(0.05)
            if fails:
                raise ValueError("the fault of the test")
        return value

    return rows.select(F.udf(check, "string")(F.expr(value)).alias("value"))


@pytest.fixture(params=[False, True], ids=["batch", "stream"])
def job(request: pytest.FixtureRequest, bench: MakeBench, spark: SparkSession, tmp_path: Path) -> Job:
    """Return a batch job, then a streaming query."""
    return Job(bench(partitions=6), spark, tmp_path, request.param)


@pytest.mark.takes(15)
def test_plain_format_refuses_a_replay_whose_tasks_are_merged(job: Job) -> None:
    """The larger task has no marker, and contains the rows that the last task of the earlier run has delivered."""
    job.deliver_last_task()
    before = job.one.values()
    with pytest.raises(Exception, match=r"TR-302.*rows were delivered by sink partition 1"):
        job.run(1)
    assert job.one.values() == before
    job.run(2)  # with the tasks that the batch was begun with, it is finished
    assert sorted(int(value or b"") for value in job.one.values()) == list(range(ROWS))


@pytest.mark.takes(15)
def test_plain_format_refuses_a_replay_whose_tasks_are_split(job: Job) -> None:
    """A task without a marker has some of the rows. It is refused even if it ends before the task that has a marker."""
    job.run(1)
    job.forget()
    before = job.one.values()
    assert len(before) == ROWS
    with pytest.raises(Exception, match="TR-302"):
        job.run_holding(2, fails=False)
    assert job.one.values() == before
    job.run(1)
    assert job.one.values() == before


@pytest.mark.takes(15)
@pytest.mark.parametrize(
    "value",
    [
        "case id % 20 when 0 then 'begin' when 19 then 'end' else cast(id as string) end",
        "if(id % 20 = 0, 'start', cast(id % 3 as string))",
    ],
    ids=["some", "all"],
)
def test_plain_format_finishes_a_batch_whose_tasks_have_equal_rows(job: Job, value: str) -> None:
    """Its tasks are the same as before. A row that several of them contain does not show that rows have moved."""
    job.value = value
    job.deliver_last_task()
    job.run(2)
    wanted = job.spark.range(ROWS).select(F.expr(value)).collect()
    assert sorted(each or b"" for each in job.one.values()) == sorted(row[0].encode() for row in wanted)


@pytest.mark.parametrize("replay", ["by-content", "by-number"])
@pytest.mark.takes(15)
def test_plain_format_refuses_a_batch_that_an_earlier_ledger_topic_has_delivered(job: Job, replay: str) -> None:
    """Its new topic has no markers, so every task would write."""
    job.replay = replay
    job.deliver_last_task()
    before, first = job.one.values(), job.ledger
    job.ledger = f"{job.one.name}.other-ledger"
    with pytest.raises(Exception, match=rf"TR-306.*'{first}' has markers of it up to batch 0"):
        job.run(2)
    assert job.one.values() == before
    job.ledger = first
    job.run(2)
    assert sorted(int(value or b"") for value in job.one.values()) == list(range(ROWS))
