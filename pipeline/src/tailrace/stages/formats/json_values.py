"""Convert values from `json.loads` to those that Arrow takes for a Spark type; refuse values of another type.

A type's valid values are those that Spark's JSON parser accepts: `"Infinity"` for a double, seconds since 1970 for a
timestamp, any value as the text of a string field. `json_records` lists the few forms that only Spark accepts. DECIMAL
and DATE are stricter than Spark, which rounds the one and cuts the other: a value that does not fit exactly is refused.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Context, Decimal, DecimalException
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
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
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tailrace.stages.formats.json_schema import SHOWN
from tailrace.stages.formats.json_text import jackson_text

Convert = Callable[[Any], Any]

_RANGES = {ShortType: 2**15, IntegerType: 2**31, LongType: 2**63}
_SPECIAL = {
    "NaN": math.nan, "Infinity": math.inf, "+Infinity": math.inf, "+INF": math.inf, "-Infinity": -math.inf,
    "-INF": -math.inf,
}  # fmt: skip
_FLOAT_LIMIT = 2.0**128 - 2.0**103  # from here on a float is infinite
_FLOAT_MOST = 2.0**128 - 2.0**104
_TIE = 1 << 28  # the bits of a double that a float lacks, where it is halfway between two floats
_EXACT = Context(prec=100)
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DATE = re.compile(r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})(?:[T ]00:00(?::00(?:\.0+)?)?Z?)?")
_TIME = re.compile(
    r"\+?([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
    r"(?:[T ]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?\ *(\S*))?)?)?)?)?"
)
_ZONE = re.compile(r"(?:UTC|GMT|UT)?(?:([+-])([0-9:]+))?")
# Hours, minutes and seconds of an offset.
_OFFSETS = tuple(
    re.compile(each)
    for each in (
        r"([0-9]{1,2})(?::([0-9]{1,2}))?", r"([0-9]{2})([0-9]{2})", r"([0-9]{2}):([0-9]{2}):([0-9]{2})",
        r"([0-9]{2})([0-9]{2})([0-9]{2})",
    )
)  # fmt: skip
_BASE64 = re.compile(r"[\0-\x20]*([A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)")
_BLANK = "".join(map(chr, range(0x21)))
_FARTHEST = timedelta(hours=18)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class WrongType(Exception):
    """Raised for a value that is not of its field's type."""


class Repeated(dict[str, Any]):
    """An object in which a name occurs more than once; `pairs` has all of them."""

    pairs: list[tuple[str, Any]]


def leaves(kind: DataType) -> Iterator[DataType]:
    """Yield the types that contain no others."""
    match kind:
        case StructType():
            for field in kind:
                yield from leaves(field.dataType)
        case ArrayType():
            yield from leaves(kind.elementType)
        case MapType():
            yield from leaves(kind.valueType)
        case _:
            yield kind


def zone_of(name: str) -> tzinfo:
    """Return the time zone that Spark calls so: a region, or an offset such as `+01:00` or `GMT+1`."""
    try:
        return timezone(_offset("" if name == "Z" else name))
    except WrongType:
        return ZoneInfo(name)


def converter(kind: DataType, zone: tzinfo = UTC) -> Convert:
    """Return the function from a JSON value that is not null to Arrow's value; it raises WrongType.

    A timestamp that names no zone is one of `zone`.
    """
    match kind:
        case StructType():
            return struct_converter(kind, zone)
        case ArrayType():
            return _array(converter(kind.elementType, zone))
        case MapType():
            return _map(converter(kind.valueType, zone))
        case ShortType() | IntegerType() | LongType():
            return _integer(_RANGES[type(kind)])
        case DecimalType():
            return _decimal(kind)
        case TimestampType():
            return _timestamp(zone)
    return _LEAVES[type(kind)]


def struct_converter(kind: StructType, zone: tzinfo = UTC) -> Convert:
    """Return the function from an object to a row's fields by name; it raises WrongType."""
    fields = [(field.name, converter(field.dataType, zone)) for field in kind]
    by_name = dict(fields)

    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise WrongType
        if isinstance(value, Repeated):
            row = dict.fromkeys(by_name)
            for name, each in value.pairs:
                if name in by_name:
                    row[name] = None if each is None else by_name[name](each)
            return row
        get = value.get
        return {name: None if (each := get(name)) is None else inner(each) for name, inner in fields}

    return convert


def _array(inner: Convert) -> Convert:
    def convert(value: Any) -> list[Any]:
        if type(value) is not list:
            raise WrongType
        return [None if each is None else inner(each) for each in value]

    return convert


