"""The frame of a pipeline: one leaf that reads through the gateway, then the stages, as one function.

    read ──► decode ──► validate ──► gate ──► (spread) ──► process ──► encode
                                       └─ rejected ──► gateway

Every part of it is the same in all batches, so that Spark plans it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tailrace.driver.leaf import one_row_per_task
from tailrace.driver.tasks import Tasks
from tailrace.stages.assembly import Assembly
from tailrace.stages.decode import decode
from tailrace.stages.encode import encode
from tailrace.stages.process import apply, spread_rows, unchanged, validate
from tailrace.stages.rows import HEADERS, accepted, aside

RECORD = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", HEADERS),
    ]
)
COLUMNS = tuple(name for name in RECORD.names if name != "timestampType")
_GATE = "_gate"
Judge = Callable[[Iterator[Any]], Iterator[Any]]


def leaf(spark: SparkSession, tasks: Tasks, parts: int) -> DataFrame:
    """Return the frame that reads the batch's records, one task for each part; columns that are not read are null."""
    wanted = StructType([RECORD[name] for name in tasks.columns])
    records = one_row_per_task(spark, parts).mapInArrow(tasks.read, wanted)
    if tasks.columns == COLUMNS:
        return records
    nothing = {name: F.lit(None).cast(RECORD[name].dataType).alias(name) for name in COLUMNS}
    return records.select(*(name if name in tasks.columns else nothing[name] for name in COLUMNS))


def rows(assembly: Assembly, records: DataFrame, judge: Judge) -> DataFrame:
    """Return rows for the sink, from Kafka's records; rejected ones are handed to the gateway on the way."""
    pipeline = assembly.pipeline
    good = accepted(judged(assembly, records, judge))
    if pipeline.process.partitions is not None:
        good = spread_rows(good, pipeline.process.partitions)
    good = apply(assembly.function, good, pipeline.process.arguments) if assembly.function else unchanged(good)
    return encode(good, pipeline.sink, assembly.folder)


def judged(assembly: Assembly, records: DataFrame, judge: Judge) -> DataFrame:
    """Return the decoded records as far as the gate, which has let them through if any can be rejected."""
    pipeline = assembly.pipeline
    decoded = validate(decode(records, pipeline.source, assembly.folder), pipeline.process.validate_)
    return gated(decoded, judge) if assembly.may_reject else decoded


def gated(decoded: DataFrame, judge: Judge) -> DataFrame:
    """Let the accepted rows through and hand over the others.

    The gate is a column, so that accepted rows stay in the JVM: Python gets a null for each of them. It is declared
    non-deterministic; otherwise Spark could drop it, move it or compute it twice.
    """
    make: Any = arrow_udf  # its stub lacks functions that are described by their type hints
    gate = make(judge, BooleanType()).asNondeterministic()
    return decoded.withColumn(_GATE, gate(aside(decoded, "decode"))).where(F.col(_GATE)).drop(_GATE)
