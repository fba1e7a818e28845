"""What `exactly_once` does if a batch that it knows comes again, behind a shuffle that has changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from support.dropin import deliver, fail_in_part, faulty, fill, forget, numbers, read
from support.pipelines import Bench
from tailrace.progress.stream_plan import UNNAMED, StreamPlan
from tailrace.spark_stream import function_digest, planned_sink

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]
Shuffle = Callable[[DataFrame], DataFrame]


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
