"""JSON with a Spark schema, parsed in the JVM by Spark's own parser, with checks for the errors that it ignores.

The parser stops after the first value, reads 200 into a tinyint as -56 and 1e300 into a float as infinity, ignores NOT
NULL, and writes `?` for text that UTF-8 cannot hold. Each of these would silently lose data, so each is rejected.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from tailrace.errors import SchemaInvalid
from tailrace.stages.formats import KEPT
from tailrace.stages.formats.arrow import NO_VALUE, NOT_UTF8
from tailrace.stages.formats.ddl import DdlInvalid
from tailrace.stages.formats.json_model import NOT_JSON, REFERENCE
from tailrace.stages.spark_text import first_line

WRONG_TYPE = "wrong type"
MISSING = "field missing"
OUT_OF_RANGE = "number out of range"

# The columns that `parsed` adds and `verdict` reads.
ROW = "_row"
COMPLETE = "_complete"
# The column that Spark adds to rows that it failed to parse; decode refuses field names that begin like this.
_FAILED = "_detail"

_LEAVES = (
    StringType, BooleanType, ShortType, IntegerType, LongType, FloatType, DoubleType, DecimalType, DateType,
    TimestampType, TimestampNTZType, BinaryType,
)  # fmt: skip
_OPTIONS = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _FAILED, "allowSingleQuotes": "false"}
# An escaped half of a surrogate pair, without the other half.
_LONE = (
    r"(?<!\\)(\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
# to_json writes infinity like this; it is not an overflow.
INFINITY = r'"[-+]?(Infinity|INF)"'
SHOWN = 80  # characters of a value of the wrong type that a message shows


@dataclass(frozen=True)
class Fault:
    """An error that Spark's parser ignores, and how to detect it in the parsed column."""

    reason: str
    path: str
    found: Callable[[Column], Column]


def read(
    reference: str, folder: Path, parse: Callable[[str], DataType | None] = StructType.fromDDL
) -> StructType | None:
    """Read the schema of a DDL string or a .json file; return None if the reference names a pydantic model.

    `parse` reads the DDL: Spark's parser, or `ddl.struct_of` where there is no JVM.
    """
    if reference.endswith(".json"):
        return _readable(_from_file(folder / reference))
    try:
        found = parse(reference)
    except (PySparkException, DdlInvalid) as error:
        if REFERENCE.fullmatch(reference):
            return None
        raise SchemaInvalid(
            f"the schema {reference!r} is not Spark DDL: {first_line(error)}",
            kept=KEPT,
            then="write it as `id long, text string`, or name a .json file or a pydantic model (file.py:Model)",
        ) from None
    if not isinstance(found, StructType):  # `long` alone is DDL too
        raise SchemaInvalid(
            f"the schema {reference!r} has no fields", kept=KEPT, then="write it as `id long, text string`"
        )
    return _readable(found)


