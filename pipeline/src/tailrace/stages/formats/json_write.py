"""Arrow columns written as JSON, a column at a time, equal to Spark's `to_json` with the options of `encode`.

Null fields are written, times have microseconds and `Z`, bytes are Base64, NaN and infinity are texts. Arrow's own
kernels turn each column into a column of JSON texts; Python handles single values only where Java's form differs:
doubles outside 1e-3 to 1e7, and control characters in texts. Durations, times of day and maps with bytes or nested keys
are refused.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tailrace.stages.formats.json_text import java_double, quoted

NULL = "null"
# The first moment of the year 10000, in microseconds since 1970.
_AFTER_9999 = 253_402_300_800_000_000
_DAY = 86_400_000_000
_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))


class NoJson(ValueError):
    """Raised for a type that has no form in JSON."""


def objects(names: Sequence[str], columns: Sequence[pa.Array], rows: int) -> pa.Array:
    """Write each row as an object with these fields."""
    if not names:
        return pa.repeat(pa.scalar("{}"), rows)
    parts: list[object] = []
    opening = "{"
    for name, column in zip(names, columns, strict=True):
        text, quote = _fields(column)
        parts += [f"{opening}{quoted(name)}:{quote}", text]
        opening = f"{quote},"
    parts += [opening[:-1] + "}"]
    return pc.binary_join_element_wise(*_merged(parts), "")


def _fields(column: pa.Array) -> tuple[pa.Array, str]:
    """Return the texts of a column without nulls, and the quote that belongs around each of them."""
    if pt.is_string(column.type) and not column.null_count:
        return _escaped(column), '"'
    if _bare(column.type) and not column.null_count:
        return _BARE[column.type.id](column), '"'
    return pc.fill_null(texts(column), NULL), ""


def _bare(kind: pa.DataType) -> bool:
    return kind.id in _BARE


def _merged(parts: list[object]) -> list[object]:
    """Join neighbouring literals; the kernel takes arrays and scalars in turn."""
    merged: list[object] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    return merged


def texts(column: pa.Array) -> pa.Array:
    """Write each value; null where the value is null."""
    kind = column.type
    if pt.is_null(kind):
        return column.cast(pa.string())
    if pt.is_string(kind):
        return _quoted(_escaped(column))
    if _bare(kind):
        return _quoted(_BARE[kind.id](column))
    if pt.is_boolean(kind) or pt.is_signed_integer(kind) or pt.is_decimal(kind):
        return column.cast(pa.string())
    if pt.is_float32(kind) or pt.is_float64(kind):
        return _doubles(column)
    if pt.is_struct(kind):
        fields = [kind.field(index).name for index in range(kind.num_fields)]
        return _where_valid(column, objects(fields, column.flatten(), len(column)))
    if pt.is_map(kind):
        return _map(column)
    if pt.is_list(kind):
        return _list(column)
    raise NoJson(f"JSON has no form for {kind}")


def _where_valid(column: pa.Array, written: pa.Array) -> pa.Array:
    if not column.null_count:
        return written
    return pc.if_else(column.is_valid(), written, pa.scalar(None, pa.string()))


def _quoted(column: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', column, '"', "")


def _escaped(column: pa.Array) -> pa.Array:
    """Escape what JSON must escape, and no more."""
    if not pc.any(pc.match_substring_regex(column, r'["\\\x00-\x1f]'), min_count=0).as_py():
        return column
    for found, escaped in _ESCAPES:
        column = pc.replace_substring(column, found, escaped)
    rest = pc.fill_null(pc.match_substring_regex(column, r"[\x00-\x1f]"), False)
    return _replaced(column, rest, lambda text: _controls(str(text)))


def _controls(text: str) -> str:
    return "".join(quoted(each)[1:-1] if each < " " else each for each in text)


def _replaced(column: pa.Array, where: pa.Array, write: Callable[[object], str]) -> pa.Array:
    """Write the values of some rows one by one."""
    if not pc.any(where, min_count=0).as_py():
        return column
    written = pa.array([write(each) for each in column.filter(where).to_pylist()], pa.string())
    return pc.replace_with_mask(column, where, written)


def _doubles(column: pa.Array) -> pa.Array:
    """Write doubles as Java does: Arrow's digits are the same, its exponents are not."""
    size = pc.abs(column)
    usual = pc.or_(pc.and_(pc.greater_equal(size, 1e-3), pc.less(size, 1e7)), pc.equal(size, 0.0))
    text = column.cast(pa.string())
    integral = pc.equal(pc.find_substring(text, "."), -1)
    if pc.any(integral, min_count=0).as_py():
        text = pc.if_else(integral, pc.binary_join_element_wise(text, ".0", ""), text)
    where = pc.fill_null(pc.invert(usual), False)
    if not pc.any(where, min_count=0).as_py():
        return text
    unusual = column.filter(where)
    shortest = unusual.cast(pa.string()).to_pylist()
    written = [java_double(value, digits) for value, digits in zip(unusual.to_pylist(), shortest, strict=True)]
    return pc.replace_with_mask(text, where, pa.array(written, pa.string()))


