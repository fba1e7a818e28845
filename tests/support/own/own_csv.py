"""A source format and a sink format as a package of a user's would have them: CSV, numbers and text only."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from tailrace.config import Sink, Source
from tailrace.errors import SchemaInvalid
from tailrace.stages.formats.arrow import Decoder, Misfit
from tailrace.stages.formats.base import Encoder, SinkFormat, SourceFormat, invalid, row_schema
from tailrace.stages.formats.ddl import struct_of


class CsvSource(SourceFormat):
    """One line of values between commas, in the order of the schema's fields; numbers and text only."""

    misfit = "not csv"

    def __init__(self, fields: StructType) -> None:
        self.fields = fields

    @classmethod
    def of(cls, source: Source, folder: Path, *, jvm: bool) -> CsvSource:
        """Read the schema, which is DDL."""
        fields = struct_of(source.schema_ or "")
        if fields is None:
            raise SchemaInvalid(
                f"the schema {source.schema_!r} has no fields", then="write it as `id long, text string`"
            )
        return cls(fields)

    def decoder(self) -> Decoder:
        """Read a line."""
        names = self.fields.names if self.fields is not None else []
        kinds = [int if each.dataType.simpleString() == "bigint" else str for each in self.fields or []]

        def decode(value: bytes) -> dict[str, Any]:
            try:
                (row,) = csv.reader([value.decode()])
                return {name: kind(each) for name, kind, each in zip(names, kinds, row, strict=True)}
            except ValueError as error:
                raise Misfit(self.misfit, str(error)) from None

        return decode


class CsvSink(SinkFormat):
    """One line of values between commas; a text with a semicolon is refused."""

    @classmethod
    def of(cls, sink: Sink, folder: Path) -> CsvSink:
        """Read no schema."""
        return cls()

    def check(self, values: StructType) -> None:
        """Accept numbers and text."""
        found = [each.name for each in row_schema(values) if each.dataType.simpleString() not in ("bigint", "string")]
        if found:
            raise invalid(f"CSV has no form for {', '.join(found)}")

    def encoder(self) -> Encoder:
        """Write a line."""

        def encode(row: dict[str, Any]) -> bytes:
            if any(isinstance(each, str) and ";" in each for each in row.values()):
                raise Misfit("semicolon", "a text has a semicolon")
            line = StringIO()
            csv.writer(line, lineterminator="").writerow(row.values())
            return line.getvalue().encode()

        return encode
