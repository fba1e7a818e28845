"""Decode: turn Kafka's records into rows for the user's function.

Every record becomes one row, whatever its bytes: with its fields, or with a reason and the original bytes. Raw bytes
and JSON with a Spark schema never leave the JVM; Avro and pydantic models are decoded in Python, on Arrow batches.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

from tailrace.config import Format, Source
from tailrace.errors import SchemaInvalid
from tailrace.stages.formats import avro, json_model, json_schema
from tailrace.stages.formats.arrow import Batches, Decoder, decode_batches
from tailrace.stages.formats.avro_schema import KEPT, read_avro, spark_schema
from tailrace.stages.formats.registry import registry as check
from tailrace.stages.rows import DETAIL, HIDDEN, KAFKA, REASON, VALUE

RECORD = ("key", "topic", "partition", "offset", "timestamp", "headers")


def decode(records: DataFrame, source: Source, folder: Path) -> DataFrame:
    """Return decoded fields, the struct `kafka` and the hidden columns of rows.py; paths are relative to `folder`."""
    prepared = records.select(F.struct(*RECORD).alias(KAFKA), F.col("value").alias(VALUE))
    reference = source.schema_ or ""
    match source.format:
        case Format.RAW:
            good = F.lit(None).cast("string")
            return prepared.select(F.col(VALUE).alias("value"), KAFKA, VALUE, good.alias(REASON), good.alias(DETAIL))
        case Format.JSON:
            fields = json_schema.read(reference, folder)
            if fields is not None:
                return _in_spark(prepared, checked(fields))
            model = json_model.read_model(reference, folder)
            fields = checked(json_model.schema_of(json_model.load_model(model)))
            return _in_python(prepared, fields, lambda: json_model.decoder(model), json_model.MISFIT)
        case Format.AVRO:
            written, registry = read_avro(reference, folder), source.registry
            fields = checked(spark_schema(written.expanded))
            if registry is not None:
                check(registry)
            return _in_python(prepared, fields, lambda: avro.decoder(written, registry), avro.NOT_AVRO)


def _in_spark(prepared: DataFrame, fields: StructType) -> DataFrame:
    parsed = prepared.select(KAFKA, VALUE, *json_schema.parsed(fields, F.col(VALUE)))
    judged = parsed.select(KAFKA, VALUE, json_schema.ROW, json_schema.verdict(fields, F.col(VALUE)).alias("_verdict"))
    row, verdict = F.col(json_schema.ROW), F.col("_verdict")
    return judged.select(
        *(row.getField(name).alias(name) for name in fields.names),
        KAFKA,
        VALUE,
        verdict["reason"].alias(REASON),
        verdict["detail"].alias(DETAIL),
    )


def _in_python(prepared: DataFrame, fields: StructType, decoder: Callable[[], Decoder], misfit: str) -> DataFrame:
    def task(batches: Batches) -> Batches:
        return decode_batches(batches, fields, decoder(), VALUE, misfit)

    verdict = [StructField(REASON, StringType()), StructField(DETAIL, StringType())]
    return prepared.mapInArrow(task, StructType([*fields.fields, *prepared.schema.fields, *verdict]))


def checked(schema: StructType) -> StructType:
    """Return the schema if its names are free; some are reserved, and Spark ignores the case of names."""
    known: set[str] = set()
    for name in schema.names:
        if name.lower() == KAFKA or name.lower().startswith(HIDDEN):
            raise SchemaInvalid(
                f"the schema has a field {name!r}; `{KAFKA}` and names beginning with {', '.join(HIDDEN)} are reserved",
                kept=KEPT,
                then="give the field another name",
            )
        if name.lower() in known:
            raise SchemaInvalid(f"the schema has the field {name!r} twice, ignoring case", kept=KEPT)
        known.add(name.lower())
    if not known:
        raise SchemaInvalid("the schema has no fields", kept=KEPT, then="name at least one field")
    return schema
