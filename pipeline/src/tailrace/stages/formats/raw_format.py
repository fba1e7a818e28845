"""Raw bytes: a value that is passed on as it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, StringType, StructType

from tailrace.config import Sink, Source
from tailrace.stages.formats.arrow import Decoder
from tailrace.stages.formats.base import Encoder, SinkFormat, SourceFormat, Write, invalid, wrong


class RawSource(SourceFormat):
    """The bytes as they are: no value is rejected."""

    misfit = ""
    may_reject = False
    fields = None

    @classmethod
    def of(cls, source: Source, folder: Path, *, jvm: bool) -> RawSource:
        """Read no schema."""
        return cls()

    def decoder(self) -> Decoder:
        """Return the value."""
        return lambda value: {"value": value}

    def frame(self, prepared: DataFrame, value: str, verdict: tuple[str, str]) -> DataFrame:
        """Return the value under its own name; the bytes do not leave the JVM."""
        good = [F.lit(None).cast("string").alias(name) for name in verdict]
        return prepared.select(F.col(value).alias("value"), *prepared.columns, *good)


class RawSink(SinkFormat):
    """The bytes or the text of one column `value`."""

    @classmethod
    def of(cls, sink: Sink, folder: Path) -> RawSink:
        """Read no schema."""
        return cls()

    def check(self, values: StructType) -> None:
        """Raise SinkColumnsInvalid unless `value` is the only column, and text or bytes."""
        if values.names != ["value"]:
            raise invalid(
                f"format raw writes one column `value`, but there are {', '.join(values.names)}",
                "select the value, or use json",
            )
        if not isinstance(values["value"].dataType, StringType | BinaryType):
            raise wrong(values, "value", "string or binary")

    def encoder(self) -> Encoder:
        """Return the function that returns the value as bytes."""

        def encode(row: dict[str, Any]) -> bytes:
            value: bytes | str = row["value"]
            return value.encode() if isinstance(value, str) else value

        return encode

    def writer(self) -> Write:
        """Return the column as it is."""
        return lambda values: (values.column(0).cast(pa.binary()), None)

    def frame(
        self, rows: DataFrame, address: list[Column], names: Sequence[str], verdict: tuple[str, str]
    ) -> DataFrame:
        """Return the value as bytes, without leaving the JVM."""
        good = [F.lit(None).cast("string").alias(name) for name in verdict]
        return rows.select(*address, F.col("value").cast("binary").alias("value"), *good)
