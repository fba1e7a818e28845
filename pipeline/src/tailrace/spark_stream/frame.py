"""The DataFrame of a stateful pipeline, over the unbounded one that Spark reads.

    read ──► decode ──► validate ──► gate ──► (spread) ──► process ──► encode
                                      └─ rejected ──► gateway

`sink.partitions` bounds the tasks that write. Spark would coalesce them by the location of their input, and so
differently after a restart; instead, the rows are shuffled into that number of partitions, or the state has that many.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tailrace.config import Pipeline
from tailrace.driver.catalyst import tree
from tailrace.driver.repeatable import plans_read
from tailrace.errors import ConfigInvalid
from tailrace.spark_stream.analysis import check, refuse_other_streams, refuse_unsupported
from tailrace.spark_stream.gate import Gate, gated
from tailrace.stages.assembly import Assembly
from tailrace.stages.decode import decode
from tailrace.stages.encode import encode
from tailrace.stages.process import apply, spread_rows, unchanged, validate
from tailrace.stages.rows import KAFKA, VALUE, accepted, size
from tailrace.telemetry import metrics

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True)
class Cut:
    """A stateful pipeline's rows for the sink, and who shuffles them."""

    rows: DataFrame
    mixes: bool  # whether the function shuffles
    spread: bool  # whether Tailrace does, and the function does not


@plans_read()
def frame(assembly: Assembly, records: DataFrame, gate: Gate) -> Cut:
    """Return the frame, with at most `sink.partitions` sink partitions if a replay can repeat that."""
    most = assembly.pipeline.sink.partitions
    found = rows(assembly, records, gate, None)
    refuse_other_streams(found, records)
    refuse_unsupported(found, assembly.pipeline)
    own = 1 if assembly.pipeline.process.partitions is not None else 0
    shuffles = check(found, assembly.pipeline.checkpoint)
    if most is not None and shuffles == 0:
        return Cut(rows(assembly, records, gate, most), mixes=False, spread=True)
    return Cut(found, mixes=shuffles > own, spread=0 < own == shuffles)


def rows(assembly: Assembly, records: DataFrame, gate: Gate, merged: int | None = None) -> DataFrame:
    """Return rows for the sink from Kafka's records; `merged` is the number of partitions to shuffle them into."""
    pipeline = assembly.pipeline
    if pipeline.process.arrow is not None:
        raise ConfigInvalid(
            "process.arrow takes Arrow record batches, and Spark plans this pipeline over DataFrames",
            kept="nothing was read or written",
            then="use process.function",
        )
    decoded = validate(decode(records, pipeline.source, assembly.folder), pipeline.process.validate_).observe(
        metrics.READ,
        F.count(F.lit(1)).alias(metrics.CONSUMED),
        F.coalesce(F.sum(size(F.col(KAFKA)["key"]) + size(F.col(VALUE))), F.lit(0)).alias(metrics.SIZE),
    )
    good = accepted(gated(decoded, gate) if assembly.may_reject else decoded)
    most = pipeline.sink.partitions
    if pipeline.process.partitions is not None:
        spread = pipeline.process.partitions
        good = spread_rows(good, spread if most is None else min(spread, most))
    elif merged is not None:
        good = good.repartition(merged, F.col(KAFKA)["topic"], F.col(KAFKA)["partition"])
    good = apply(assembly.function, good, pipeline.process.arguments) if assembly.function else unchanged(good)
    encoded = encode(good, pipeline.sink, assembly.folder)
    delivered = F.col("reason").isNull()
    return encoded.observe(
        metrics.WRITTEN,
        F.count_if(delivered).alias(metrics.PRODUCED),
        F.count_if(~delivered).alias(metrics.REJECTED),
    )


def leaves(rows: DataFrame) -> int:
    """Count the places where a stream's plan reads its source."""
    return sum(not node.children and node.plan.isStreaming() for node in tree(rows._jdf.queryExecution().analyzed()))


@contextmanager
def bounded_state(spark: SparkSession, pipeline: Pipeline) -> Iterator[None]:
    """Limit new state to `sink.partitions` partitions while a query runs; existing state keeps its own number.

    What runs later in a session that was passed in has the number that it had before.
    """
    most, before = pipeline.sink.partitions, spark.conf.get(SHUFFLE_PARTITIONS, "200") or "200"
    if most is None or int(before) <= most:
        yield
        return
    spark.conf.set(SHUFFLE_PARTITIONS, str(most))
    try:
        yield
    finally:
        spark.conf.set(SHUFFLE_PARTITIONS, before)
