"""Shuffles by random keys, or by rows picked at random: refused before a write, as a replay cannot repeat them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import tailrace
from support.pipelines import Bench, numbered
from tailrace import errors

pytestmark = pytest.mark.integration

FUNCTION = """
    from pyspark.sql import functions as F
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
    sink = tailrace.exactly_once(
        **{"kafka.bootstrap.servers": one.kafka, "topic": one.sink, "ledger.topic": f"{one.name}.ledger"}
    )
    salts = spark.createDataFrame([(each,) for each in range(4)], "salt int").hint("merge")

    def deliver(frame: DataFrame, number: int) -> None:
        salted = frame.withColumn("salt", (F.rand(42) * 4).cast("int"))
        sink(salted.join(salts, "salt").select("value"), number)

    records = spark.readStream.format("kafka").option("kafka.bootstrap.servers", one.kafka)
    rows = records.option("subscribe", one.source).option("startingOffsets", "earliest").load().select("value")
    writer = rows.writeStream.foreachBatch(deliver).option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(Exception, match=r"TR-103.*join by salt"):
        writer.trigger(availableNow=True).start().awaitTermination()
    assert one.values() == []
