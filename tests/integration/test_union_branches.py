"""Unions of branches of the same records: a replay must find each record in the branch that it was in before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from support import dropin
from support.dropin import Change, read
from support.pipelines import Bench, numbered
from tailrace import errors

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]


def deliver(one: Bench, then: Change, every: Change = lambda rows: rows) -> None:
    """Deliver what `then` makes of each batch of the query `every`."""
    dropin.deliver(every(read(one)), one, one.folder / "checkpoint", then)


def users(one: Bench, *names: bytes) -> str:
    """Add users to a table; return its folder."""
    folder = str(one.folder / "users")
    rows = one.spark.createDataFrame([(name,) for name in names], "value binary")
    rows.coalesce(1).write.mode("append").parquet(folder)
    return folder


def failing(one: Bench, rows: DataFrame, least: int = 0) -> DataFrame:
    """Fail from the number `least` on while the file `broken` exists, late enough for the other tasks to commit."""
    flag = str(one.folder / "broken")

    def check(value):  # type: ignore[no-untyped-def]  # PySpark reads hints as another kind of function
        import time
        from pathlib import Path

        if int(bytes(value)) >= least and Path(flag).exists():
            time.sleep(4)
            raise ValueError("the fault of the test")
        return bytes(value)

    return rows.withColumn("value", F.udf(check, "binary")("value"))


def fail_in_part(one: Bench, then: Change, every: Change = lambda rows: rows) -> list[bytes | None]:
    """Deliver a batch whose failing rows stay behind; return what the sink holds."""
    (one.folder / "broken").touch()
    with pytest.raises(Exception, match="the fault of the test"):
        deliver(one, then, every)
    (one.folder / "broken").unlink()
    one.settle()
    found = one.values()
    assert 0 < len(found) < 20
    return found


def by_time(frame: DataFrame) -> DataFrame:
    """Split the records by the second in which Spark plans the batch."""
    odd = F.second(F.current_timestamp()) % 2 == F.length("value") % 2
    return frame.where(odd).union(frame.where(~odd))


def by_chance(frame: DataFrame) -> DataFrame:
    """Split the records at random."""
    first, second = frame.randomSplit([0.5, 0.5], seed=7)
    return first.union(second)


def by_table(frame: DataFrame, table: DataFrame) -> DataFrame:
    """Split the records into those of known users and the others."""
    known = frame.join(F.broadcast(table), "value")
    return known.union(frame.join(F.broadcast(table), "value", "left_anti"))


@pytest.mark.takes(6)
@pytest.mark.parametrize("place", ["batch", "query"])
def test_union_of_branches_by_a_table_is_refused(bench: MakeBench, spark: SparkSession, place: str) -> None:
    """A user that is added before a replay would move a record into the branch that is delivered: it would be lost."""
    one = bench()
    one.send(numbered(0, 20))
    table = spark.read.parquet(users(one, *filter(None, numbered(0, 10))))
    split: Change = lambda frame: by_table(frame, table)  # noqa: E731
    same: Change = lambda frame: frame  # noqa: E731
    with pytest.raises(Exception, match=r"(?s)TR-103.*branch of a union.*another table.*read the records once"):
        deliver(one, *((split, same) if place == "batch" else (same, split)))
    assert one.values() == []


@pytest.mark.takes(6)
@pytest.mark.parametrize("hint", ["merge", None])
def test_union_of_branches_by_a_table_is_refused_below_a_join(
    bench: MakeBench, spark: SparkSession, hint: str | None
) -> None:
    """Spark may give each task all of the other table, and then the branch decides which task writes a record.

    The size of a cached table is unknown when the batch is checked, and Spark replaces keys that are constant.
    """
    one = bench()
    one.send(numbered(0, 20))
    table = spark.read.parquet(users(one, *filter(None, numbered(0, 10))))
    pages = spark.createDataFrame([(6, "page")], "page int, name string").cache()
    other = pages.hint(hint) if hint else pages

    def split(frame: DataFrame) -> DataFrame:
        return by_table(frame, table).withColumn("page", F.length("value")).join(other, "page").select("value")

    with pytest.raises(Exception, match=r"(?s)TR-103.*branch of a union.*another table"):
        deliver(one, split)
    pages.unpersist()
    assert one.values() == []


@pytest.mark.takes(6)
@pytest.mark.parametrize(("split", "words"), [(by_time, "later on a replay"), (by_chance, "sample")])
def test_union_of_branches_by_time_or_chance_is_refused(bench: MakeBench, split: Change, words: str) -> None:
    """A replay would draw other branches."""
    one = bench()
    one.send(numbered(0, 20))
    with pytest.raises(Exception, match=rf"(?s)TR-103.*branch of a union.*{words}"):
        deliver(one, split)
    assert one.values() == []


@pytest.mark.takes(12)
def test_one_pass_over_the_records_delivers_each_whatever_the_table_gains(
    bench: MakeBench, spark: SparkSession
) -> None:
    """A left join keeps every record where it was read; only a value says whether its user is known."""
    one = bench(partitions=2)
    for partition in range(2):
        one.send(numbered(10 * partition, 10 * partition + 10), partition)
    folder = users(one, b"000003")

    def split(frame: DataFrame) -> DataFrame:
        table = spark.read.parquet(folder).withColumn("known", F.expr("true"))
        rows = failing(one, frame, 10).join(F.broadcast(table), "value", "left")
        return rows.select("value", F.when(F.col("known"), F.lit(one.sink)).otherwise(F.lit(one.sink)).alias("topic"))

    assert fail_in_part(one, split) == numbered(0, 10)
    users(one, b"000004", b"000014")
    deliver(one, split)
    assert one.values() == numbered(0, 20)


@pytest.mark.takes(15)
def test_branches_by_the_records_are_finished_only_by_the_same_conditions(bench: MakeBench) -> None:
    """With another border, a record would move into the branch that is delivered, and be lost."""
    one = bench()
    one.send(numbered(0, 20))

    def by(border: int) -> Change:
        number = F.col("value").cast("string").cast("int")
        return lambda frame: frame.where(number < border).union(failing(one, frame.where(number >= border)))

    assert fail_in_part(one, by(5)) == numbered(0, 5)
    with pytest.raises(Exception, match=r"(?s)TR-302.*conditions"):
        deliver(one, by(15))
    assert one.values() == numbered(0, 5)
    deliver(one, by(5))
    assert one.values() == numbered(0, 20)


@pytest.mark.takes(12)
@pytest.mark.parametrize("nested", [False, True])
def test_union_of_two_topics_is_delivered_once_whatever_a_table_gains(
    bench: MakeBench, spark: SparkSession, *, nested: bool
) -> None:
    """No record of one topic is in the other, so each stays in its branch."""
    one, other = bench(), bench()
    one.send(numbered(0, 10))
    other.send(numbered(10, 20))
    folder = users(one, *filter(None, numbered(0, 5)))

    def both(rows: DataFrame) -> DataFrame:
        known = rows.join(F.broadcast(spark.read.parquet(folder)), "value")
        records = failing(one, read(other, subscribe=other.source))
        if not nested:
            return known.union(records)
        of_one = known.union(records.where(F.length("value") == 6)).withColumn("n", F.length("value")).where("n > 0")
        return of_one.drop("n").union(records.where(F.length("value") != 6))

    def same(frame: DataFrame) -> DataFrame:
        return frame

    assert fail_in_part(one, same, both) == numbered(0, 5)
    users(one, *filter(None, numbered(5, 20)))
    deliver(one, same, both)
    assert sorted(filter(None, one.values())) == [*numbered(0, 5), *numbered(10, 20)]


@pytest.mark.takes(6)
def test_shuffle_by_what_differs_between_two_topics_is_delivered(bench: MakeBench, spark: SparkSession) -> None:
    """A record has the same key on a replay although a table decides which records of its topic are delivered."""
    one, other = bench(), bench()
    one.send(numbered(0, 10))
    other.send(numbered(10, 20))
    table = F.broadcast(spark.read.parquet(users(one, *filter(None, numbered(0, 5)))))

    def both(rows: DataFrame) -> DataFrame:
        known = rows.join(table, "value").withColumn("from", F.lit("one"))
        others = read(other, subscribe=other.source).withColumn("from", F.lit("other"))
        return known.union(others).repartition(2, "from").select("value")

    deliver(one, lambda frame: frame, both)
    assert sorted(filter(None, one.values())) == [*numbered(0, 5), *numbered(10, 20)]


@pytest.mark.takes(6)
@pytest.mark.parametrize("option", ["subscribe", "subscribePattern", "assign"])
def test_union_of_two_readers_of_a_topic_by_a_table_is_refused(
    bench: MakeBench, spark: SparkSession, option: str
) -> None:
    """Both read the same records, however the second one names the topic."""
    one, other = bench(), bench()
    one.send(numbered(0, 20))
    table = spark.read.parquet(users(one, *filter(None, numbered(0, 10))))
    topics = {
        "subscribe": f"{other.source}, {one.source}",
        "subscribePattern": f"{one.source}|none",
        "assign": f'{{"{one.source}": [0]}}',
    }

    def split(rows: DataFrame) -> DataFrame:
        again = read(one, **{option: topics[option]})
        return rows.join(F.broadcast(table), "value").union(again.join(F.broadcast(table), "value", "left_anti"))

    with pytest.raises(Exception, match=r"(?s)TR-103.*branch of a union.*another table"):
        deliver(one, lambda frame: frame, split)
    assert one.values() == []


FUNCTION = """
    from pyspark.sql import functions as F
    def split(frame, folder):
        table = F.broadcast(frame.sparkSession.read.parquet(folder))
        known, unknown = frame.join(table, "value"), frame.join(table, "value", "left_anti")
        return known.select("value").union(unknown.select("value"))
