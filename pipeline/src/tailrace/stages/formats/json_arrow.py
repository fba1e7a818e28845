"""JSON with a Spark schema to Arrow columns, without a JVM: Arrow's own parser where it agrees with `json_records`.

Arrow parses a batch at once, several times as fast as Python parses records. But it does not accept the same texts as
Spark: it reads several values as several rows, accepts NaN, and stops at the first value of another type. So it gets
only records that begin and end as an object and contain nothing on which the two could differ. The number of rows must
match, which shows that each record was one value: a text that ends in `}` cannot continue in the next one, which begins
with `{`. Records that Arrow refuses, and values that it might round or read differently, are decoded one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.types as pt
from pyspark.sql.types import DecimalType, StructType

from tailrace.stages.formats.arrow import Decoder, Read, Verdicts, decode_values
from tailrace.stages.formats.json_records import DEEPEST, LONGEST_NUMBER, decoder, lone_surrogate, suspect
from tailrace.stages.formats.json_schema import WRONG_TYPE
from tailrace.stages.formats.json_values import leaves

Rows = np.ndarray[tuple[int], np.dtype[np.int64]]
Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]

_BLANK = " \t\n\r"
_ROW = re.compile(r"in row (\d+)$")
_BEFORE = r"[:,\[][ \t\n\r]*"
_NUMBERS = _BEFORE + r"-?(?:NaN|Inf)"
# Decimals that may have more than 38 digits after the point, for which Arrow reads beyond its table of powers of ten:
# those with a negative exponent of more than 19 or with more than 19 digits before it. They may be texts, with escapes.
_TINY = (
    _BEFORE + r'(?:"?[+-]?(?:[0-9.]*[eE]-0*(?:[2-9][0-9]|[1-9][0-9]{2})|[0-9.]{20,}[eE]-)'
    r'|"[0-9.eE+-]*\\u00(?:3[0-9]|2[bBdDeE]|[46]5))'
)
_DIGITS = 38  # of a decimal of 128 bits
_SURROGATES = r"\\u[dD][89a-fA-F]"
_PAIRS = r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_MOMENT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"
_ZONED = _MOMENT + r"(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])$"
_YEAR = 366 * 86_400_000_000
# Microseconds since 1970 that Python can hold; a year from either end is left to Python.
_EARLIEST, _LATEST = -62_135_596_800_000_000 + _YEAR, 253_402_300_799_999_999 - _YEAR
# Records that Arrow parses at once; fewer once it refused one, because all of a piece are parsed again.
_AT_ONCE, _AFTER_REFUSAL = 16384, 4096
_MOST_BYTES = 2**30
# Fewer records than these are decoded one by one once Arrow refused one of them: trying again would take longer.
_FEW = 128
# Records for each further refusal in a batch.
_APART = 256


class _Unsure(Exception):
    """Raised if Arrow may have read some records differently from Spark, and it is not known which."""


@dataclass
class _Pieces:
    """Columns of some rows of a batch."""

    rows: list[Rows]
    columns: list[list[pa.Array]]

    def add(self, rows: Rows, columns: list[pa.Array]) -> None:
        """Add the columns of these rows."""
        if len(rows):
            self.rows.append(rows)
            self.columns.append(columns)

    def joined(self, wanted: pa.Schema) -> list[pa.Array]:
        """Return the columns in the order of the rows."""
        if not self.rows:
            return [pa.array([], field.type) for field in wanted]
        if len(self.rows) == 1:
            return self.columns[0]
        order = pa.array(np.argsort(np.concatenate(self.rows), kind="stable"))
        return [pa.concat_arrays(list(parts)).take(order) for parts in zip(*self.columns, strict=True)]


def reader(schema: StructType, wanted: pa.Schema, zone: str = "UTC") -> Read:
    """Return the function that decodes a column of values; timestamps without a time zone are of `zone`."""
    decode = decoder(schema, zone)
    read = [pa.field(field.name, _read_as(field.type)) for field in wanted]
    if any(_has_map(field.type) for field in wanted):  # Arrow's parser reads no maps
        return lambda values: decode_values(values.to_pylist(), wanted, decode, WRONG_TYPE)
    odd = _NUMBERS + "|" + _TINY if any(isinstance(kind, DecimalType) for kind in leaves(schema)) else _NUMBERS
    quick = _Quick(pa.schema(read), wanted, _required(schema, wanted), odd)
    return lambda values: _decoded(values, quick, wanted, decode)


def _decoded(values: pa.Array, quick: _Quick, wanted: pa.Schema, decode: Decoder) -> tuple[list[pa.Array], Verdicts]:
    verdicts = Verdicts.good(len(values))
    pieces = _Pieces([], [])
    texts, usual = _usual(values, quick.odd)
    left = ~usual
    if texts is not None:
        for rows, columns in quick.parsed(texts, np.flatnonzero(usual), left):
            pieces.add(rows, columns)
    slow = np.flatnonzero(left)
    columns, found = decode_values(values.take(pa.array(slow)).to_pylist(), wanted, decode, WRONG_TYPE)
    pieces.add(slow, columns)
    for row, reason, detail in zip(slow.tolist(), found.reasons, found.details, strict=True):
        verdicts.reasons[row], verdicts.details[row] = reason, detail
    return pieces.joined(wanted), verdicts


def _usual(values: pa.Array, odd: str) -> tuple[pa.Array | None, Mask]:
    """Return the texts, and which of them may be given to Arrow's parser; none in which `odd` matches."""
    try:
        texts = values.cast(pa.string())
    except pa.ArrowInvalid:
        good = [value is None or _is_utf8(value) for value in values.to_pylist()]
        texts = pc.if_else(pa.array(good, pa.bool_()), values, pa.scalar(None, pa.binary())).cast(pa.string())
    texts = pc.utf8_trim(texts, _BLANK)
    usual = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    usual = pc.and_(usual, pc.invert(pc.match_substring_regex(texts, odd)))
    found = pc.fill_null(usual, False).to_numpy(zero_copy_only=False).copy()
    doubtful = pc.match_substring_regex(texts, _SURROGATES)
    if pc.any(doubtful, min_count=0).as_py():
        doubtful = pc.match_substring_regex(pc.replace_substring_regex(texts, _PAIRS, ""), _SURROGATES)
    if len(texts) and (pc.max(pc.binary_length(texts)).as_py() or 0) > DEEPEST:
        doubtful = pc.or_(doubtful, pc.greater(pc.binary_length(texts), min(DEEPEST, LONGEST_NUMBER)))
    for row in np.flatnonzero(pc.fill_null(doubtful, False).to_numpy(zero_copy_only=False)).tolist():
        text = texts[row].as_py()
        found[row] &= not (lone_surrogate(text) or (len(text) > DEEPEST and suspect(text)))
    return (texts if found.any() else None), found


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


