"""Encode: turn the function's rows into rows for the sink.

A column named key, headers, topic, partition or timestamp addresses the record; all others make up its value. The
column types are checked before anything runs; a row that still cannot be written goes to the rejected topic with its
reason and as much of its value as there is.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tailrace.config import Format, Sink
from tailrace.errors import SinkColumnsInvalid
from tailrace.kafka.rejected_headers import HEADER_SINK_TOPIC
from tailrace.stages.formats import avro
from tailrace.stages.formats.arrow import Batches, Misfit, Verdicts, rows_of
from tailrace.stages.formats.avro_schema import KEPT, AvroSchema, misfits, read_avro, spark_schema
from tailrace.stages.formats.registry import registry
from tailrace.stages.rows import DETAIL, HEADERS, KAFKA, REASON, ROW, header, reasons, with_headers

ADDRESS = ("topic", "partition", "key", "headers", "timestamp")
STAGE = "encode"

NO_TOPIC = "no topic"
BAD_PARTITION = "negative partition"
BAD_TIMESTAMP = "negative timestamp"
BAD_HEADER = "header without a key"

_BODY = "_row"
# Microseconds, and the offset from UTC: Spark's default stops at milliseconds.
_JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_ORIGIN = {"topic", "partition", "offset", "timestamp"}


def encode(frame: DataFrame, sink: Sink, folder: Path) -> DataFrame:
    """Return the columns of rows.ROW; relative paths start from `folder`."""
    columns(frame.schema, sink)
    names = value_names(frame.schema)
    addressed = _addressed(frame, sink)
    unjudged = [F.lit(None).cast("string").alias(REASON), F.lit(None).cast("string").alias(DETAIL)]
    match sink.format:
        case Format.RAW:
            encoded = frame.select(*addressed, F.col("value").cast("binary").alias("value"), *unjudged)
        case Format.JSON:
            try:
                text = F.to_json(_body(frame, names), _JSON_OPTIONS).cast("binary")
                encoded = frame.select(*addressed, text.alias("value"), *unjudged)
            except PySparkException as error:
                raise invalid(f"JSON has no form for them: {str(error).splitlines()[0]}") from None
        case Format.AVRO:
            encoded = _avro(frame.select(*addressed, _body(frame, names).alias(_BODY)), sink, folder)
    return _finished(encoded, headed="headers" in frame.schema.names)


def columns(schema: StructType, sink: Sink) -> None:
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
        raise _wrong(schema, "key", "string, binary or a struct")
    if "headers" in schema.names and _bare(schema["headers"].dataType) != _bare(HEADERS):
        raise _wrong(schema, "headers", HEADERS.simpleString())
    if "partition" in schema.names:
        _require(schema, "partition", IntegerType())
    if "timestamp" in schema.names:
        _require(schema, "timestamp", TimestampType())
    values = value_names(schema)
    if not values:
        raise invalid("there is no column for the value", f"return a column besides {', '.join(ADDRESS)} and {KAFKA}")
    if sink.format is Format.RAW and values != ["value"]:
        raise invalid(
            f"format raw writes one column `value`, but there are {', '.join(values)}", "select the value, or use json"
        )
    if sink.format is Format.RAW and not isinstance(schema["value"].dataType, StringType | BinaryType):
        raise _wrong(schema, "value", "string or binary")
    if sink.registry is not None and sink.topic is None:
        raise invalid("a registry keeps a schema per topic, but `sink.topic` is not set", "set `sink.topic`")


def value_names(schema: StructType) -> list[str]:
    """Return the names of the columns that make up the value."""
    return [name for name in schema.names if name not in ADDRESS and not (name == KAFKA and has_origin(schema))]


def has_origin(schema: StructType) -> bool:
    """Return whether the schema still has the struct `kafka` that decode added."""
    kind = schema[KAFKA].dataType if KAFKA in schema.names else None
    return isinstance(kind, StructType) and set(kind.names) >= _ORIGIN


def row_schema(schema: StructType) -> StructType:
    """Return the fields of the value: those of a struct `value` if it is the only column, or all value columns."""
    names = value_names(schema)
    alone = schema["value"].dataType if names == ["value"] else None
    return alone if isinstance(alone, StructType) else StructType([schema[name] for name in names])


def _body(frame: DataFrame, names: list[str]) -> Column:
    alone = names == ["value"] and isinstance(frame.schema["value"].dataType, StructType)
    return F.col("value") if alone else F.struct(*(F.col(_quoted(name)) for name in names))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _addressed(frame: DataFrame, sink: Sink) -> list[Column]:
    """Return the address columns in the sink's types, and the record's origin."""
    there = frame.schema.names

    def column(name: str, kind: DataType) -> Column:
        return F.col(name) if name in there else F.lit(None).cast(kind)

    key = column("key", BinaryType())
    if "key" in there and isinstance(frame.schema["key"].dataType, StructType | ArrayType | MapType):
        key = F.to_json(key, _JSON_OPTIONS)
    origin = [F.col(KAFKA)] if has_origin(frame.schema) else []
    return [
        F.coalesce(column("topic", StringType()), F.lit(sink.topic).cast("string")).alias("topic"),
        column("partition", IntegerType()).alias("partition"),
        key.cast("binary").alias("key"),
        column("headers", HEADERS).cast(HEADERS).alias("headers"),
        F.unix_millis(column("timestamp", TimestampType())).alias("timestamp"),
        *origin,
    ]


def _avro(prepared: DataFrame, sink: Sink, folder: Path) -> DataFrame:
    schema = sink_schema(sink, folder)
    fits(prepared.schema[_BODY].dataType, schema, sink)
    schema_id = registered(schema, sink)
    kept = [field for field in prepared.schema if field.name != _BODY]
    added = [StructField("value", BinaryType()), StructField(REASON, StringType()), StructField(DETAIL, StringType())]
    return prepared.mapInArrow(_writing(schema, schema_id), StructType([*kept, *added]))


def sink_schema(sink: Sink, folder: Path) -> AvroSchema:
    """Read the sink's Avro schema; raise SchemaInvalid if Spark has no columns for it."""
    schema = read_avro(sink.schema_ or "", folder)
    spark_schema(schema.expanded)
    return schema


