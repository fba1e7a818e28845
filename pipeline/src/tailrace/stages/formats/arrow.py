"""Decode records to Arrow columns, a batch at a time, so that a bad record affects no other.

Columns that a stage only passes on stay the Arrow arrays that Spark sent. The others are built from lists, all rows at
once; only if Arrow refuses a list are its rows tried one by one, to find those that do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Context, Decimal, Inexact
from itertools import chain
from numbers import Real
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

Batches = Iterator[pa.RecordBatch]
# One record's bytes to its fields by name; raises Misfit.
Decoder = Callable[[bytes], dict[str, Any]]

# Whether Arrow would cut one of these values.
Cut = Callable[[Sequence[Any]], bool]

NO_VALUE = "no value"
NOT_UTF8 = "not utf-8"
_REFUSED = (pa.ArrowException, ValueError, TypeError, OverflowError)
# 38 digits, up to 38 of them after the point; zeros at the end may be dropped.
_DIGITS = Context(prec=38, Emin=-1, Emax=37, traps=[Inexact])
_WHOLE = frozenset({int, type(None), date, datetime})  # the usual types, none of which has a fraction


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
    """Yield each batch as the fields decoded from the column `value`, the original columns, then reason and detail.

    Rejected records have zeros in NOT NULL fields. Spark reads those without looking for nulls, and it keeps in the
    checkpoint whether a key of a state may be null.
    """
    wanted = to_arrow_schema(schema, timezone="UTC")
    for batch in batches:
        arrays, verdicts = read(batch.column(value))
        handed_on = [batch.schema.field(index) for index in range(batch.num_columns)]
        names = pa.schema([*wanted, *handed_on, pa.field("_reason", pa.string()), pa.field("_detail", pa.string())])
        arrays = [each if field.nullable else _without_nulls(each) for each, field in zip(arrays, wanted, strict=True)]
        yield pa.RecordBatch.from_arrays([*arrays, *batch.columns, *verdicts.columns()], schema=names)


def _without_nulls(column: pa.Array) -> pa.Array:
    if not column.null_count:
        return column
    places = np.arange(len(column))
    places[column.is_null().to_numpy(zero_copy_only=False)] = len(column)
    return pa.concat_arrays([column, pa.array([_zero(column.type)], column.type)]).take(pa.array(places))


def _zero(kind: pa.DataType) -> Any:
    """Return a value of a type, as Python has it."""
    if pt.is_struct(kind):
        return {kind.field(index).name: _zero(kind.field(index).type) for index in range(kind.num_fields)}
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_map(kind):
        return []
    if pt.is_string(kind) or pt.is_large_string(kind):
        return ""
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return b""
    if pt.is_boolean(kind):
        return False
    return Decimal(0) if pt.is_decimal(kind) else 0


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
    values, cut = [row[field.name] for row in rows], _cut(field.type)
    if _has_decimal(field.type):
        for number, each in enumerate(values):
            try:
                values[number] = _with_arrows_digits(each)
            except ValueError as error:
                values[number] = None
                verdicts.reject(number, Misfit(misfit, f"{field.name}: {error}"))
    try:
        found = pa.array(values, field.type)
    except _REFUSED:
        found = None
    if found is not None and not (cut is not None and cut(values)):
        return found
    for number, each in enumerate(values):
        try:
            pa.array([each], field.type)
            if cut is not None and cut([each]):
                raise ValueError(f"{each!r} has a fraction, which {field.type} cuts off")
        except _REFUSED as error:
            if isinstance(error, MemoryError):  # says something of the worker, not of the value
                raise
            values[number] = None
            verdicts.reject(number, Misfit(misfit, f"{field.name}: {error}"))
    return pa.array(values, field.type)


def _has_decimal(kind: pa.DataType) -> bool:
    return pt.is_decimal(kind) or any(_has_decimal(kind.field(index).type) for index in range(kind.num_fields))


def _with_arrows_digits(value: Any) -> Any:
    """Return the value with its decimals as Arrow can read them; raise ValueError if one has too many digits.

    Arrow wraps around with more than 38 digits, and reads beyond its table of powers of ten for 1E-99999999.
    """
    if isinstance(value, Decimal):
        try:
            return _DIGITS.plus(value)
        except Inexact:
            raise ValueError(f"{value} has more digits than a decimal can have") from None
    if isinstance(value, Mapping):
        return {name: _with_arrows_digits(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_with_arrows_digits, value))
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray | memoryview):
        return list(map(_with_arrows_digits, value))
    return value


def _cut(kind: pa.DataType) -> Cut | None:
    """Return the function that looks for numbers that Arrow cuts to fit a type, as it makes 1 of 1.5; None if none can.

    It looks at all values of a column at once, so that it costs little next to building the column.
    """
    if pt.is_integer(kind) or pt.is_temporal(kind):
        return _fractions
    if pt.is_struct(kind):
        names = [field.name for field in kind]
        fields = [(field.name, cut) for field in kind if (cut := _cut(field.type)) is not None]
        return (lambda values: _cut_in_struct(values, names, fields)) if fields else None
    if pt.is_map(kind):
        key, item = _cut(kind.key_type), _cut(kind.item_type)
        return (lambda values: _cut_in_map(values, key, item)) if key is not None or item is not None else None
    if pt.is_list(kind):
        each = _cut(kind.value_type)
        return (lambda values: each(list(chain.from_iterable(_there(values))))) if each is not None else None
    return None


def _there(values: Sequence[Any]) -> Iterator[Any]:
    return (value for value in values if value is not None)


def _cut_in_struct(values: Sequence[Any], names: Sequence[str], fields: Sequence[tuple[str, Cut]]) -> bool:
    rows = [
        row if isinstance(row, dict) else dict(zip(names, row, strict=True) if isinstance(row, tuple) else row)
        for row in _there(values)
    ]
    return any(cut([row.get(name) for row in rows]) for name, cut in fields)


def _cut_in_map(values: Sequence[Any], key: Cut | None, item: Cut | None) -> bool:
    pairs = [pair for each in _there(values) for pair in (each.items() if isinstance(each, dict) else each)]
    if key is not None and key([pair[0] for pair in pairs]):
        return True
    return item is not None and item([pair[1] for pair in pairs])


def _fractions(values: Sequence[Any]) -> bool:
    kinds = set(map(type, values)) - _WHOLE
    return any(issubclass(kind, Real | Decimal) for kind in kinds) and any(
        isinstance(each, Real | Decimal) and each % 1 != 0 for each in values
    )


@dataclass(frozen=True)
class Unheld:
    """A row with what Python cannot hold: times before the year 1 or after 9999, or text that is not UTF-8.

    Those fields have integers, and bytes.
    """

    row: dict[str, Any]
    times: tuple[str, ...]
    texts: tuple[str, ...]


def rows_of(column: pa.StructArray) -> list[dict[str, Any] | Unheld | None]:
    """Return a struct column's rows as dicts; None where the struct is null."""
    try:
        return [*_rows(column)]
    except (OverflowError, ValueError):
        return [_row(column.slice(number, 1)) for number in range(len(column))]


