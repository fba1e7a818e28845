"""Encode: turn the function's rows into rows for the sink.

A column named key, headers, topic, partition or timestamp addresses the record; all others make up its value. The
column types are checked before anything runs; a row that still cannot be written goes to the rejected topic with its
reason and as much of its value as there is.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from tailrace.config import Sink
from tailrace.kafka.rejected_headers import HEADER_SINK_TOPIC, NUL_IN_HEADER
from tailrace.stages.formats.base import SinkFormat, invalid, wrong
from tailrace.stages.formats.json_format import OPTIONS as JSON_OPTIONS
from tailrace.stages.formats.known import sink_format
from tailrace.stages.rows import DETAIL, HEADERS, KAFKA, REASON, ROW, header, reasons, with_headers

ADDRESS = ("topic", "partition", "key", "headers", "timestamp")
STAGE = "encode"

NO_TOPIC = "no topic"
BAD_PARTITION = "negative partition"
BAD_TIMESTAMP = "negative timestamp"
BAD_HEADER = "header without a key"

_ORIGIN = {"topic", "partition", "offset", "timestamp"}


def encode(frame: DataFrame, sink: Sink, folder: Path) -> DataFrame:
    """Return the columns of rows.ROW; relative paths start from `folder`."""
    format_ = sink_format(sink, folder)
    check_columns(frame.schema, sink, format_)
    encoded = format_.prepared().frame(frame, _addressed(frame, sink), value_names(frame.schema), (REASON, DETAIL))
    return _finished(encoded, headed="headers" in frame.schema.names)


def check_columns(schema: StructType, sink: Sink, format_: SinkFormat) -> None:
    """Raise SinkColumnsInvalid if rows of this schema can never be written to this sink."""
    twice = {name for name in schema.names if schema.names.count(name) > 1}
    if twice:
        raise invalid(f"{', '.join(sorted(twice))} occurs more than once", "give each column its own name")
    if "topic" in schema.names:
        _require(schema, "topic", StringType())
    elif sink.topic is None:
        raise invalid(
            "there is neither `sink.topic` nor a column `topic`", "set `sink.topic`, or return a column `topic`"
        )
    if "key" in schema.names and not isinstance(
        schema["key"].dataType, StringType | BinaryType | StructType | ArrayType | MapType
    ):
        raise wrong(schema, "key", "string, binary or a struct")
    if "headers" in schema.names and _bare(schema["headers"].dataType) != _bare(HEADERS):
        raise wrong(schema, "headers", HEADERS.simpleString())
    if "partition" in schema.names:
        _require(schema, "partition", IntegerType())
    if "timestamp" in schema.names:
        _require(schema, "timestamp", TimestampType())
    values = value_names(schema)
    if not values:
        raise invalid("there is no column for the value", f"return a column besides {', '.join(ADDRESS)} and {KAFKA}")
    format_.check(StructType([schema[name] for name in values]))


def value_names(schema: StructType) -> list[str]:
    """Return the names of the columns that make up the value."""
    return [name for name in schema.names if name not in ADDRESS and not (name == KAFKA and has_origin(schema))]


def has_origin(schema: StructType) -> bool:
    """Return whether the schema still has the struct `kafka` that decode added."""
    kind = schema[KAFKA].dataType if KAFKA in schema.names else None
    return isinstance(kind, StructType) and set(kind.names) >= _ORIGIN


def _addressed(frame: DataFrame, sink: Sink) -> list[Column]:
    """Return the address columns in the sink's types, and the record's origin."""
    there = frame.schema.names

    def column(name: str, kind: DataType) -> Column:
        return F.col(name) if name in there else F.lit(None).cast(kind)

    key = column("key", BinaryType())
    if "key" in there and isinstance(frame.schema["key"].dataType, StructType | ArrayType | MapType):
        key = F.to_json(key, JSON_OPTIONS)
    origin = [F.col(KAFKA)] if has_origin(frame.schema) else []
    return [
        F.coalesce(column("topic", StringType()), F.lit(sink.topic).cast("string")).alias("topic"),
        column("partition", IntegerType()).alias("partition"),
        key.cast("binary").alias("key"),
        column("headers", HEADERS).cast(HEADERS).alias("headers"),
        F.unix_millis(column("timestamp", TimestampType())).alias("timestamp"),
        *origin,
    ]


def _finished(encoded: DataFrame, *, headed: bool) -> DataFrame:
    """Give rows that cannot be addressed a reason, and all rejected rows their headers."""
    # Without a column `headers` no row can have a bad one, but Spark does not know that.
    keyless = F.exists("headers", lambda each: each.isNull() | each["key"].isNull()) if headed else F.lit(False)
    nul = F.exists("headers", lambda each: each["key"].contains("\0")) if headed else F.lit(False)
    reason = (
        F.when(F.col(REASON).isNotNull(), F.col(REASON))
        .when(F.col("topic").isNull(), NO_TOPIC)
        .when(F.col("partition") < 0, BAD_PARTITION)
        .when(F.col("timestamp") < 0, BAD_TIMESTAMP)
        .when(keyless, BAD_HEADER)
        .when(nul, NUL_IN_HEADER)
    )
    judged = encoded.withColumn(REASON, reason)
    origin = F.col(KAFKA) if KAFKA in encoded.columns else None
    with_keys = F.filter("headers", lambda each: each["key"].isNotNull())
    why = [*reasons(F.lit(STAGE), origin), header(HEADER_SINK_TOPIC, F.col("topic"))]
    good = F.col(REASON).isNull()
    made = judged.select(
        F.when(good, F.col("topic")).alias("topic"),
        F.when(good, F.col("partition")).alias("partition"),
        "key",
        "value",
        F.when(good, F.col("headers")).otherwise(with_headers(with_keys, *why)).cast(HEADERS).alias("headers"),
        F.when(good, F.col("timestamp")).alias("timestamp"),
        F.col(REASON).alias("reason"),
    )
    return made.select(*(F.col(each.name).cast(each.dataType).alias(each.name) for each in ROW))


def _bare(kind: DataType) -> str:
    return kind.simpleString()


def _require(schema: StructType, name: str, kind: DataType) -> None:
    if type(schema[name].dataType) is not type(kind):
        raise wrong(schema, name, kind.simpleString())
