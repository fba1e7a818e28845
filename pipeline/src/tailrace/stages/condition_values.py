"""Evaluation of a parsed condition on Arrow batches, with Spark's results: null, NaN and numbers of different types."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tailrace.stages.conditions import Call, Column, Literal, Node, Scalar, Unsupported, columns, parse

_EXACT: Final = 2**24  # whole numbers up to here are the same in every type of number
_DIGITS: Final = 38  # of a decimal in Spark
_ORDER: Final = {"=": pc.equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}


class Condition:
    """A condition that is evaluated without a JVM."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        """Parse the condition and try it on no records; raise Unsupported if it cannot be evaluated on this schema."""
        self._node = parse(text)
        nothing = pa.RecordBatch.from_arrays([pa.array([], each.type) for each in schema], schema=schema)
        try:
            found = _evaluate(self._node, nothing)
        except pa.ArrowNotImplementedError as error:
            raise Unsupported(f"Arrow cannot evaluate it: {error}") from None
        if not pt.is_boolean(found.type):
            raise Unsupported(f"it is {found.type}, not boolean")

    def __call__(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return whether each row meets the condition; null counts as not."""
        return pc.fill_null(_evaluate(self._node, batch), False)


def unknown_column(text: str, schema: pa.Schema) -> str:
    """Return what is wrong with a column of a condition; empty if nothing is, or if only Spark can read it."""
    try:
        used = list(columns(parse(text)))
    except Unsupported:
        return ""
    for column in used:
        kind: pa.DataType = pa.struct(list(schema))
        for name in column.path:
            if not pt.is_struct(kind):
                break
            try:
                kind = kind.field(_named(name, [each.name for each in kind], column)).type
            except Unsupported as error:
                return str(error)
    return ""


def _evaluate(node: Node, batch: pa.RecordBatch) -> Any:
    """Return the values of a node: an array, as long as the batch."""
    if isinstance(node, Literal):
        return pa.repeat(_scalar(node.value), batch.num_rows)
    if isinstance(node, Column):
        return _column(node, batch)
    match node.name:
        case "and" | "or":
            left, right = (_boolean(each, batch) for each in node.arguments)
            return pc.and_kleene(left, right) if node.name == "and" else pc.or_kleene(left, right)
        case "not":
            return pc.invert(_boolean(node.arguments[0], batch))
        case "is null":
            return pc.is_null(_evaluate(node.arguments[0], batch))
        case "is true":
            return pc.fill_null(_boolean(node.arguments[0], batch), False)
        case "is false":
            return pc.fill_null(pc.invert(_boolean(node.arguments[0], batch)), False)
        case "like":
            return _like(node, batch)
        case "length":
            return _length(_evaluate(node.arguments[0], batch))
        case "trim":
            return pc.utf8_trim(_text(_evaluate(node.arguments[0], batch)), " ")
    return _compared(node, batch)


def _scalar(value: Scalar) -> pa.Scalar:
    if isinstance(value, datetime):
        return pa.scalar(value, pa.timestamp("us", "UTC"))
    if isinstance(value, int) and not isinstance(value, bool):
        return pa.scalar(value, pa.int64())
    return pa.scalar(value)


def _column(column: Column, batch: pa.RecordBatch) -> Any:
    values = batch.column(_named(column.path[0], batch.schema.names, column))
    for name in column.path[1:]:
        if not pt.is_struct(values.type):
            raise Unsupported(f"{column}: {name} is asked of a {values.type}, which has no fields for Arrow")
        fields = [values.type.field(number).name for number in range(values.type.num_fields)]
        values = pc.struct_field(values, _named(name, fields, column))
    return values


def _named(name: str, known: Iterable[str], column: Column) -> int:
    """Return the number of the field with this name; as in Spark, case does not matter."""
    fields = list(known)
    found = [number for number, each in enumerate(fields) if each.lower() == name.lower()]
    if len(found) != 1:
        what = "is ambiguous" if found else f"is not a field; the fields are {', '.join(fields)}"
        where = f"{column}: " if len(column.path) > 1 else ""
        raise Unsupported(f"{where}{name} {what}")
    return found[0]


def _boolean(node: Node, batch: pa.RecordBatch) -> Any:
    found = _evaluate(node, batch)
    if pt.is_null(found.type):
        return found.cast(pa.bool_())
    if not pt.is_boolean(found.type):
        raise Unsupported(f"a condition is expected, and there is a value of type {found.type}")
    return found


