"""Rows for the gateway in Arrow: the counterpart of `tailrace.stages.rows` and the end of `tailrace.stages.encode`.

Good rows keep their arrays. Only rejected rows, which are few, are built one by one, because each has its own headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tailrace.gateway.schemas import ROW_SCHEMA
from tailrace.kafka.rejected_headers import (
    DETAIL_LENGTH,
    HEADER_DETAIL,
    HEADER_OFFSET,
    HEADER_PARTITION,
    HEADER_REASON,
    HEADER_SINK_TOPIC,
    HEADER_STAGE,
    HEADER_TIMESTAMP,
    HEADER_TOPIC,
    NUL_IN_HEADER,
)
from tailrace.stages.encode import BAD_HEADER, BAD_PARTITION, BAD_TIMESTAMP, NO_TOPIC

Header = Mapping[str, Any]

HEADERS = ROW_SCHEMA.field("headers").type
# Kafka's records as a reader hands them over.
RECORD = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("headers", HEADERS),
    ]
)
# Where a record came from: the struct `kafka` of `tailrace.stages.decode`.
ORIGIN = [RECORD.field(name) for name in ("key", "topic", "partition", "offset", "timestamp", "headers")]

_DAY = 86_400_000  # milliseconds


def origin(batch: pa.RecordBatch) -> pa.StructArray:
    """Return the struct `kafka` of Kafka's records."""
    return pa.StructArray.from_arrays([column(batch, field.name) for field in ORIGIN], fields=ORIGIN)


def column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column of Kafka's records in the type that RECORD gives it."""
    found, wanted = batch.column(name), RECORD.field(name).type
    return found if found.type.equals(wanted) else found.cast(wanted)


def milliseconds(moments: pa.Array) -> pa.Array:
    """Return the milliseconds since 1970, rounded down as Spark's `unix_millis` does."""
    if moments.type.unit == "ms":
        return moments.view(pa.int64())
    if moments.type.unit == "s":
        return pc.multiply(moments.view(pa.int64()), 1000)
    return _floored(moments.view(pa.int64()), 1_000 if moments.type.unit == "us" else 1_000_000)


def _floored(number: pa.Array, unit: int) -> pa.Array:
    """Return the whole units in integers, rounded down."""
    whole = pc.divide(number, unit)
    below = pc.less(pc.subtract(number, pc.multiply(whole, unit)), 0)
    return pc.subtract(whole, below.cast(pa.int64())) if pc.any(below, min_count=0).as_py() else whole


def rejected(
    records: pa.RecordBatch,
    kafka: pa.StructArray,
    where: Sequence[int],
    reasons: Sequence[str],
    details: Sequence[str],
    stages: Sequence[str],
) -> pa.RecordBatch:
    """Build the rows for rejected records: the original bytes, and headers that say why and from where."""
    chosen = pa.array(where, pa.int64())
    origins, own = _origins(kafka, chosen), kafka.field("headers").take(chosen).to_pylist()
    headers = [
        [*(kept or []), *_reason_headers(stage, reason, detail, each)]
        for kept, each, stage, reason, detail in zip(own, origins, stages, reasons, details, strict=True)
    ]
    return _laid_out(
        len(where),
        key=column(records, "key").take(chosen),
        value=column(records, "value").take(chosen),
        headers=pa.array(headers, HEADERS),
        reason=pa.array(reasons, pa.string()),
    )


def finished(
    address: Mapping[str, pa.Array], value: pa.Array, kafka: pa.Array | None, refused: Mapping[int, tuple[str, str]]
) -> pa.RecordBatch:
    """Build the rows of encoded values; those refused or impossible to address get a reason and headers."""
    rows = len(value)
    wrong: dict[int, tuple[str, str | None]] = dict(refused)
    for reason, broken in _unaddressed(address):
        for number in pc.indices_nonzero(broken).to_pylist():
            wrong.setdefault(number, (reason, None))
    if not wrong:
        return _laid_out(rows, value=value, **address)
    bad = sorted(wrong)
    mask = pa.array([number in wrong for number in range(rows)])
    origins = _origins(kafka, pa.array(bad, pa.int64())) if kafka is not None else [None] * len(bad)
    headers = address["headers"].to_pylist()
    for number, where in zip(bad, origins, strict=True):
        own = [each for each in headers[number] or [] if each is not None and each["key"] is not None]
        reason, detail = wrong[number]
        headers[number] = [
            *own,
            *_reason_headers("encode", reason, detail, where),
            *_headers({HEADER_SINK_TOPIC: address["topic"][number].as_py()}),
        ]
    return _laid_out(
        rows,
        topic=_without(address["topic"], mask),
        partition=_without(address["partition"], mask),
        key=address["key"],
        value=value,
        headers=pa.array(headers, HEADERS),
        timestamp=_without(address["timestamp"], mask),
        reason=pa.array([wrong[number][0] if number in wrong else None for number in range(rows)], pa.string()),
    )


