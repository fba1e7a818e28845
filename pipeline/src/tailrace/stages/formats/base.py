"""What a format is: a class that reads a record's value, or a class that writes it.

An object of it is made where the pipeline starts; there it checks its settings and reads its schema. It is then pickled
to the workers, where it reads or writes. `tailrace.stages.formats.known` lists those that come with Tailrace; any other
is named in the configuration, as `package.module:Class`.
"""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Self

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from tailrace.config import Sink, Source
from tailrace.errors import SinkColumnsInvalid
from tailrace.stages.formats import KEPT
from tailrace.stages.formats.arrow import (
    NOT_UTF8,
    Batches,
    Decoder,
    Misfit,
    Read,
    Unheld,
    Verdicts,
    decode_batches,
    decode_values,
    rows_of,
)
from tailrace.stages.spark_text import quoted

# A row's fields to one record's bytes; raises Misfit.
Encoder = Callable[[dict[str, Any]], bytes]
# The columns of the rows to a column of bytes, and a verdict on each row unless all are good.
Write = Callable[[pa.RecordBatch], tuple[pa.Array, Verdicts | None]]

BODY = "_row"
TIME_OUT_OF_RANGE = "time out of range"


class SourceFormat(ABC):
    """Reads values. A record whose value cannot be read is rejected, with the reason that Misfit gives."""

    misfit: ClassVar[str]  # the reason of a value that was read and does not fit the type of its field
    may_reject: ClassVar[bool] = True  # whether there are values that it cannot read
    fields: StructType | None  # of a value; None if the value is passed on as it is

    @classmethod
    @abstractmethod
    def of(cls, source: Source, folder: Path, *, jvm: bool) -> SourceFormat:
        """Check the settings and read the schema; relative paths start from `folder`.

        Without the JVM, no function of Spark may be called.
        """

    @abstractmethod
    def decoder(self) -> Decoder:
        """Return the function that reads one value; called in a worker."""

    def reader(self) -> Read:
        """Return the function that reads a column of values; called in a worker."""
        wanted, decode = to_arrow_schema(self._fields(), timezone="UTC"), self.decoder()
        return lambda values: decode_values(values.to_pylist(), wanted, decode, self.misfit)

    def frame(self, prepared: DataFrame, value: str, verdict: tuple[str, str]) -> DataFrame:
        """Return the fields of the column `value`, the columns of `prepared`, then the verdict: reason and detail."""
        fields = self._fields()

        def task(batches: Batches) -> Batches:
            return decode_batches(batches, fields, self.reader(), value)

        added = [StructField(name, StringType()) for name in verdict]
        return prepared.mapInArrow(task, StructType([*fields.fields, *prepared.schema.fields, *added]))

    def _fields(self) -> StructType:
        return self.fields or StructType([])


class SinkFormat(ABC):
    """Writes values. A row that cannot be written is rejected, with the reason that Misfit gives."""

    @classmethod
    @abstractmethod
    def of(cls, sink: Sink, folder: Path) -> SinkFormat:
        """Check the settings and read the schema; relative paths start from `folder`."""

    @abstractmethod
    def check(self, values: StructType) -> None:
        """Raise SinkColumnsInvalid (`invalid`) if rows with these columns can never be written."""

    @abstractmethod
    def encoder(self) -> Encoder:
        """Return the function that writes one row; called in a worker."""

    def prepared(self) -> Self:
        """Do what must be done once before the first row is written; return the format that writes it."""
        return self

    def writer(self) -> Write:
        """Return the function that writes rows; called in a worker."""
        encode = self.encoder()
        return lambda values: written(body_of(values), encode)

    def frame(
        self, rows: DataFrame, address: list[Column], names: Sequence[str], verdict: tuple[str, str]
    ) -> DataFrame:
        """Return the address, the column `value`, then the verdict: reason and detail; `names` make up the value."""
        addressed = rows.select(*address, body(rows, names).alias(BODY))
        kept = [field for field in addressed.schema if field.name != BODY]
        reasons = [StructField(name, StringType()) for name in verdict]

        def task(batches: Batches) -> Batches:
            encode = self.encoder()
            for batch in batches:
                place = batch.schema.get_field_index(BODY)
                values, verdicts = written(batch.column(place), encode)
                others = [index for index in range(batch.num_columns) if index != place]
                yield pa.RecordBatch.from_arrays(
                    [*(batch.column(index) for index in others), values, *verdicts.columns()],
                    names=[*(batch.schema.names[index] for index in others), "value", *verdict],
                )

        return addressed.mapInArrow(task, StructType([*kept, StructField("value", BinaryType()), *reasons]))


def body(rows: DataFrame, names: Sequence[str]) -> Column:
    """Return the row to be written: the struct `value` if it is the only column, or all columns."""
    if list(names) == ["value"] and isinstance(rows.schema["value"].dataType, StructType):
        return F.col("value")
    return F.struct(*(F.col(quoted(name)) for name in names))


def body_of(values: pa.RecordBatch) -> pa.StructArray:
    """Return the same of Arrow columns."""
    if values.schema.names == ["value"] and pt.is_struct(values.column(0).type):
        return values.column(0)
    return pa.StructArray.from_arrays(values.columns, fields=list(values.schema))


def row_schema(values: StructType) -> StructType:
    """Return the fields of the row to be written."""
    alone = values[0].dataType if values.names == ["value"] else None
    return alone if isinstance(alone, StructType) else values


def written(rows: pa.StructArray, encode: Encoder) -> tuple[pa.Array, Verdicts]:
    """Write each row; a row that does not fit is written as JSON and gets a reason."""
    verdicts = Verdicts.good(len(rows))
    values: list[bytes | None] = []
    for number, found in enumerate(rows_of(rows)):
        row = found.row if isinstance(found, Unheld) else found
        try:
            if isinstance(found, Unheld):
                raise _unheld(found)
            values.append(None if row is None else encode(row))
        except Misfit as why:
            verdicts.reject(number, why)
            values.append(json.dumps(row, default=_as_json).encode("utf-8", "surrogatepass"))
    return pa.array(values, pa.binary()), verdicts


def _unheld(row: Unheld) -> Misfit:
    if row.texts:
        return Misfit(NOT_UTF8, f"bytes that are not UTF-8: {', '.join(row.texts)}")
    return Misfit(TIME_OUT_OF_RANGE, f"outside the years 1 to 9999: {', '.join(row.times)}")


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return str(value) if isinstance(value, Decimal) else value.isoformat()


def invalid(what: str, then: str = "change the columns that the function returns") -> SinkColumnsInvalid:
    """Return the error for columns that cannot be written."""
    return SinkColumnsInvalid(f"the columns that the function returns cannot be written: {what}", kept=KEPT, then=then)


def wrong(schema: StructType, name: str, wanted: str) -> SinkColumnsInvalid:
    """Return the error for a column of the wrong type."""
    return invalid(f"`{name}` is {schema[name].dataType.simpleString()}, not {wanted}", f"cast `{name}` to {wanted}")
