"""Joins whose strategy Spark chooses by the size of a table: a batch is cut as its plan in the ledger says."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from support.pipelines import Bench, events_of, numbered
from tailrace import errors
from tailrace.driver.spark_engine import SparkEngine
from tailrace.progress.plan import Plan
from tailrace.startup.run import planning

pytestmark = pytest.mark.integration

THRESHOLD, SHUFFLED = "spark.sql.autoBroadcastJoinThreshold", "spark.sql.shuffle.partitions"
FUNCTION = """
    import time
    from pathlib import Path
    from pyspark.sql import functions as F
    from pyspark.sql.types import BinaryType
    FOLDER = {folder!r}
    TABLE = [(b"%06d" % number, number) for number in range(1000)]
    def check(value, partition):
        broken = Path(FOLDER, "broken")
        if broken.exists() and partition == 1 and value >= b"000030":
            time.sleep(3)
            raise ValueError("the fault of the test")
        return value
    def joined(frame, table):
        rows = frame.join(table, F.col("value") == F.col("v")).select("value")
        return rows.select(F.udf(check, BinaryType())("value", F.spark_partition_id()).alias("value"))
    def cached(frame):
        return joined(frame, frame.sparkSession.createDataFrame(TABLE, "v binary, other int").cache())
    def costly(frame):
        table = frame.sparkSession.createDataFrame(TABLE, "v binary, other int")
        return joined(frame, table.select("v", F.udf(lambda value: 1 // 0, "int")("other").alias("other")).cache())
    def larger(frame):
        # Spark takes it for one row, and knows better once it is cached.
        table = frame.sparkSession.range(1).select(F.explode(F.sequence(F.lit(0), F.lit(4999))).alias("other"))
        table = table.select(F.format_string("%06d", "other").cast("binary").alias("v"), "other")
        return joined(frame, table.cache())
    def files(frame, chance=False):
        rows = joined(frame, frame.sparkSession.read.parquet(FOLDER + "/table"))
        return rows.where(F.rand() >= 0) if chance else rows
    def spread(frame):
        number = int(Path(FOLDER, "number").read_text())
        return frame.where(F.rand() >= 0).repartition(number, "value")
    def starts(frame, chance=False):
        rows = frame.where(F.rand() >= 0) if chance else frame
        return rows.repartition(3, F.transform(F.array("value"), lambda x: F.substring(x, 1, 5)))
"""


@pytest.fixture
def settings(spark: SparkSession) -> Iterator[Callable[[str, object], None]]:
    """Return what sets a setting of the session until the test ends."""
    before: dict[str, str] = {}

    def change(name: str, value: object) -> None:
        before.setdefault(name, str(spark.conf.get(name)))
        spark.conf.set(name, str(value))

    yield change
    for name, value in before.items():
        spark.conf.set(name, value)


def prepared(bench: Callable[..., Bench]) -> Bench:
    """Return a pipeline with forty records in two source partitions."""
    one = bench(partitions=2)
    one.write("lookup.py", FUNCTION.format(folder=str(one.folder)))
    feed(one, 0)
    return one


def feed(one: Bench, number: int) -> None:
    """Send forty records, twenty to each source partition."""
    for partition in range(2):
        first = 40 * number + 20 * partition
        one.send(numbered(first, first + 20), partition=partition)


def run(one: Bench, function: str, **arguments: object) -> list[dict[str, Any]]:
    """Deliver what is there, twenty records a batch; return the batches' events."""
    events = one.run(
        source={"format": "raw"},
        process={"function": f"lookup.py:{function}", "arguments": arguments},
        batch={"target": 0, "max_records": 20},
        checkpoint="ledger",
    )
    return events_of(events, "written")


def fill(one: Bench, size: int) -> None:
    """Write a table in files with this many rows."""
    rows = one.spark.range(size).selectExpr("cast(format_string('%06d', id) AS binary) AS v", "id AS other")
    rows.coalesce(1).write.mode("overwrite").parquet(str(one.folder / "table"))


def fail_in_part(one: Bench, function: str) -> None:
    """Run until one sink partition is delivered and another is not."""
    (one.folder / "broken").touch()
    with pytest.raises(errors.FunctionFailed):
        run(one, function)
    one.settle()
    (one.folder / "broken").unlink()


@pytest.mark.takes(30)
def test_pipeline_with_a_cached_lookup_table_delivers_each_record_once(
    bench: Callable[..., Bench], settings: Callable[[str, object], None]
) -> None:
    """Spark knows the table's size only once the cache is filled; a start's first batches and later ones agree."""
    settings(SHUFFLED, 4)
    one = prepared(bench)
    for number in range(3):
        if number:
            feed(one, number)
        assert len(run(one, "cached")) >= 2
        assert one.values() == numbered(0, 40 * number + 40)


@pytest.mark.takes(20)
def test_cached_lookup_table_that_the_warm_up_fills_delivers_each_record_once(
    bench: Callable[..., Bench], settings: Callable[[str, object], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run's first batch comes after a warm-up, as with `tailrace run`."""
    settings(SHUFFLED, 4)
    made = SparkEngine.__init__

    def warmed(engine: SparkEngine, *given: Any) -> None:
        made(engine, *given)
        engine.warm()

    monkeypatch.setattr(SparkEngine, "__init__", warmed)
    one = prepared(bench)
    assert len(run(one, "cached")) >= 2
    feed(one, 1)
    assert len(run(one, "cached")) >= 2
    assert one.values() == numbered(0, 80)


@pytest.mark.takes(20)
@pytest.mark.parametrize(("function", "threshold"), [("cached", 10_000_000), ("larger", 5000)])
def test_batch_that_failed_in_part_behind_a_cached_lookup_table_is_finished(
    bench: Callable[..., Bench], settings: Callable[[str, object], None], function: str, threshold: int
) -> None:
    """The next start joins as the failed one did, whether the table is smaller or larger than Spark guesses."""
    settings(THRESHOLD, threshold)
    one = prepared(bench)
    fail_in_part(one, function)
    run(one, function)
    assert one.values() == numbered(0, 40)


@pytest.mark.takes(20)
@pytest.mark.parametrize("sizes", [(100, 5000), (5000, 100)])
def test_run_joins_all_batches_in_one_way_though_the_table_crosses_the_threshold(
    bench: Callable[..., Bench], settings: Callable[[str, object], None], sizes: tuple[int, int]
) -> None:
    """A function that is called for each batch finds files of another size in the second batch."""
    settings(THRESHOLD, 10_000)
    settings(SHUFFLED, 4)
    one = prepared(bench)
    fill(one, sizes[0])
    with before_each_batch(lambda batch: fill(one, sizes[1]) if batch == 1 else None):
        assert len(run(one, "files", chance=True)) >= 2
    assert one.values() == numbered(0, 40)


@pytest.mark.takes(20)
@pytest.mark.parametrize("sizes", [(100, 5000), (5000, 100)])
def test_batch_delivered_in_part_is_finished_though_the_table_has_crossed_the_threshold(
    bench: Callable[..., Bench], settings: Callable[[str, object], None], sizes: tuple[int, int]
) -> None:
    """The start would join in another way by itself, and joins the open batch as its plan says."""
    settings(THRESHOLD, 10_000)
    one = prepared(bench)
    fill(one, sizes[0])
    fail_in_part(one, "files")
    fill(one, sizes[1])
    run(one, "files")
    assert one.values() == numbered(0, 40)


@pytest.mark.takes(20)
def test_batch_that_would_be_cut_otherwise_than_its_plan_says_is_refused_before_anything_is_written(
    bench: Callable[..., Bench],
) -> None:
    """The function returns another shuffle in the second batch; the next start chooses that batch again."""
    one = prepared(bench)
    number = one.folder / "number"
    number.write_text("2")
    with (
        before_each_batch(lambda batch: number.write_text("3") if batch == 1 else None),
        pytest.raises(errors.CutChanged, match=r"batch 1 .* would now have 3 behind hashpartitioning\(value, 3\)"),
    ):
        run(one, "spread")
    delivered = one.values()
    assert len(delivered) == 20
    run(one, "spread")
    assert one.values() == numbered(0, 40)


@pytest.mark.takes(20)
@pytest.mark.parametrize("chance", [False, True])
def test_shuffle_by_a_lambda_function_delivers_each_record_once(bench: Callable[..., Bench], chance: bool) -> None:
    """Spark names the lambda function's variable otherwise each time that the function is called."""
    one = prepared(bench)
    for number in range(2):
        if number:
            feed(one, number)
        assert len(run(one, "starts", chance=chance)) >= 2
    assert one.values() == numbered(0, 80)


@pytest.mark.takes(10)
def test_doctor_reads_the_plan_without_filling_caches(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filling this one would raise."""
    one = prepared(bench)
    monkeypatch.setattr("tailrace.startup.run.session", lambda pipeline: one.spark)
    monkeypatch.setattr(one.spark, "stop", lambda: None)
    pipeline = one.pipeline(source={"format": "raw"}, process={"function": "lookup.py:costly"}, checkpoint="ledger")
    assert planning(pipeline, one.folder)[0] == "planned for each batch"


@contextlib.contextmanager
def before_each_batch(do: Callable[[int], object]) -> Iterator[None]:
    """Do something between the plan of a batch and its job, by the batch's number."""
    deliver = SparkEngine.deliver

    def delivering(engine: SparkEngine, plan: Plan, *given: Any, **named: Any) -> Any:
        do(plan.batch)
        return deliver(engine, plan, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparkEngine, "deliver", delivering)
        yield
