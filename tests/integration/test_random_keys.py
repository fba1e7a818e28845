"""Shuffles by random keys, or by rows picked at random: refused before a write, as a replay cannot repeat them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from support.dropin import Change, deliver, read
from support.pipelines import Bench, numbered
from tailrace import errors

pytestmark = pytest.mark.integration

FUNCTION = """
    from pyspark.sql import functions as F
    def sent(frame):
        sizes = frame.sparkSession.range(0, 40, 1, 4).selectExpr("cast(id as int) size")
        return F.broadcast(frame.withColumn("size", F.length("value"))).join(sizes, "size").select("value")
    def salted(frame):
        salts = frame.sparkSession.createDataFrame([(each,) for each in range(4)], "salt int").hint("merge")
        return frame.withColumn("salt", (F.rand() * 4).cast("int")).join(salts, "salt").select("value")
    def distinct(frame):
        return frame.withColumn("salt", (F.rand() * 4).cast("int")).dropDuplicates(["value", "salt"]).select("value")
    def first(frame, keys):
        return frame.dropDuplicates(keys).repartition(2, "page")
"""


@pytest.mark.takes(6)
@pytest.mark.parametrize("function", ["salted", "distinct"])
def test_stateful_pipeline_with_a_random_key_is_refused(bench: Callable[..., Bench], function: str) -> None:
    """Behind a failed task, a row would move between a sink partition that is delivered and one that is not."""
    one = bench(partitions=2)
    one.write("salt.py", FUNCTION)
    one.send(numbered(0, 40), 0)
    with pytest.raises(errors.FunctionInvalid, match="which may give a different value on a replay"):
        one.run(process={"function": f"salt.py:{function}"}, checkpoint=str(one.folder / "state"))
    assert one.values() == []


@pytest.mark.takes(8)
def test_shuffle_by_a_column_that_a_deduplication_picks_is_refused(bench: Callable[..., Bench]) -> None:
    """Duplicates arrive in another order on a replay; with the column among the keys all of them are kept."""
    one = bench(partitions=2)
    one.write("salt.py", FUNCTION)
    for partition in range(2):
        one.send([b'{"id":%d,"page":"page%d"}' % (number, number + partition) for number in range(20)], partition)

    def run(*keys: str) -> None:
        one.run(
            source={"format": "json", "schema": "id BIGINT, page STRING", "partitions": None},
            process={"function": "salt.py:first", "arguments": {"keys": list(keys)}},
            sink={"format": "json"},
            checkpoint=str(one.folder / "-".join(keys)),
        )

    with pytest.raises(errors.FunctionInvalid, match="repartition by page depends on which of several rows") as refused:
        run("id")
    assert "dropDuplicates(['id', 'page'])" in refused.value.then
    assert one.values() == []
    run("id", "page")
    assert len(set(one.values())) == len(one.values()) == 40


@pytest.mark.takes(6)
def test_batch_of_the_drop_in_sink_with_a_seeded_random_key_is_refused(
    bench: Callable[..., Bench], spark: SparkSession, tmp_path: Path
) -> None:
    """The seed is the same on a replay, and the order in which the rows come is not."""
    one = bench(partitions=2)
    one.send(numbered(0, 40), 0)
    salts = spark.createDataFrame([(each,) for each in range(4)], "salt int").hint("merge")

    def salted(frame: DataFrame) -> DataFrame:
        return frame.withColumn("salt", (F.rand(42) * 4).cast("int")).join(salts, "salt").select("value")

    with pytest.raises(Exception, match=r"TR-103.*join by salt"):
        deliver(read(one), one, tmp_path, salted)
    assert one.values() == []


@pytest.mark.takes(10)
@pytest.mark.parametrize("place", ["query", "batch", "limit"])
def test_records_that_spark_sends_to_the_tasks_of_another_table_are_refused(
    bench: Callable[..., Bench], spark: SparkSession, tmp_path: Path, place: str
) -> None:
    """The other table decides then which task writes a record, and may have changed; a join the other way is fine."""
    one = bench(partitions=2)
    for partition in range(2):
        one.send(numbered(20 * partition, 20 * partition + 20), partition)
    numbers = F.format_string("%06d", "id").cast("binary").alias("value")
    table = spark.range(0, 4000, 1, 4).select(numbers)
    same: Change = lambda rows: rows  # noqa: E731
    to_table: Change = lambda rows: table.join(F.broadcast(rows), "value")  # noqa: E731
    limited: Change = lambda rows: table.join(rows.limit(40), "value")  # noqa: E731
    then, query = {"query": (same, to_table), "batch": (to_table, same), "limit": (limited, same)}[place]
    with pytest.raises(Exception, match=r"TR-103.*send the records to the tasks that read another table"):
        deliver(query(read(one)), one, tmp_path, then)
    assert one.values() == []
    deliver(read(one), one, tmp_path, lambda rows: F.broadcast(table).join(rows, "value"))
    assert sorted(filter(None, one.values())) == numbered(0, 40)


@pytest.mark.takes(10)
def test_batch_that_is_joined_with_a_broadcast_of_what_it_counts_is_delivered(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    """Each task reads its own records and gets all counts."""
    one = bench(partitions=2)
    for partition in range(2):
        one.send(numbered(20 * partition, 20 * partition + 20), partition)

    def counted(frame: DataFrame) -> DataFrame:
        return frame.join(F.broadcast(frame.groupBy("value").count()), "value").select("value")

    deliver(read(one), one, tmp_path, counted)
    assert sorted(filter(None, one.values())) == numbered(0, 40)


@pytest.mark.takes(6)
def test_stateful_pipeline_that_sends_its_records_to_a_table_is_refused(bench: Callable[..., Bench]) -> None:
    """How Spark joins shows when it has planned the first batch, of which nothing is written then."""
    one = bench(partitions=2)
    one.write("salt.py", FUNCTION)
    one.send(numbered(0, 40), 0)
    with pytest.raises(errors.FunctionInvalid, match="send the records to the tasks that read another table"):
        one.run(process={"function": "salt.py:sent"}, checkpoint=str(one.folder / "state"))
    assert one.values() == []
