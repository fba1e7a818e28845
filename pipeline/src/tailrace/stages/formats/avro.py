"""Avro in Spark's Python workers: decode one record's bytes to fields, and encode a row to bytes.

fastavro is fast but lenient: it reads a missing last boolean as false, ignores bytes after the end of the schema, and
writes null as false and a number too large for an int. So reading checks that exactly the record was consumed, and
writing checks each value first. Whether the *types* fit was checked before, on the driver.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from datetime import datetime
from datetime import time as TimeOfDay  # noqa: N812
from io import BytesIO
from typing import Any
from uuid import UUID

import fastavro

from tailrace.config import Registry as RegistrySettings
from tailrace.stages.formats.arrow import Decoder, Misfit
from tailrace.stages.formats.avro_schema import Avro, AvroSchema, definition, kind, logical, optional
from tailrace.stages.formats.avro_writer import DAY, Writer, writer
from tailrace.stages.formats.registry import SchemaUnknown, registry

Convert = Callable[[Any], Any]

NOT_AVRO = "not avro"
UNKNOWN_SCHEMA = "unknown schema"
MISFIT = "does not fit the schema"

MAGIC = 0
PREFIX = struct.Struct(">bI")
# One byte more than the record has: a reader that consumes it has read too far, which fastavro does not always notice.
BEYOND = b"\0"
_LARGE = 1 << 20  # bytes of a record that a worker may be too small for
_LAST_ID = (1 << 31) - 1  # a registry has Java's ints
_ASKED_AGAIN = 10.0  # seconds after which the registry may know an id
_MOST_UNKNOWN = 10_000  # ids that are remembered as unknown


def decoder(schema: AvroSchema, settings: RegistrySettings | None) -> Decoder:
    """Reads one record: plain Avro, or with a registry the Confluent wire format."""
    conversions = [(f["name"], c) for f in schema.expanded["fields"] if (c := _from_datum(f["type"])) is not None]
    schemas = registry(settings) if settings is not None else None
    own = writer(schema.text, {}) if schemas is None else None
    unknown: dict[int, tuple[str, float]] = {}  # why, and until when

    def writer_of(number: int) -> Writer:
        if schemas is None or number > _LAST_ID:  # of which a registry says as little as a proxy in its place
            raise Misfit(UNKNOWN_SCHEMA, f"schema ids end at {_LAST_ID}, and the value has {number}")
        why, until = unknown.get(number, ("", 0.0))
        if time.monotonic() < until:
            raise Misfit(UNKNOWN_SCHEMA, why)
        try:
            return schemas.writer(number)
        except SchemaUnknown as error:
            if len(unknown) >= _MOST_UNKNOWN:
                unknown.clear()
            unknown[number] = str(error), time.monotonic() + _ASKED_AGAIN
            raise Misfit(UNKNOWN_SCHEMA, str(error)) from None

    def decode(record: bytes) -> dict[str, Any]:
        if own is not None:
            written, start = own, 0
        else:
            if len(record) < PREFIX.size or record[0] != MAGIC:
                raise Misfit(NOT_AVRO, "the value does not begin with a zero byte and a schema id")
            written, start = writer_of(PREFIX.unpack_from(record)[1]), PREFIX.size
        stream = BytesIO(record + BEYOND)
        stream.seek(start)
        try:
            row: Any = written.read(stream, len(record), schema.parsed if own is None else None)
            for name, convert in conversions:
                row[name] = convert(row[name])
        except Exception as error:  # fastavro raises whatever the bytes lead to
            if isinstance(error, MemoryError) and len(record) > _LARGE:
                raise  # of a worker that is short of memory; of a small record, it is a length that cannot be
            if isinstance(error, RecursionError):
                raise Misfit(NOT_AVRO, "the value is nested too deeply") from None
            raise Misfit(NOT_AVRO, f"{type(error).__name__}: {error}") from None
        read = stream.tell()
        if read > len(record):
            raise Misfit(NOT_AVRO, f"the value ends within the record, after {len(record)} bytes")
        if read < len(record):
            raise Misfit(NOT_AVRO, f"{len(record) - read} bytes follow the record, which ends after {read}")
        return dict(row)

    return decode


def encoder(schema: AvroSchema, schema_id: int | None) -> Callable[[dict[str, Any]], bytes]:
    """Writes one row: plain Avro, or with a schema id the Confluent wire format."""
    prepare = _to_datum(schema.expanded, "")
    prefix = b"" if schema_id is None else PREFIX.pack(MAGIC, schema_id)

    def encode(row: dict[str, Any]) -> bytes:
        stream = BytesIO()
        stream.write(prefix)
        try:
            fastavro.schemaless_writer(stream, schema.parsed, prepare(row))
        except MemoryError:  # says something of the worker, not of the row
            raise
        except Exception as error:  # fastavro raises whatever the value leads to
            raise Misfit(MISFIT, str(error)) from None
        return stream.getvalue()

    return encode


def _from_datum(avro: Avro) -> Convert | None:
    """Return the conversion from fastavro's value to Arrow's, or None if they are the same."""
    plain = optional(avro)
    if isinstance(avro, list) and plain is not None:
        inner = _from_datum(plain)
        return None if inner is None else lambda value: None if value is None else inner(value)
    match logical(avro), definition(avro):
        case "string:uuid", _:
            return str
        case "fixed:uuid", _:
            return lambda value: str(value if isinstance(value, UUID) else UUID(bytes=value))
        case (("long:timestamp-millis" | "long:local-timestamp-millis"), _):
            return _instant
        case "int:time-millis", _:
            return lambda value: value if isinstance(value, int) else _microseconds(value) // 1000
        case "long:time-micros", _:
            return _microseconds
        case "array", {"items": items}:
            each = _from_datum(items)
            return None if each is None else lambda values: [each(value) for value in values]
        case "map", {"values": of}:
            value_of = _from_datum(of)
            if value_of is None:
                return lambda values: list(values.items())
            return lambda values: [(name, value_of(value)) for name, value in values.items()]
        case "record", {"fields": fields}:
            inner_of = {f["name"]: c for f in fields if (c := _from_datum(f["type"])) is not None}
            return (lambda row: row | {n: c(row[n]) for n, c in inner_of.items()}) if inner_of else None
    return None


def _instant(value: datetime | int) -> datetime | int:
    """Return Arrow's value; fastavro leaves a number if the writer's schema has none of the reader's logical type."""
    return value * 1000 if isinstance(value, int) else value