def _text(values: Any) -> Any:
    if not pt.is_string(values.type):
        raise Unsupported(f"text is expected, and there is a value of type {values.type}")
    return values


def _length(values: Any) -> Any:
    if pt.is_binary(values.type):
        return pc.binary_length(values)
    return pc.utf8_length(_text(values))


def _like(node: Call, batch: pa.RecordBatch) -> Any:
    pattern = node.arguments[1]
    if not isinstance(pattern, Literal) or not isinstance(pattern.value, str) or "\\" in pattern.value:
        raise Unsupported("LIKE with an escape is evaluated by Spark only")
    return pc.match_like(_text(_evaluate(node.arguments[0], batch)), pattern.value)


# -- comparisons -------------------------------------------------------------------------------------


def _compared(node: Call, batch: pa.RecordBatch) -> Any:
    left, right = _alike(node.arguments, batch)
    if node.name == "!=":
        return pc.invert(_order("=", left, right))
    if node.name == "<=>":
        same = pc.fill_null(_order("=", left, right), False)
        return pc.or_(same, pc.and_(pc.is_null(left), pc.is_null(right)))
    return _order(node.name, left, right)


def _order(sign: str, left: Any, right: Any) -> Any:
    """Compare; NaN equals NaN and is larger than every number, as in Spark."""
    plain = _ORDER[sign](left, right)
    if not pt.is_floating(left.type):
        return plain
    one, other = pc.is_nan(left), pc.is_nan(right)
    match sign:
        case "=":
            return pc.or_(plain, pc.and_(one, other))
        case "<":
            return pc.or_(plain, pc.and_(pc.invert(one), other))
        case "<=":
            return pc.or_(plain, other)
        case ">":
            return pc.or_(plain, pc.and_(one, pc.invert(other)))
    return pc.or_(plain, one)


def _alike(sides: tuple[Node, ...], batch: pa.RecordBatch) -> tuple[Any, Any]:
    """Return both sides in one type in which Spark compares them too."""
    one, other = sides
    left, right = _evaluate(one, batch), _evaluate(other, batch)
    kinds = left.type, right.type
    if pt.is_null(kinds[0]) or pt.is_null(kinds[1]):
        common = kinds[1] if pt.is_null(kinds[0]) else kinds[0]
        return left.cast(common), right.cast(common)
    if all(map(_is_number, kinds)):
        return _numbers(one, left, other, right)
    if any(map(pt.is_nested, kinds)) or kinds[0] != kinds[1]:
        raise Unsupported(f"a value of type {kinds[0]} is compared with one of type {kinds[1]}, which only Spark does")
    return left, right


def _is_number(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind))


def _numbers(one: Node, left: Any, other: Node, right: Any) -> tuple[Any, Any]:
    kinds = left.type, right.type
    if any(map(pt.is_floating, kinds)):
        for node, kind in ((one, kinds[0]), (other, kinds[1])):
            constant = node.value if isinstance(node, Literal) else None
            exact = isinstance(constant, Decimal) or (isinstance(constant, int) and abs(constant) <= _EXACT)
            if not pt.is_floating(kind) and not exact:
                raise Unsupported(f"a {kind} is compared with a floating-point number, which only Spark does")
        return _double(left), _double(right)
    if all(map(pt.is_integer, kinds)):
        return left.cast(pa.int64()), right.cast(pa.int64())
    scale = max(_scale(each) for each in kinds)
    if scale + max(_whole(each) for each in kinds) > _DIGITS:
        raise Unsupported(f"a {kinds[0]} is compared with a {kinds[1]}, which Spark rounds")
    wide = pa.decimal128(_DIGITS, scale)
    return left.cast(wide), right.cast(wide)


def _double(values: Any) -> Any:
    if pt.is_decimal(values.type):  # a literal: Arrow would round it twice
        return pa.array([None if each is None else float(each) for each in values.to_pylist()], pa.float64())
    return values.cast(pa.float64())


def _scale(kind: pa.DataType) -> int:
    return int(kind.scale) if pt.is_decimal(kind) else 0


def _whole(kind: pa.DataType) -> int:
    """Return the digits before the point."""
    return int(kind.precision - kind.scale) if pt.is_decimal(kind) else 20