def _unaddressed(address: Mapping[str, pa.Array]) -> Iterable[tuple[str, pa.Array]]:
    """Yield each reason why rows cannot be addressed, with a mask of the rows; the first reason of a row wins."""
    topic, partition, timestamp = address["topic"], address["partition"], address["timestamp"]
    if topic.null_count:
        yield NO_TOPIC, topic.is_null()
    for reason, column_ in ((BAD_PARTITION, partition), (BAD_TIMESTAMP, timestamp)):
        if column_.null_count < len(column_) and pc.min(column_).as_py() < 0:
            yield reason, pc.fill_null(pc.less(column_, 0), False)
    headers = address["headers"]
    if headers.null_count < len(headers):
        each = headers.flatten()
        if each.null_count or each.field("key").null_count:
            keyless = [any(one is None or one["key"] is None for one in row or []) for row in headers.to_pylist()]
            yield BAD_HEADER, pa.array(keyless)
        if pc.any(pc.match_substring(each.field("key"), "\0")).as_py():
            keys = [[one["key"] for one in row or [] if one is not None] for row in headers.to_pylist()]
            yield NUL_IN_HEADER, pa.array([any("\0" in key for key in row if key is not None) for row in keys])


def _without(values: pa.Array, mask: pa.Array) -> pa.Array:
    return pc.if_else(mask, pa.scalar(None, values.type), values)


def _origins(kafka: pa.StructArray, chosen: pa.Array) -> list[dict[str, Any] | None]:
    """Return where these rows came from; None for a row whose struct is null.

    Timestamps become integers while they are in Arrow: Python's datetime ends with the year 9999.
    """
    found = kafka.take(chosen)
    place = {name: found.field(name) for name in ("topic", "partition", "offset")}
    columns = place | {"timestamp": milliseconds(found.field("timestamp"))}
    rows = zip(*(each.to_pylist() for each in columns.values()), strict=True)
    valid = found.is_valid().to_pylist()
    return [dict(zip(columns, row, strict=True)) if there else None for row, there in zip(rows, valid, strict=True)]


def _reason_headers(stage: str, reason: str, detail: str | None, kafka: Mapping[str, Any] | None) -> list[Header]:
    why = {
        HEADER_STAGE: stage,
        HEADER_REASON: reason,
        HEADER_DETAIL: None if detail is None else detail[:DETAIL_LENGTH],
    }
    if kafka is None:
        return _headers(why)
    place = {HEADER_TOPIC: kafka["topic"], HEADER_PARTITION: kafka["partition"], HEADER_OFFSET: kafka["offset"]}
    return _headers(why | place | {HEADER_TIMESTAMP: kafka["timestamp"]})


def _headers(values: Mapping[str, object]) -> list[Header]:
    return [
        {"key": name, "value": str(value).encode("utf-8", "replace")}
        for name, value in values.items()
        if value is not None
    ]


def _laid_out(rows: int, **columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [columns[field.name] if field.name in columns else pa.nulls(rows, field.type) for field in ROW_SCHEMA],
        schema=ROW_SCHEMA,
    )


def plain(array: pa.Array) -> pa.Array:
    """Convert an array to types that Spark has: decode dictionaries, make large and view types plain.

    Times that are finer than Spark's are rounded down: nanoseconds, and days with a time of day.
    """
    wanted = _plain(array.type)
    if wanted.equals(array.type):
        return array
    try:
        return array.cast(wanted)
    except pa.ArrowInvalid:  # only a cast that rounds nothing is safe
        return _rounded(array.cast(_plain(array.type, rounds=False)), wanted)


def _rounded(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Convert an array of types that are plain but for their finer times."""
    if array.type.equals(wanted):
        return array
    if pt.is_timestamp(wanted):
        return _floored(array.view(pa.int64()), 1_000).view(wanted)
    if pt.is_date(wanted):
        return _floored(array.view(pa.int64()), _DAY).cast(pa.int32()).view(wanted)
    missing = array.is_null() if array.null_count else None
    if pt.is_struct(wanted):
        parts = [_rounded(part, field.type) for part, field in zip(array.flatten(), wanted, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=missing)
    array = array.take(pa.array(range(len(array)), pa.int64()))  # a slice keeps the items of the others
    if pt.is_map(wanted):
        keys, items = _rounded(array.keys, wanted.key_type), _rounded(array.items, wanted.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=wanted, mask=missing)
    values = _rounded(array.values, wanted.value_type)
    return pa.ListArray.from_arrays(array.offsets, values, type=wanted, mask=missing)


def _plain(kind: pa.DataType, *, rounds: bool = True) -> pa.DataType:
    """Return the plain type; without `rounds`, finer times stay as they are."""
    if pt.is_dictionary(kind):
        return _plain(kind.value_type, rounds=rounds)
    if pt.is_large_string(kind) or kind.id == pa.string_view().id:
        return pa.string()
    if pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind) or kind.id == pa.binary_view().id:
        return pa.binary()
    if not rounds and (pt.is_date64(kind) or (pt.is_timestamp(kind) and kind.unit == "ns")):
        return kind
    if pt.is_date64(kind):
        return pa.date32()
    if pt.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    if pt.is_uint8(kind) or pt.is_uint16(kind) or pt.is_uint32(kind):
        return {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}[kind.bit_width]
    if pt.is_float16(kind):
        return pa.float32()
    if pt.is_decimal32(kind) or pt.is_decimal64(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if pt.is_struct(kind):
        return pa.struct([_plain_field(kind.field(index), rounds=rounds) for index in range(kind.num_fields)])
    if pt.is_map(kind):
        return pa.map_(_plain(kind.key_type, rounds=rounds), _plain_field(kind.item_field, rounds=rounds))
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field, rounds=rounds))
    return kind


def _plain_field(field: pa.Field, *, rounds: bool) -> pa.Field:
    wanted = _plain(field.type, rounds=rounds)
    return field if wanted.equals(field.type) else field.with_type(wanted)
