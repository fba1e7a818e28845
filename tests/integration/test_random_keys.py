"""Joins and groupings by random keys: they are refused before anything is written, as a replay cannot repeat them."""

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