"""


@pytest.mark.takes(6)
def test_stateful_pipeline_with_a_union_of_branches_by_a_table_is_refused(bench: MakeBench) -> None:
    """Its replays read the table again, too."""
    one = bench()
    one.send(numbered(0, 20))
    one.write("split.py", FUNCTION)
    function = {"function": "split.py:split", "arguments": {"folder": users(one, b"1")}}
    with pytest.raises(errors.FunctionInvalid, match=r"branch of a union.*another table"):
        one.run(process=function, checkpoint=str(one.folder / "state"))
    assert one.values() == []


def fan_out(one: Bench, order: Sequence[str], failing_too: bool = False) -> Change:
    """Return what makes two records of each, in branches without conditions, of which the first kind may fail."""

    def change(frame: DataFrame) -> DataFrame:
        tail = F.concat("value", F.lit(b"+"))
        made = {
            "plain": failing(one, frame).select("value"),
            "tailed": (failing(one, frame) if failing_too else frame).select(tail.alias("value")),
        }
        return reduce(DataFrame.union, [made[name] for name in order])

    return change


def tailed(numbers: Sequence[bytes | None]) -> list[bytes]:
    """Return what the second branch makes of these records."""
    return [(each or b"") + b"+" for each in numbers]


def both(numbers: Sequence[bytes | None]) -> list[bytes]:
    """Return what both branches make of these records."""
    return sorted([*(each or b"" for each in numbers), *tailed(numbers)])


@pytest.mark.takes(15)
def test_rest_of_a_batch_is_not_written_with_its_branches_in_another_order(bench: MakeBench) -> None:
    """The tasks of a branch that is delivered would write another one: its records would be lost."""
    one = bench()
    one.send(numbered(0, 10))
    assert fail_in_part(one, fan_out(one, ["plain", "tailed"])) == tailed(numbered(0, 10))
    with pytest.raises(Exception, match=r"(?s)TR-302.*branches of a union in another order.*PYTHONHASHSEED"):
        deliver(one, fan_out(one, ["tailed", "plain"]))
    assert one.values() == tailed(numbered(0, 10))
    deliver(one, fan_out(one, ["plain", "tailed"]))
    assert one.values() == both(numbered(0, 10))


@pytest.mark.takes(15)
def test_rest_of_a_batch_is_written_by_a_mended_branch(bench: MakeBench) -> None:
    """Its records are where they were, and it could not be finished with the mistake."""
    one = bench()
    one.send(numbered(0, 10))
    fail_in_part(one, fan_out(one, ["plain", "tailed"]))
    (one.folder / "broken").touch()
    deliver(one, lambda frame: frame.select("value").union(frame.select(F.concat("value", F.lit(b"+")).alias("value"))))
    assert one.values() == both(numbered(0, 10))


@pytest.mark.takes(20)
def test_batch_of_which_nothing_is_delivered_takes_its_branches_as_they_come(bench: MakeBench) -> None:
    """From then on, it is their order that counts."""
    one = bench()
    one.send(numbered(0, 10))
    (one.folder / "broken").touch()
    with pytest.raises(Exception, match="the fault of the test"):
        deliver(one, fan_out(one, ["plain", "tailed"], failing_too=True))
    one.settle()
    assert one.values() == []
    fail_in_part(one, fan_out(one, ["tailed", "plain"]))
    with pytest.raises(Exception, match=r"(?s)TR-302.*branches of a union in another order"):
        deliver(one, fan_out(one, ["plain", "tailed"]))
    deliver(one, fan_out(one, ["tailed", "plain"]))
    assert one.values() == both(numbered(0, 10))
