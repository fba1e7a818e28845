"""Avro with a schema from a file: plain, or with a schema registry in the Confluent wire format."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from pyspark.sql.types import StructType

from tailrace.config import Registry, Sink, Source
from tailrace.stages.formats import avro
from tailrace.stages.formats.arrow import Decoder
from tailrace.stages.formats.avro_schema import AvroSchema, misfits, read_avro, spark_schema
from tailrace.stages.formats.base import Encoder, SinkFormat, SourceFormat, invalid, row_schema
from tailrace.stages.formats.registry import registry


@dataclass(frozen=True)
class AvroSource(SourceFormat):
    """Avro records, read with the schema that the function is written for."""

    misfit = avro.NOT_AVRO
    schema: AvroSchema
    fields: StructType
    registry: Registry | None = field(repr=False)  # passwords

    @classmethod
    def of(cls, source: Source, folder: Path, *, jvm: bool) -> AvroSource:
        """Read the schema, and check that the registry's settings are valid."""
        schema = read_avro(source.schema_ or "", folder)
        fields = spark_schema(schema.expanded)
        if source.registry is not None:
            registry(source.registry)
        return cls(schema, fields, source.registry)

    def decoder(self) -> Decoder:
        """Return fastavro's reader, with checks."""
        return avro.decoder(self.schema, self.registry)


@dataclass(frozen=True)
class AvroSink(SinkFormat):
    """Avro records, with the schema's id in front of each if there is a registry."""

    schema: AvroSchema
    file: str
    topic: str | None
    registry: Registry | None = field(repr=False)  # passwords
    schema_id: int | None = None

    @classmethod
    def of(cls, sink: Sink, folder: Path) -> AvroSink:
        """Read the schema; raise SchemaInvalid if Spark has no columns for it."""
        schema = read_avro(sink.schema_ or "", folder)
        spark_schema(schema.expanded)
        if sink.registry is not None and sink.topic is None:
            raise invalid("a registry keeps a schema per topic, but `sink.topic` is not set", "set `sink.topic`")
        return cls(schema, sink.schema_ or "", sink.topic, sink.registry)

    def check(self, values: StructType) -> None:
        """Raise SinkColumnsInvalid if the types do not fit the schema's."""
        unfit = list(misfits(row_schema(values), self.schema.expanded))
        if unfit:
            raise invalid(
                f"they do not fit {self.file}: {'; '.join(unfit)}", "cast, add or drop columns, or fix the schema"
            )

    def prepared(self) -> Self:
        """Register the schema for the topic, unless it is."""
        if self.registry is None:
            return self
        return replace(self, schema_id=registry(self.registry).identify(f"{self.topic}-value", self.schema.text))

    def encoder(self) -> Encoder:
        """Return fastavro's writer, with checks."""
        return avro.encoder(self.schema, self.schema_id)