class _Quick:
    """Arrow's parser, for one schema."""

    def __init__(self, read: pa.Schema, wanted: pa.Schema, required: list[str], odd: str) -> None:
        self.odd = odd
        self._options = pa.json.ParseOptions(explicit_schema=read, unexpected_field_behavior="ignore")
        self._wanted = wanted
        self._required = required

    def parsed(self, texts: pa.Array, rows: Rows, left: Mask) -> Iterator[tuple[Rows, list[pa.Array]]]:
        """Yield rows with their columns; mark the rows in `left` that are to be decoded one by one."""
        waiting = _pieces(rows, _AT_ONCE)
        refusals = 0
        while waiting:
            some = waiting.pop()
            if not len(some):
                continue
            if refusals > 16 + len(rows) // _APART:
                left[some] = True
                continue
            try:
                columns, unsure = self._parsed(_chosen(texts, some))
            except (pa.ArrowInvalid, _Unsure) as error:
                refusals += 1
                place = _ROW.search(str(error))
                at = int(place[1]) if place is not None else len(some)
                if len(some) <= _FEW:
                    left[some] = True
                elif at < len(some):
                    left[some[at]] = True
                    waiting += [*_pieces(some[at + 1 :], _AFTER_REFUSAL), some[:at]]
                else:
                    waiting += [some[len(some) // 2 :], some[: len(some) // 2]]
                continue
            if unsure.any():
                left[some[unsure]] = True
                keep = pa.array(~unsure)
                yield some[~unsure], [column.filter(keep) for column in columns]
            else:
                yield some, columns

    def _parsed(self, texts: pa.Array) -> tuple[list[pa.Array], Mask]:
        if pc.sum(pc.binary_length(texts)).as_py() > _MOST_BYTES:
            raise _Unsure
        joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts), "\n")
        data = joined.buffers()[2]
        options = pa.json.ReadOptions(use_threads=False, block_size=data.size + 1)
        table = pa.json.read_json(pa.BufferReader(data), options, self._options)
        if table.num_rows != len(texts) or any(column.num_chunks != 1 for column in table.columns):
            raise _Unsure
        unsure = np.zeros(len(texts), dtype=np.bool_)
        columns = [
            _finished(table.column(field.name).chunk(0), field.type, unsure, nested=False) for field in self._wanted
        ]
        for name in self._required:
            unsure |= columns[self._wanted.get_field_index(name)].is_null().to_numpy(zero_copy_only=False)
        return columns, unsure


def _pieces(rows: Rows, most: int) -> list[Rows]:
    """Cut the rows into pieces, listed in reverse order."""
    return [rows[start : start + most] for start in range(0, len(rows), most)][::-1]


def _chosen(texts: pa.Array, rows: Rows) -> pa.Array:
    if rows[-1] - rows[0] + 1 == len(rows):
        return texts.slice(int(rows[0]), len(rows))
    return texts.take(pa.array(rows))


