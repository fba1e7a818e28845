"""Decode records to Arrow columns, a batch at a time, so that a bad record affects no other.

Columns that a stage only passes on stay the Arrow arrays that Spark sent. The others are built from lists, all rows at
once; only if Arrow refuses a list are its rows tried one by one, to find those that do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

Batches = Iterator[pa.RecordBatch]
# One record's bytes to its fields by name; raises Misfit.
Decoder = Callable[[bytes], dict[str, Any]]

NO_VALUE = "no value"


class Misfit(Exception):
    """Raised for a record that cannot be decoded or encoded, with the reason."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


@dataclass
class Verdicts:
    """The reason and the detail of each row of a batch; null for a good one."""

    reasons: list[str | None]
    details: list[str | None]

    @classmethod
    def good(cls, rows: int) -> Verdicts:
        """Make verdicts in which no row has a reason yet."""
        return cls([None] * rows, [None] * rows)

    def reject(self, row: int, why: Misfit) -> None:
        """Mark a row as rejected; what UTF-8 cannot hold becomes a question mark."""
        self.reasons[row], self.details[row] = _text(why.reason), _text(why.detail)

    def refused(self) -> dict[int, tuple[str, str]]:
        """Return the reason and detail of each row that is rejected, by the row's number."""
        both = zip(self.reasons, self.details, strict=True)
        return {row: (reason, detail or "") for row, (reason, detail) in enumerate(both) if reason is not None}

    def columns(self) -> list[pa.Array]:
        """Return both columns."""
        return [pa.array(self.reasons, pa.string()), pa.array(self.details, pa.string())]


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


# A column of values to the fields' columns and a verdict on each row.
Read = Callable[[pa.Array], tuple[list[pa.Array], Verdicts]]


def decode_batches(batches: Batches, schema: StructType, read: Read, value: str) -> Iterator[pa.RecordBatch]:
    """Yield each batch as the fields decoded from the column `value`, the original columns, then reason and detail."""
    wanted = to_arrow_schema(schema, timezone="UTC")
    for batch in batches:
        arrays, verdicts = read(batch.column(value))
        handed_on = [batch.schema.field(index) for index in range(batch.num_columns)]
        names = pa.schema([*wanted, *handed_on, pa.field("_reason", pa.string()), pa.field("_detail", pa.string())])
        yield pa.RecordBatch.from_arrays([*arrays, *batch.columns, *verdicts.columns()], schema=names)


def decode_values(
    values: Sequence[bytes | None], wanted: pa.Schema, decoder: Decoder, misfit: str
) -> tuple[list[pa.Array], Verdicts]:
    """Decode each value; return the fields' columns, null for rejected records, and the verdicts."""
    blank = dict.fromkeys(wanted.names)
    verdicts = Verdicts.good(len(values))
    rows: list[dict[str, Any]] = []
    for number, record in enumerate(values):
        try:
            if record is None:
                raise Misfit(NO_VALUE, "the record has a key and no value")
            rows.append(decoder(record))
        except Misfit as why:
            verdicts.reject(number, why)
            rows.append(blank)
    return [_column(rows, field, verdicts, misfit) for field in wanted], verdicts


def _column(rows: Sequence[dict[str, Any]], field: pa.Field, verdicts: Verdicts, misfit: str) -> pa.Array:
    values = [row[field.name] for row in rows]
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        for number, each in enumerate(values):
            try:
                pa.array([each], field.type)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                values[number] = None
                verdicts.reject(number, Misfit(misfit, f"{field.name}: {error}"))
        return pa.array(values, field.type)


def rows_of(column: pa.StructArray) -> list[dict[str, Any] | None]:
    """Return a struct column's rows as dicts; None where the struct is null."""
    if column.null_count:
        return list(column.to_pylist())
    names = [field.name for field in column.type]
    lists = [each.to_pylist() for each in column.flatten()]
    return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]
