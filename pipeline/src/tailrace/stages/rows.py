"""The row layout that the sink takes, and the column names that the stages share.

decode, process and encode do not know each other; they agree on these columns. A row whose `reason` is null is
delivered to its topic; a row with a reason goes to the rejected topic, with the record's original bytes and
headers that say why it was rejected and which record it was.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every PySpark user knows
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from tailrace.kafka.rejected_headers import (
    DETAIL_LENGTH,
    HEADER_DETAIL,
    HEADER_OFFSET,
    HEADER_PARTITION,
    HEADER_REASON,
    HEADER_STAGE,
    HEADER_TIMESTAMP,
    HEADER_TOPIC,
)

# The struct next to the decoded fields that tells the function where the record came from.
KAFKA = "kafka"
# Columns that pass from decode to the split and are hidden from the function.
VALUE = "_value"
REASON = "_reason"
DETAIL = "_detail"
# Set only if a stage after decode gave the reason.
STAGE = "_stage"
# The numbers of the rules that a decoded record breaks; null if it breaks none.
BROKEN = "_tailrace_broken"
HIDDEN = (VALUE, REASON, DETAIL, STAGE, BROKEN)

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

# The row that the sink takes.
ROW = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", HEADERS),
        StructField("timestamp", LongType()),  # milliseconds, as Kafka has it
        StructField("reason", StringType()),
    ]
)


def size(value: Column) -> Column:
    """Return the size of a key or a value in bytes."""
    return F.coalesce(F.octet_length(value), F.lit(0)).cast("long")


def header(name: str, value: Column) -> Column:
    """Return a header whose value is the text of `value`, or null if that is null."""
    text = value.cast("string")
    return F.when(text.isNotNull(), F.struct(F.lit(name).alias("key"), text.cast("binary").alias("value")))


def with_headers(own: Column, *more: Column) -> Column:
    """Return the record's own headers followed by those of `more` that are not null."""
    ours = F.filter(F.array(*more), lambda each: each.isNotNull())
    return F.concat(F.coalesce(own, F.array().cast(HEADERS)), ours)


def reasons(stage: Column, origin: Column | None) -> list[Column]:
    """Return the headers that say why a row was rejected and, if `origin` is known, which record it came from."""
    why = [
        header(HEADER_STAGE, stage),
        header(HEADER_REASON, F.col(REASON)),
        header(HEADER_DETAIL, F.substring(F.col(DETAIL), 1, DETAIL_LENGTH)),
    ]
    if origin is None:
        return why
    return [
        *why,
        header(HEADER_TOPIC, origin["topic"]),
        header(HEADER_PARTITION, origin["partition"]),
        header(HEADER_OFFSET, origin["offset"]),
        header(HEADER_TIMESTAMP, F.unix_millis(origin["timestamp"])),
    ]


def rejected(frame: DataFrame, stage: str) -> DataFrame:
    """Return the rejected rows of a decoded frame, as rows for the sink; `stage` is used if the row names none."""
    record = F.col(KAFKA)
    where = F.coalesce(F.col(STAGE), F.lit(stage)) if STAGE in frame.columns else F.lit(stage)
    headers = with_headers(record["headers"], *reasons(where, record))
    return frame.where(F.col(REASON).isNotNull()).select(
        F.lit(None).cast("string").alias("topic"),
        F.lit(None).cast("int").alias("partition"),
        record["key"].alias("key"),
        F.col(VALUE).alias("value"),
        headers.alias("headers"),
        F.lit(None).cast("long").alias("timestamp"),
        F.col(REASON).alias("reason"),
    )


def aside(frame: DataFrame, stage: str) -> Column:
    """Return a row of a decoded frame as the gate takes it: rejected, or with broken rules; null for any other.

    A row that is accepted and breaks a rule has nothing but these rules.
    """
    record = F.col(KAFKA)
    where = F.coalesce(F.col(STAGE), F.lit(stage)) if STAGE in frame.columns else F.lit(stage)
    rejected = F.col(REASON).isNotNull()
    key, value = record["key"], F.col(VALUE)
    headers = with_headers(record["headers"], *reasons(where, record))
    if BROKEN not in frame.columns:
        row = F.struct(key.alias("key"), value.alias("value"), headers.alias("headers"), F.col(REASON).alias("reason"))
        return F.when(rejected, row)
    parts = {"key": key, "value": value, "headers": headers}
    row = F.struct(
        *(F.when(rejected, part).alias(name) for name, part in parts.items()),
        F.col(REASON).alias("reason"),
        F.col(BROKEN).alias("broken"),
    )
    return F.when(rejected | F.col(BROKEN).isNotNull(), row)


def accepted(frame: DataFrame) -> DataFrame:
    """Return the accepted rows of a decoded frame, without the hidden columns."""
    return frame.where(F.col(REASON).isNull()).drop(*HIDDEN)