def _rows(column: pa.StructArray) -> list[dict[str, Any] | None]:
    if column.null_count:
        return list(column.to_pylist())
    names = [field.name for field in column.type]
    lists = [each.to_pylist() for each in column.flatten()]
    return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]


def _row(alone: pa.StructArray) -> dict[str, Any] | Unheld | None:
    columns = dict(zip((field.name for field in alone.type), alone.flatten(), strict=True))
    unheld = [name for name, values in columns.items() if not _held(values)]
    if not unheld:
        return _rows(alone)[0]
    columns |= {name: columns[name].cast(_as(columns[name].type, _integer)) for name in unheld}
    texts = tuple(name for name in unheld if not _held(columns[name]))
    columns |= {name: columns[name].cast(_as(columns[name].type, _bytes)) for name in texts}
    times = tuple(name for name in unheld if name not in texts)
    return Unheld({name: values.to_pylist()[0] for name, values in columns.items()}, times, texts)


def _held(values: pa.Array) -> bool:
    try:
        values.to_pylist()
    except (OverflowError, ValueError):
        return False
    return True


def _as(kind: pa.DataType, plain: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return the type with other plain types in place of its own."""
    if pt.is_struct(kind):
        return pa.struct([field.with_type(_as(field.type, plain)) for field in kind])
    if pt.is_map(kind):
        return pa.map_(_as(kind.key_type, plain), _as(kind.item_type, plain))
    if pt.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as(kind.value_type, plain)))
    return plain(kind)


def _integer(kind: pa.DataType) -> pa.DataType:
    if pt.is_date32(kind):
        return pa.int32()
    return pa.int64() if pt.is_temporal(kind) else kind


def _bytes(kind: pa.DataType) -> pa.DataType:
    if pt.is_large_string(kind):
        return pa.large_binary()
    return pa.binary() if pt.is_string(kind) else kind
