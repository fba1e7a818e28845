"""Avro schemas: reading them from their file, and mapping them to Spark's types.

Both directions need the same mapping: decode for the function's input, encode to check that the function's output can
be written. Types without a counterpart in Spark are refused here, before anything runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
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
)

from tailrace.errors import SchemaInvalid
from tailrace.stages.formats import KEPT

# A schema in its JSON form: the name of a type, a definition, or a union of them.
Avro = str | dict[str, Any] | list[Any]

DECIMAL_DIGITS = 38

_LEAVES: Mapping[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "fixed": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
    "int:date": DateType(),
    "long:timestamp-millis": TimestampType(),
    "long:timestamp-micros": TimestampType(),
    "long:local-timestamp-millis": TimestampNTZType(),
    "long:local-timestamp-micros": TimestampNTZType(),
    "string:uuid": StringType(),
    "fixed:uuid": StringType(),
    # Spark's own type for a time of day is off by default: the number that Avro stores is equivalent.
    "int:time-millis": IntegerType(),
    "long:time-micros": LongType(),
}
# Types that may be written as another type without changing a value.
_NARROWER: Mapping[type[DataType], tuple[type[DataType], ...]] = {
    IntegerType: (ByteType, ShortType),
    LongType: (ByteType, ShortType, IntegerType),
    DoubleType: (ByteType, ShortType, IntegerType, FloatType),
}


@dataclass(frozen=True)
class AvroSchema:
    """The schema of one record type.

    fastavro reads and writes with `parsed`, whose defaults are values; `expanded` has each named type written out where
    it is used.
    """

    text: str
    parsed: Any
    expanded: dict[str, Any]

    @classmethod
    def of(cls, text: str) -> AvroSchema:
        """Parse a schema; ValueError for text that is not JSON or an impossible default, and fastavro's own errors."""
        raw, names = json.loads(text), dict[str, Any]()
        parsed: Any = fastavro.parse_schema(raw, named_schemas=names)
        expanded: Any = fastavro.parse_schema(raw, expand=True)
        _decode_defaults(names)
        return cls(text, parsed, expanded)


def read_avro(reference: str, folder: Path) -> AvroSchema:
    """Read the record schema of an .avsc file."""
    path = folder / reference
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SchemaInvalid(f"{path}: {error.strerror}", kept=KEPT, then=f"put the Avro schema into {path}") from None
    except ValueError as error:
        raise SchemaInvalid(f"{path} is not JSON: {error}", kept=KEPT, then=f"fix {path}") from None
    try:
        schema = AvroSchema.of(json.dumps(raw))
    except Exception as error:  # fastavro also lets KeyError and TypeError through
        why = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise SchemaInvalid(f"{path} is not an Avro schema: {why}", kept=KEPT, then=f"fix {path}") from None
    if not isinstance(schema.expanded, dict) or schema.expanded.get("type") != "record":
        raise SchemaInvalid(f"{path} does not define a record", kept=KEPT, then="let its outermost type be a record")
    return schema


def _decode_defaults(names: Mapping[str, Any]) -> None:
    """Replace each default with the value that it means; fastavro takes it from the JSON as it is.

    There, bytes and decimals are text, and a record may lack the fields that have a default of their own.
    """
    records = [each for each in names.values() if "fields" in each]
    found = [
        (field, _default(field["type"], field["default"], names, f"{each['name']}.{field['name']}"))
        for each in records
        for field in each["fields"]
        if "default" in field
    ]
    for field, value in found:
        field["default"] = value


def _default(avro: Avro, value: Any, names: Mapping[str, Any], field: str) -> Any:
    plain = optional(avro)
    if plain is None or (value is None and isinstance(avro, list)):
        return value
    if isinstance(plain, str):
        plain = names.get(plain, plain)
    match kind(plain), definition(plain), value:
        case "bytes" | "fixed", parts, str():
            return _default_bytes(parts, value, field)
        case "array", {"items": items}, list():
            return [_default(items, each, names, field) for each in value]
        case "map", {"values": of}, dict():
            return {name: _default(of, each, names, field) for name, each in value.items()}
        case "record", {"fields": fields}, dict():
            needed = {each["name"] for each in fields if "default" not in each and not _nullable(each["type"])}
            lacking = sorted(needed - set(value))
            if lacking:
                raise ValueError(f"the default of {field} lacks {', '.join(lacking)}")
            given = [(each, value.get(each["name"], each.get("default"))) for each in fields]
            return {each["name"]: _default(each["type"], own, names, field) for each, own in given}
        case ("bytes" | "fixed" | "array" | "map" | "record") as expected, _, _:
            raise ValueError(f"the default of {field} has {value!r} for {expected}")
    return value


def _nullable(avro: Avro) -> bool:
    return isinstance(avro, list) and any(kind(each) == "null" for each in avro)


def _default_bytes(avro: dict[str, Any], text: str, field: str) -> bytes | Decimal:
    """Return what a text stands for, a byte per character: bytes, or the decimal that they hold."""
    try:
        value = text.encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError(f"the default of {field} has {text!r}, with characters that stand for no byte") from None
    if len(value) != avro.get("size", len(value)):
        raise ValueError(f"the default of {field} has {len(value)} bytes; the type has {avro['size']}")
    match avro:
        case {"logicalType": "decimal", "precision": int(digits)}:
            unscaled = int.from_bytes(value, "big", signed=True)
            if abs(unscaled) >= 10**digits:
                raise ValueError(f"the default of {field} has more than {digits} digits")
            return Decimal(f"{unscaled}E-{avro.get('scale', 0)}")
    return value


