"""JSON: read with a Spark schema or a pydantic model, written as Spark's `to_json` writes it.

With a Spark schema the values of a pipeline with the JVM never leave it, unless it has a DECIMAL or a DATE: Spark's
parser rounds the one and cuts the other, so Python reads those. A pydantic model validates in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DateType, DecimalType, StructType

from tailrace.config import Sink, Source
from tailrace.stages.formats import json_arrow, json_model, json_records, json_schema
from tailrace.stages.formats.arrow import Decoder, Read
from tailrace.stages.formats.base import Encoder, SinkFormat, SourceFormat, Write, body, body_of, invalid
from tailrace.stages.formats.ddl import struct_of
from tailrace.stages.formats.json_values import leaves
from tailrace.stages.formats.json_write import NoJson, texts
from tailrace.stages.spark_text import first_line

# Microseconds, and the offset from UTC: Spark's default stops at milliseconds.
OPTIONS: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_VERDICT = "_verdict"


@dataclass(frozen=True)
class JsonSource(SourceFormat):
    """JSON objects with the fields of a Spark schema."""

    misfit = json_schema.WRONG_TYPE
    fields: StructType
    zone: str = "UTC"  # of timestamps without a time zone

    @classmethod
    def of(cls, source: Source, folder: Path, *, jvm: bool) -> SourceFormat:
        """Read the schema: a DDL string, a .json file or a model, which has a class of its own."""
        reference = source.schema_ or ""
        fields = json_schema.read(reference, folder, StructType.fromDDL if jvm else struct_of)
        return cls(fields) if fields is not None else ModelSource.of(source, folder, jvm=jvm)

    def decoder(self) -> Decoder:
        """Return Python's decoder, which agrees with Spark's parser."""
        return json_records.decoder(self.fields, self.zone)

    def reader(self) -> Read:
        """Return Arrow's parser where it agrees with the decoder, which reads the others."""
        return json_arrow.reader(self.fields, to_arrow_schema(self.fields, timezone="UTC"), self.zone)

    def frame(self, prepared: DataFrame, value: str, verdict: tuple[str, str]) -> DataFrame:
        """Return what Spark's parser reads; or Python's, for types that Spark's does not read exactly."""
        if any(isinstance(kind, DecimalType | DateType) for kind in leaves(self.fields)):
            zone = prepared.sparkSession.conf.get("spark.sql.session.timeZone") or self.zone
            return super(JsonSource, replace(self, zone=zone)).frame(prepared, value, verdict)
        fields, others = self.fields, prepared.columns
        parsed = prepared.select(*others, *json_schema.parsed(fields, F.col(value)))
        judged = parsed.select(*others, json_schema.ROW, json_schema.verdict(fields, F.col(value)).alias(_VERDICT))
        row, found = F.col(json_schema.ROW), F.col(_VERDICT)
        return judged.select(
            *(row.getField(name).alias(name) for name in fields.names),
            *others,
            *(found[part].alias(name) for part, name in zip(("reason", "detail"), verdict, strict=True)),
        )


@dataclass(frozen=True)
class ModelSource(SourceFormat):
    """JSON objects that a pydantic model accepts."""

    misfit = json_model.MISFIT
    model: json_model.Model
    fields: StructType

    @classmethod
    def of(cls, source: Source, folder: Path, *, jvm: bool) -> ModelSource:
        """Load the model."""
        model = json_model.read_model(source.schema_ or "", folder)
        return cls(model, json_model.schema_of(json_model.load_model(model)))

    def decoder(self) -> Decoder:
        """Return the model's validation."""
        return json_model.decoder(self.model)


class JsonSink(SinkFormat):
    """JSON objects with a field for each column, null fields included."""

    @classmethod
    def of(cls, sink: Sink, folder: Path) -> JsonSink:
        """Read no schema."""
        return cls()

    def check(self, values: StructType) -> None:
        """Accept any columns: a type without a form in JSON is found when it is written."""

    def encoder(self) -> Encoder:
        """Return the function that writes a single row."""
        write = self.writer()

        def encode(row: dict[str, Any]) -> bytes:
            value: bytes = write(pa.RecordBatch.from_pylist([row]))[0][0].as_py()
            return value

        return encode

    def writer(self) -> Write:
        """Return the function that writes all rows at once."""

        def write(values: pa.RecordBatch) -> tuple[pa.Array, None]:
            try:
                return texts(body_of(values)).cast(pa.binary()), None
            except NoJson as error:
                raise invalid(str(error)) from None

        return write

    def frame(
        self, rows: DataFrame, address: list[Column], names: Sequence[str], verdict: tuple[str, str]
    ) -> DataFrame:
        """Return what Spark's `to_json` writes."""
        good = [F.lit(None).cast("string").alias(name) for name in verdict]
        try:
            return rows.select(*address, F.to_json(body(rows, names), OPTIONS).cast("binary").alias("value"), *good)
        except PySparkException as error:
            raise invalid(f"JSON has no form for them: {first_line(error)}") from None