def _base64(column: pa.Array) -> pa.Array:
    return pa.array(
        [None if value is None else base64.b64encode(value).decode("ascii") for value in column.to_pylist()],
        pa.string(),
    )


def _dates(column: pa.Array) -> pa.Array:
    return _signed(column.cast(pa.string()), column.cast(pa.int32()), _AFTER_9999 // _DAY)


def _timestamps(column: pa.Array) -> pa.Array:
    micros = column.cast(pa.timestamp("us", column.type.tz)) if column.type.unit != "us" else column
    text = micros.cast(pa.string())
    number = micros.cast(pa.int64())
    least, most = pc.min_max(number).values()
    if least.as_py() is not None and (least.as_py() < 0 or most.as_py() >= _AFTER_9999):
        # The year may have a sign or more digits, so the blank before the hours has no fixed place.
        text = pc.replace_substring(text, " ", "T")
    else:
        text = pc.binary_replace_slice(text, 10, 11, "T")
    return _signed(text, number, _AFTER_9999)


def _signed(text: pa.Array, number: pa.Array, after: int) -> pa.Array:
    """Put a plus before years of more than four digits, as Java does."""
    late = pc.fill_null(pc.greater_equal(number, after), False)
    return _replaced(text, late, lambda each: f"+{each}")


def _list(column: pa.Array) -> pa.Array:
    first, last, offsets = _bounds(column)
    return _wrapped(column, offsets, pc.fill_null(texts(column.values.slice(first, last - first)), NULL), "[", "]")


def _map(column: pa.Array) -> pa.Array:
    first, last, offsets = _bounds(column)
    keys, values = (each.slice(first, last - first) for each in (column.keys, column.items))
    pairs = pc.binary_join_element_wise(_names(keys), ":", pc.fill_null(texts(values), NULL), "")
    return _wrapped(column, offsets, pairs, "{", "}")


def _bounds(column: pa.Array) -> tuple[int, int, pa.Array]:
    """Return where the items of the column begin and end among all, and the offsets within them."""
    offsets = column.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    return first, last, pa.array(offsets - first, pa.int32())


def _wrapped(column: pa.Array, offsets: pa.Array, items: pa.Array, opening: str, closing: str) -> pa.Array:
    """Join the items of each list."""
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, items), ",")
    return _where_valid(column, pc.binary_join_element_wise(opening, joined, closing, ""))


def _names(keys: pa.Array) -> pa.Array:
    """Write a map's keys as Spark does: the values as it holds them, as text."""
    kind = keys.type
    if pt.is_string(kind):
        return _quoted(_escaped(keys))
    if pt.is_date32(kind):
        keys = keys.cast(pa.int32())
    elif pt.is_timestamp(kind):
        keys = keys.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    if pt.is_boolean(keys.type) or pt.is_signed_integer(keys.type) or pt.is_decimal(keys.type):
        return _quoted(keys.cast(pa.string()))
    if pt.is_float32(kind) or pt.is_float64(kind):
        return _quoted(pc.replace_substring(_doubles(keys), '"', ""))
    raise NoJson(f"JSON has no form for a map with keys of type {kind}")


# Types whose text stands between quotes and needs no escaping.
_BARE: dict[int, Callable[[pa.Array], pa.Array]] = {
    pa.date32().id: _dates,
    pa.timestamp("us").id: _timestamps,
    pa.binary().id: _base64,
}
