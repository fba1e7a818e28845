"""A query of a user's own, which reads with Spark's source and writes with `exactly_once`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

import tailrace
from support.pipelines import Bench

Change = Callable[[DataFrame], DataFrame]


def read(one: Bench, **topics: str) -> DataFrame:
    """Read the source topic, or what these options name, with Spark's own source."""
    reader = one.spark.readStream.format("kafka").option("kafka.bootstrap.servers", one.kafka)
    asked = reader.options(**(topics or {"subscribe": one.source})).option("startingOffsets", "earliest")
    return asked.load().select("value")


def deliver(rows: DataFrame, one: Bench, folder: Path, then: Change = lambda frame: frame, **options: str) -> None:
    """Deliver what the source contains with `exactly_once`, which gets what `then` makes of each batch."""
    target = {"kafka.bootstrap.servers": one.kafka, "topic": one.sink, "ledger.topic": f"{one.name}.ledger", **options}
    sink = tailrace.exactly_once(**target)
    writer = rows.writeStream.foreachBatch(lambda frame, number: sink(then(frame), number))
    writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start().awaitTermination()