def _has_map(kind: pa.DataType) -> bool:
    return pt.is_map(kind) or any(_has_map(kind.field(index).type) for index in range(kind.num_fields))


def _required(schema: StructType, wanted: pa.Schema) -> list[str]:
    """Return the fields that may be missing only in rejected records: NOT NULL, or with such a field within."""
    return [field.name for field, kind in zip(schema, wanted, strict=True) if not (field.nullable and _optional(kind))]


def _optional(field: pa.Field) -> bool:
    return all(_optional(inner) and inner.nullable for inner in map(field.type.field, range(field.type.num_fields)))


def _read_as(kind: pa.DataType) -> pa.DataType:
    """Return the type that Arrow's parser should read; times and bytes are read as texts.

    Arrow multiplies a decimal by up to 10**scale and may not notice an overflow; 256 bits hold every product.
    """
    if pt.is_struct(kind):
        return pa.struct([(each.name, _read_as(each.type)) for each in map(kind.field, range(kind.num_fields))])
    if pt.is_list(kind):
        return pa.list_(_read_as(kind.value_type))
    if pt.is_date(kind) or pt.is_timestamp(kind) or pt.is_binary(kind):
        return pa.string()
    if pt.is_decimal(kind) and kind.precision + kind.scale > _DIGITS:
        return pa.decimal256(_DIGITS, kind.scale)
    return kind


def _finished(column: pa.Array, kind: pa.DataType, unsure: Mask, *, nested: bool) -> pa.Array:
    """Convert a column to its type, and mark the rows that Python has to judge; within lists raise _Unsure instead."""
    if pt.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        inner = [
            _finished(part, field.type, unsure, nested=nested)
            for part, field in zip(column.flatten(), fields, strict=True)
        ]
        missing = column.is_null() if column.null_count else None
        valid = column.is_valid()
        for part, field in zip(inner, fields, strict=True):
            if not field.nullable and part.null_count:
                _mark(pc.and_(valid, part.is_null()), unsure, nested)
        return pa.StructArray.from_arrays(inner, fields=fields, mask=missing)
    if pt.is_list(kind):
        values = column.values
        if not kind.value_field.nullable and values.null_count:
            raise _Unsure
        inner_unsure = np.zeros(len(values), dtype=np.bool_)
        items = _finished(values, kind.value_type, inner_unsure, nested=True)
        return pa.ListArray.from_arrays(
            column.offsets, items, type=kind, mask=column.is_null() if column.null_count else None
        )
    if pt.is_date(kind):
        return _converted(column, kind, _DATE, unsure, nested)
    if pt.is_timestamp(kind):
        return _converted(column, kind, _ZONED if kind.tz else _MOMENT + "$", unsure, nested)
    if pt.is_floating(kind):
        # Infinity, and minus zero: as an integer, it has no sign to Spark.
        size = pc.abs(column)
        odd = pc.or_(pc.equal(size, np.inf), pc.and_(pc.equal(column, 0), pc.less(pc.divide(1.0, column), 0)))
        _mark(odd, unsure, nested)
    elif pt.is_decimal(kind):
        beyond = pc.greater_equal(pc.abs(column.cast(pa.float64())), _limit(kind))
        _mark(beyond, unsure, nested)
        if column.type != kind and pc.any(beyond).as_py():  # those would not fit
            column = pc.if_else(beyond, pa.scalar(None, column.type), column)
    elif pt.is_binary(kind) and column.null_count < len(column):
        _mark(column.is_valid(), unsure, nested)
        return pa.nulls(len(column), kind)
    return column.cast(kind)


def _limit(kind: pa.DataType) -> float:
    """Return a number that a decimal of the type may not reach; values close to it count as reaching it."""
    return float(10 ** (kind.precision - kind.scale)) * (1 - 1e-9)


def _converted(column: pa.Array, kind: pa.DataType, usual: str, unsure: Mask, nested: bool) -> pa.Array:
    """Convert texts of the usual form, if all of those are times."""
    matches = pc.match_substring_regex(column, usual)
    _mark(pc.invert(matches), unsure, nested)
    try:
        found = pc.if_else(matches, column, pa.scalar(None, pa.string())).cast(kind)
    except pa.ArrowInvalid:
        raise _Unsure from None
    unit = 86_400_000_000 if pt.is_date(kind) else 1
    number = found.cast(pa.int32() if pt.is_date(kind) else pa.int64())
    _mark(pc.or_(pc.less(number, _EARLIEST // unit), pc.greater(number, _LATEST // unit)), unsure, nested)
    return found


def _mark(rows: pa.Array, unsure: Mask, nested: bool) -> None:
    found = pc.fill_null(rows, False).to_numpy(zero_copy_only=False)
    if nested and found.any():
        raise _Unsure
    unsure |= found