def _from_file(path: Path) -> StructType:
    try:
        return StructType.fromJson(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        why = error.strerror or str(error)
    except (ValueError, KeyError, TypeError, AttributeError, PySparkException) as error:
        why = f"not a Spark schema as JSON: {first_line(error)}"
    raise SchemaInvalid(f"{path}: {why}", kept=KEPT, then="write it with `df.schema.json()`")


def _readable(schema: StructType) -> StructType:
    def check(kind: DataType, path: str) -> None:
        match kind:
            case StructType():
                for field in kind:
                    check(field.dataType, f"{path}.{field.name}".lstrip("."))
            case ArrayType():
                check(kind.elementType, f"{path}.element")
            case MapType() if isinstance(kind.keyType, StringType):
                check(kind.valueType, f"{path}.value")
            case ByteType():
                # Spark reads 200 into a tinyint as -56.
                raise _unreadable(path, kind, "smallint")
            case _ if not isinstance(kind, _LEAVES):
                raise _unreadable(path, kind, "another type; a map has string keys")

    check(schema, "")
    return schema


def _unreadable(path: str, kind: DataType, instead: str) -> SchemaInvalid:
    return SchemaInvalid(
        f"the schema's field {path} is {kind.simpleString()}, which JSON cannot be read into faithfully",
        kept=KEPT,
        then=f"use {instead}",
    )


def parsed(fields: StructType, value: Column) -> list[Column]:
    """Return the parsed row, and whether the value is one JSON value and nothing else."""
    text = value.cast("string")
    row = F.from_json(text, StructType([*fields.fields, StructField(_FAILED, StringType())]), _OPTIONS)
    # If the value ends early, or text follows it, the mark is not in its place. The mark is a hash of the value, so
    # that no value can contain its own.
    mark = F.xxhash64(value).cast("string")
    found = F.get_json_object(F.concat(F.lit("["), text, F.lit(',"'), mark, F.lit('"]')), "$[1]")
    return [row.alias(ROW), F.coalesce(found == mark, F.lit(False)).alias(COMPLETE)]


def verdict(fields: StructType, value: Column) -> Column:
    """Return a struct of reason and detail, null for a good row; needs the columns of `parsed`."""
    row, text = F.col(ROW), value.cast("string")
    escapes = text.contains("\\ud") | text.contains("\\uD")
    seen = (
        F.when(value.isNull(), _because(NO_VALUE, F.lit("the record has a key and no value")))
        .when(~F.is_valid_utf8(text), _because(NOT_UTF8, F.lit("the value has bytes that are not UTF-8")))
        .when(~F.col(COMPLETE), _because(NOT_JSON, F.lit("the value is not one JSON value and nothing else")))
        .when(row.isNull() | row[_FAILED].isNotNull(), _because(WRONG_TYPE, _told(fields, row, text)))
        .when(escapes & text.rlike(_LONE), _because(NOT_UTF8, F.lit("half a surrogate pair is escaped")))
    )
    for fault in _faults(fields):
        found = fault.found(row)
        if fault.reason == OUT_OF_RANGE:
            found = found & ~text.rlike(INFINITY)
        seen = seen.when(found, _because(fault.reason, F.lit(fault.path)))
    return seen


def _because(reason: str, detail: Column) -> Column:
    return F.struct(F.lit(reason).alias("reason"), detail.alias("detail"))


def _faults(kind: DataType, path: str = "") -> Iterator[Fault]:
    """Yield every fault that can occur below a column that is not null."""
    match kind:
        case StructType():
            for field in kind:
                below = f"{path}.{field.name}".lstrip(".")
                if not field.nullable:
                    yield Fault(MISSING, below, _at(field.name, Column.isNull))
                for fault in _faults(field.dataType, below):
                    yield Fault(fault.reason, fault.path, _at(field.name, fault.found))
        case ArrayType():
            if not kind.containsNull:
                yield Fault(MISSING, f"{path}.element", _any(Column.isNull))
            for fault in _faults(kind.elementType, f"{path}.element"):
                yield Fault(fault.reason, fault.path, _any(fault.found))
        case MapType():
            if not kind.valueContainsNull:
                yield Fault(MISSING, f"{path}.value", _any_value(Column.isNull))
            for fault in _faults(kind.valueType, f"{path}.value"):
                yield Fault(fault.reason, fault.path, _any_value(fault.found))
        case FloatType() | DoubleType():
            yield Fault(OUT_OF_RANGE, path, lambda number: F.abs(number) == F.lit(math.inf))


def _at(name: str, found: Callable[[Column], Column]) -> Callable[[Column], Column]:
    return lambda row: row.isNotNull() & found(row.getField(name))


def _any(found: Callable[[Column], Column]) -> Callable[[Column], Column]:
    return lambda elements: F.exists(elements, found)


def _any_value(found: Callable[[Column], Column]) -> Callable[[Column], Column]:
    return lambda entries: F.exists(F.map_values(entries), found)


def _told(fields: StructType, row: Column, text: Column) -> Column:
    """Name the field of the wrong type, if it can be determined: one that is not null, and not of its own type."""
    anything = F.from_json(text, _any_types(fields), _OPTIONS)
    fields_told = F.filter(F.array(*_suspects(fields, row, anything, "")), Column.isNotNull)
    return (
        F.when(~F.ltrim(text).startswith("{"), F.lit("the value is not a JSON object"))
        .when(F.size(fields_told) > 0, F.element_at(fields_told, 1))
        .otherwise(F.lit("the value, or something within a field of it, is not what the schema says"))
    )


def _any_types(fields: StructType) -> StructType:
    def loosened(kind: DataType) -> DataType:
        return _any_types(kind) if isinstance(kind, StructType) else VariantType()

    return StructType([StructField(field.name, loosened(field.dataType)) for field in fields])


def _suspects(fields: StructType, row: Column, anything: Column, path: str) -> Iterator[Column]:
    for field in fields:
        below = f"{path}.{field.name}".lstrip(".")
        is_, was = row.getField(field.name), anything.getField(field.name)
        if isinstance(field.dataType, StructType):
            yield from _suspects(field.dataType, is_, was, below)
        else:
            value = F.to_json(was)
            cut = F.concat(F.substring(value, 1, SHOWN - 1), F.lit("…"))
            shown = F.when(F.length(value) <= SHOWN, value).otherwise(cut)
            told = F.concat(F.lit(f"{below} is not {field.dataType.simpleString()}: "), shown)
            yield F.when(is_.isNull() & was.isNotNull() & ~F.is_variant_null(was), told)