def kind(avro: Avro) -> str:
    """Return the type's bare name: `record`, `array`, `long`."""
    if isinstance(avro, list):
        return "union"
    return avro if isinstance(avro, str) else str(avro["type"])


def optional(avro: Avro) -> Avro | None:
    """Return the type next to null in a union, the type itself if it is not a union, or None for any other union."""
    if not isinstance(avro, list):
        return avro
    others = [each for each in avro if kind(each) != "null"]
    return others[0] if len(others) == 1 else None


def definition(avro: Avro) -> dict[str, Any]:
    """Return the attributes of a type's definition; empty for a mere name."""
    return avro if isinstance(avro, dict) else {}


def logical(avro: Avro) -> str:
    """Return the type with its logical type, such as `long:timestamp-millis`; without one, the plain type."""
    named = definition(avro).get("logicalType")
    return f"{kind(avro)}:{named}" if named else kind(avro)


def spark_type(avro: Avro, path: str = "") -> DataType:
    """Return the Spark type that holds every value of an Avro type; raise SchemaInvalid if there is none."""
    plain = optional(avro)
    if plain is None:
        choices = ", ".join(kind(each) for each in avro)
        raise _refused(
            path, f"a union of {choices}; only a union of null and one other type has a column type in Spark"
        )
    parts = definition(plain)
    match kind(plain), parts:
        case "record", _:
            if not parts["fields"]:
                raise _refused(path, "a record without fields")
            fields = [StructField(f["name"], spark_type(f["type"], _below(path, f["name"]))) for f in parts["fields"]]
            return StructType(fields)
        case "array", _:
            return ArrayType(spark_type(parts["items"], _below(path, "element")))
        case "map", _:
            return MapType(StringType(), spark_type(parts["values"], _below(path, "value")))
        case (("bytes" | "fixed"), {"logicalType": "decimal", "precision": int(digits)}):
            if digits > DECIMAL_DIGITS:
                raise _refused(path, f"a decimal of {digits} digits; Spark has {DECIMAL_DIGITS}")
            return DecimalType(digits, int(parts.get("scale", 0)))
        case "null", _:
            raise _refused(path, "null and nothing else")
    leaf = _LEAVES.get(logical(plain)) or _LEAVES.get(kind(plain))
    if leaf is None:
        raise _refused(path, f"{kind(plain)}, which contains itself")
    return leaf


def spark_schema(avro: dict[str, Any]) -> StructType:
    """Return the Spark schema of an Avro record."""
    found = spark_type(avro)
    if not isinstance(found, StructType):
        raise SchemaInvalid("the Avro schema does not define a record", kept=KEPT)
    return found


def misfits(spark: DataType, avro: Avro, path: str = "") -> Iterator[str]:
    """Yield why rows of a Spark type cannot be written with an Avro schema; null values are not considered."""
    plain = optional(avro)
    here = path or "the row"
    if plain is None:
        yield f"{here}: a union that Spark cannot hold"
        return
    parts = definition(plain)
    match kind(plain), spark:
        case "record", StructType():
            yield from _misfits_of_record(spark, parts, path)
        case "array", ArrayType():
            yield from misfits(spark.elementType, parts["items"], _below(path, "element"))
        case "map", MapType():
            if not isinstance(spark.keyType, StringType):
                yield f"{here}: the keys are {spark.keyType.simpleString()}, and Avro has string"
            yield from misfits(spark.valueType, parts["values"], _below(path, "value"))
        case _:
            wanted = spark_type(plain, path)
            if not _holds(wanted, spark):
                expected = f"{logical(plain)} (in Spark: {wanted.simpleString()})"
                yield f"{here}: {spark.simpleString()}, but the schema has {expected}"


def _misfits_of_record(spark: StructType, avro: dict[str, Any], path: str) -> Iterator[str]:
    fields = {field["name"]: field for field in avro["fields"]}
    for name, field in fields.items():
        if name in spark.names:
            yield from misfits(spark[name].dataType, field["type"], _below(path, name))
        elif "default" not in field:
            yield f"{_below(path, name)}: in the schema without a default, but not among the columns"
    for name in spark.names:
        if name not in fields:
            yield f"{_below(path, name)}: among the columns, but not in the schema"


def _holds(wanted: DataType, found: DataType) -> bool:
    if isinstance(wanted, DecimalType) and isinstance(found, DecimalType):
        integer_digits = wanted.precision - wanted.scale
        return found.scale <= wanted.scale and found.precision - found.scale <= integer_digits
    return type(found) is type(wanted) or isinstance(found, _NARROWER.get(type(wanted), ()))


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _refused(path: str, what: str) -> SchemaInvalid:
    return SchemaInvalid(
        f"the Avro schema's field {path or '(the record itself)'} is {what}",
        kept=KEPT,
        then="change the field's type, or read the topic with format raw",
    )