def _microseconds(value: TimeOfDay | int) -> int:
    """Return the microseconds since midnight; a number is one, in the reader's unit, as for `_instant`."""
    if isinstance(value, int):
        return value
    if not isinstance(value, TimeOfDay):  # a moment of a writer that has another logical type
        raise TypeError(f"{value} is no time of day")
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def _to_datum(avro: Avro, path: str) -> Convert:
    """Return the conversion from Arrow's value to fastavro's; it raises ValueError with the field's path."""
    plain = optional(avro)
    if isinstance(avro, list) and plain is not None:
        inner = _to_datum(plain, path)
        name = plain["name"] if isinstance(plain, dict) and "name" in plain else kind(plain)
        # Naming the branch spares fastavro a trial of each.
        return lambda value: None if value is None else (name, inner(value))
    convert = _convert(avro, path)

    def not_null(value: Any) -> Any:
        if value is None:
            raise ValueError(f"{path or 'the row'} is null, and the schema has {logical(avro)}")
        return convert(value)

    return not_null


def _convert(avro: Avro, path: str) -> Convert:
    match logical(avro), definition(avro):
        case "record", {"fields": fields}:
            inner = {f["name"]: _to_datum(f["type"], f"{path}.{f['name']}".lstrip(".")) for f in fields}
            return lambda row: {name: inner[name](value) for name, value in row.items()}
        case "array", {"items": items}:
            each = _to_datum(items, f"{path}.element")
            return lambda values: [each(value) for value in values]
        case "map", {"values": of}:
            value_of = _to_datum(of, f"{path}.value")
            return lambda values: {name: value_of(value) for name, value in values}
        case "enum", {"symbols": symbols}:
            return _among(frozenset(symbols), path)
        case "string:uuid", _:
            return lambda value: _uuid(value, path)
        case "fixed:uuid", _:  # which fastavro leaves to its callers
            return lambda value: _uuid(value, path).bytes
        case ("int:time-millis" | "long:time-micros") as time_of_day, _:
            _, units = DAY[time_of_day.partition(":")[2]]
            return lambda value: _time(value, units, path)
    return _same


def _same(value: Any) -> Any:
    return value


def _among(symbols: frozenset[str], path: str) -> Convert:
    def check(value: str) -> str:
        if value not in symbols:
            raise ValueError(f"{path} is {value!r}, and the schema has {', '.join(sorted(symbols))}")
        return value

    return check


def _time(value: int, units: int, path: str) -> int:
    if not 0 <= value < units:
        raise ValueError(f"{path} is {value}, which is no time of day")
    return int(value)


def _uuid(value: str, path: str) -> UUID:
    try:
        return UUID(value)
    except ValueError:
        raise ValueError(f"{path} is {value!r}, which is no uuid") from None
