"""A query of a user's own, which reads with Spark's source and writes with `exactly_once`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import tailrace
from support.pipelines import Bench
from tailrace.testing import Record, produce

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


def fill(one: Bench, start: int, end: int) -> None:
    """Write these numbers to the partitions of the source in turn."""
    produce(
        one.kafka,
        one.source,
        [Record(b"%d" % number, partition=number % one.partitions) for number in range(start, end)],
    )


def numbers(one: Bench) -> list[int]:
    """Return what the sink holds, sorted."""
    return sorted(int(value or b"") for value in one.values())


def faulty(rows: DataFrame, folder: Path) -> DataFrame:
    """Fail in the tasks whose numbers the file `broken` holds."""
    flag = str(folder / "broken")

    def check(value):  # type: ignore[no-untyped-def]  # PySpark reads hints as another kind of function
        from pathlib import Path

        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and Path(flag).exists() and str(context.partitionId()) in Path(flag).read_text():
            raise ValueError("the fault of the test")
        return bytes(value)

    return rows.select(F.udf(check, "binary")("value").alias("value"))


def fail_in_part(one: Bench, folder: Path, job: Callable[[], None]) -> None:
    """Run until the first sink partition is delivered, and the second is not."""
    (folder / "broken").write_text("1")
    with pytest.raises(Exception, match="the fault of the test"):
        job()
    one.settle()
    (folder / "broken").unlink()
    assert 0 < len(one.values()) < 40


def forget(folder: Path, batch: int = 0) -> None:
    """Remove Spark's note that a batch is done, as if Spark had ended before it wrote the note."""
    for name in (f"{batch}", f".{batch}.crc"):
        (folder / "commits" / name).unlink()