def _map(inner: Convert) -> Convert:
    def convert(value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise WrongType
        pairs = value.pairs if isinstance(value, Repeated) else value.items()
        return [(name, None if each is None else inner(each)) for name, each in pairs]

    return convert


def _integer(limit: int) -> Convert:
    def convert(value: Any) -> int:
        if type(value) is not int or not -limit <= value < limit:
            raise WrongType
        return value

    return convert


def _decimal(kind: DecimalType) -> Convert:
    unit, limit = Decimal(1).scaleb(-kind.scale), Decimal(10) ** (kind.precision - kind.scale)

    def convert(value: Any) -> Decimal:
        if type(value) is str:  # many producers write decimals as text, so that no reader makes doubles of them
            if _DECIMAL.fullmatch(value) is None:
                raise WrongType
        elif type(value) is not int and type(value) is not Decimal:
            raise WrongType
        try:
            exact = Decimal(value)
            if exact.copy_abs() >= limit:
                raise WrongType
            found = exact.quantize(unit, context=_EXACT)
        except DecimalException:
            raise WrongType from None
        if found != exact:
            raise WrongType
        return found

    return convert


def misfit_of(path: str, kind: DataType, value: Any) -> str:
    """Say that the field's value, as JSON writes it, is not of its type."""
    text = str(value) if isinstance(value, Decimal) else jackson_text(value)
    return f"{path} is not {kind.simpleString()}: {text if len(text) <= SHOWN else text[: SHOWN - 1] + '…'}"


def as_text(value: Any) -> str:
    """Return the value as a string field holds it."""
    return value if type(value) is str else jackson_text(value)


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise WrongType
    return value


def _double(value: Any) -> float:
    kind = type(value)
    if kind is float:
        return float(value)
    if kind is str and value in _SPECIAL:
        return _SPECIAL[value]
    if kind is not int and kind is not Decimal:
        raise WrongType
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _float(value: Any) -> float:
    found = _double(value)
    if abs(found) >= _FLOAT_LIMIT:
        # abs() would round a Decimal, or overflow.
        below = type(value) in (int, Decimal) and -_FLOAT_LIMIT < value < _FLOAT_LIMIT
        return math.copysign(_FLOAT_MOST if below else math.inf, found)
    if struct.unpack("<q", struct.pack("<d", found))[0] & (2 * _TIE - 1) == _TIE and type(value) in (int, Decimal):
        # Rounding twice could go the wrong way; Arrow reads the digits themselves.
        return float(pa.scalar(str(value)).cast(pa.float32()).as_py())
    return found


def _binary(value: Any) -> bytes:
    if type(value) is not str:
        raise WrongType
    found, at = bytearray(), 0
    text = value.rstrip(_BLANK)
    while at < len(text):
        part = _BASE64.match(text, at)
        if part is None:
            raise WrongType
        found += base64.b64decode(part[1])
        at = part.end()
    return bytes(found)


def _date(value: Any) -> date:
    found = _DATE.fullmatch(value.strip(_BLANK)) if type(value) is str else None
    if found is None:
        raise WrongType
    try:
        return date(int(found[1]), int(found[2]), int(found[3]))
    except ValueError:
        raise WrongType from None


def _timestamp(local: tzinfo) -> Convert:
    def convert(value: Any) -> datetime:
        try:
            if type(value) is int:
                return _EPOCH + timedelta(seconds=value)
            moment, zone = _moment(value)
            if zone:
                return moment if zone == "Z" else moment - _offset(zone)
            return moment if local is UTC else moment.replace(tzinfo=local).astimezone(UTC)
        except OverflowError:
            raise WrongType from None

    return convert


def _offset(zone: str) -> timedelta:
    found = _ZONE.fullmatch(zone)
    if found is None:
        raise WrongType
    if not found[1]:
        return timedelta()
    parts = next((match for each in _OFFSETS if (match := each.fullmatch(found[2]))), None)
    if parts is None:
        raise WrongType
    hours, minutes, seconds = (int(part or 0) for part in [*parts.groups(), None, None][:3])
    ahead = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    if minutes > 59 or seconds > 59 or ahead > _FARTHEST:
        raise WrongType
    return -ahead if found[1] == "-" else ahead


def _timestamp_ntz(value: Any) -> datetime:
    moment, zone = _moment(value)
    if zone:
        raise WrongType
    return moment.replace(tzinfo=None)


def _moment(value: Any) -> tuple[datetime, str]:
    """Split the text into the time, as if in UTC, and the zone."""
    found = _TIME.fullmatch(value.strip(_BLANK)) if type(value) is str else None
    if found is None:
        raise WrongType
    fraction = int((found[7] or "")[:6].ljust(6, "0"))
    try:
        return datetime(
            int(found[1]), int(found[2] or 1), int(found[3] or 1),
            int(found[4] or 0), int(found[5] or 0), int(found[6] or 0), fraction, UTC,
        ), found[8] or ""  # fmt: skip
    except ValueError:
        raise WrongType from None


_LEAVES: dict[type[DataType], Convert] = {
    StringType: as_text, BooleanType: _boolean, DoubleType: _double, FloatType: _float, BinaryType: _binary,
    DateType: _date, TimestampNTZType: _timestamp_ntz,
}  # fmt: skip