def fits(row: DataType, schema: AvroSchema, sink: Sink) -> None:
    """Raise SinkColumnsInvalid if rows of this type cannot be written with the schema."""
    wrong = list(misfits(row, schema.expanded))
    if wrong:
        raise invalid(
            f"they do not fit {sink.schema_}: {'; '.join(wrong)}", "cast, add or drop columns, or fix the schema"
        )


def registered(schema: AvroSchema, sink: Sink) -> int | None:
    """Register the schema for the sink's topic; return its id, or None without a registry."""
    if sink.registry is None:
        return None
    return registry(sink.registry).identify(f"{sink.topic}-value", schema.text)


def _writing(schema: AvroSchema, schema_id: int | None) -> Callable[[Batches], Batches]:
    def task(batches: Batches) -> Batches:
        write = avro.encoder(schema, schema_id)
        for batch in batches:
            place = batch.schema.get_field_index(_BODY)
            values, verdicts = written(rows_of(batch.column(place)), write)
            kept = [index for index in range(batch.num_columns) if index != place]
            yield pa.RecordBatch.from_arrays(
                [*(batch.column(index) for index in kept), values, *verdicts.columns()],
                names=[*(batch.schema.names[index] for index in kept), "value", REASON, DETAIL],
            )

    return task


def written(
    rows: Sequence[dict[str, Any] | None], write: Callable[[dict[str, Any]], bytes]
) -> tuple[pa.Array, Verdicts]:
    """Write each row; a row that does not fit is written as JSON and gets a reason."""
    verdicts = Verdicts.good(len(rows))
    values: list[bytes | None] = []
    for number, row in enumerate(rows):
        try:
            values.append(None if row is None else write(row))
        except Misfit as why:
            verdicts.reject(number, why)
            values.append(json.dumps(row, default=_as_json).encode("utf-8", "surrogatepass"))
    return pa.array(values, pa.binary()), verdicts


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return str(value) if isinstance(value, Decimal) else value.isoformat()


def _finished(encoded: DataFrame, *, headed: bool) -> DataFrame:
    """Give rows that cannot be addressed a reason, and all rejected rows their headers."""
    # Without a column `headers` no row can have a bad one, but Spark does not know that.
    keyless = F.exists("headers", lambda each: each.isNull() | each["key"].isNull()) if headed else F.lit(False)
    reason = (
        F.when(F.col(REASON).isNotNull(), F.col(REASON))
        .when(F.col("topic").isNull(), NO_TOPIC)
        .when(F.col("partition") < 0, BAD_PARTITION)
        .when(F.col("timestamp") < 0, BAD_TIMESTAMP)
        .when(keyless, BAD_HEADER)
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
        raise _wrong(schema, name, kind.simpleString())


def _wrong(schema: StructType, name: str, wanted: str) -> SinkColumnsInvalid:
    return invalid(f"`{name}` is {schema[name].dataType.simpleString()}, not {wanted}", f"cast `{name}` to {wanted}")


def invalid(what: str, then: str = "change the columns that the function returns") -> SinkColumnsInvalid:
    """Return the error for columns that cannot be written."""
    return SinkColumnsInvalid(f"the columns that the function returns cannot be written: {what}", kept=KEPT, then=then)
