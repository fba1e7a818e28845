"""Rows for the gateway in Arrow: where rejected records came from, whatever their timestamps."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tailrace.kafka.rejected_headers import HEADER_OFFSET, HEADER_TIMESTAMP, HEADER_TOPIC
from tailrace.stages.arrow_rows import HEADERS, RECORD, finished, milliseconds, origin, plain, rejected

MICROSECONDS = [1_700_000_000_123_456, 1_700_000_000_000_000_000, -1_500, -(2**63), 2**63 - 1, None]
MILLISECONDS = [b"1700000000123", b"1700000000000000", b"-2", b"-9223372036854776", b"9223372036854775", None]


def records() -> pa.RecordBatch:
    """Return a record for each timestamp."""
    count = len(MICROSECONDS)
    columns: dict[str, Any] = {
        "value": [b"v%d" % number for number in range(count)],
        "topic": ["in"] * count,
        "partition": [3] * count,
        "offset": list(range(count)),
        "headers": [[{"key": "own", "value": b"1"}], *[None] * (count - 1)],
    }
    arrays = [
        pa.array(MICROSECONDS, pa.int64()).cast(field.type)
        if field.name == "timestamp"
        else pa.array(columns.get(field.name, [None] * count), field.type)
        for field in RECORD
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD)


def headers(rows: pa.RecordBatch, name: str) -> list[bytes | None]:
    """Return this header of each row."""
    found = [{each["key"]: each["value"] for each in row} for row in rows.column("headers").to_pylist()]
    return [row.get(name) for row in found]


def test_rejected_records_of_any_time_have_it_in_milliseconds() -> None:
    """A time beyond the year 9999, which Python's datetime lacks, is a header like any other."""
    batch, count = records(), len(MICROSECONDS)
    rows = rejected(batch, origin(batch), range(count), ["r"] * count, ["d"] * count, ["decode"] * count)
    assert headers(rows, HEADER_TIMESTAMP) == MILLISECONDS
    assert headers(rows, HEADER_OFFSET) == [b"%d" % number for number in range(count)]
    assert headers(rows, "own") == [b"1", *[None] * (count - 1)]


def test_refused_rows_of_any_time_have_it_in_milliseconds() -> None:
    """A row that cannot be written names the record that it came from, if the function has kept that."""
    kafka, count = origin(records()), len(MICROSECONDS)
    without = pa.array([False] * (count - 1) + [True])
    kafka = pa.StructArray.from_arrays(kafka.flatten(), fields=list(kafka.type), mask=without)
    address = {
        "topic": pa.array(["out"] * count),
        "partition": pa.nulls(count, pa.int32()),
        "key": pa.nulls(count, pa.binary()),
        "headers": pa.nulls(count, HEADERS),
        "timestamp": pa.nulls(count, pa.int64()),
    }
    wrong = dict.fromkeys(range(count), ("no good", "because"))
    rows = finished(address, pa.array([b"v"] * count), kafka, wrong)
    assert headers(rows, HEADER_TIMESTAMP) == MILLISECONDS
    assert headers(rows, HEADER_TOPIC) == [*[b"in"] * (count - 1), None]


DAY = 86_400_000  # milliseconds
NANOSECONDS = [1_700_000_000_000_000_999, -1, -1_000, -(2**63), 2**63 - 1, 0, None]
FLOORED = [1_700_000_000_000_000, -1, -1, -9_223_372_036_854_776, 9_223_372_036_854_775, 0, None]
MOMENTS = [DAY + 1, -1, -DAY, -DAY - 1, 5, 0, None]
DAYS = [1, -1, -1, -2, 0, 0, None]


def within(values: pa.Array) -> list[pa.Array]:
    """Return arrays of all kinds of types that hold these values, a slice and nulls among them."""
    count = len(values)
    offsets = pa.array([0, 2, 2, count], pa.int32())
    struct = pa.StructArray.from_arrays([values, pa.array(range(count))], ["at", "n"])
    some = pa.ListArray.from_arrays(offsets, values, mask=pa.array([False, True, False]))
    return [
        values,
        values.slice(1),
        values.dictionary_encode(),
        struct,
        struct.slice(2),
        pa.StructArray.from_arrays([values], ["at"], mask=pa.array([True] + [False] * (count - 1))),
        some,
        some.slice(2),
        pa.LargeListArray.from_arrays(offsets.cast(pa.int64()), struct),
        pa.FixedSizeListArray.from_arrays(values.slice(1), 3),
        pa.MapArray.from_arrays(offsets, pa.array([f"k{each}" for each in range(count)]), values).slice(1),
    ]


def as_numbers(value: Any) -> Any:
    """Return a scalar's value, with a moment or a day as its number."""
    if isinstance(value, pa.StructScalar):
        return {name: as_numbers(each) for name, each in value.items()} if value.is_valid else None
    if isinstance(value, pa.MapScalar | pa.ListScalar):
        return None if not value.is_valid else [as_numbers(each) for each in value.values]
    if isinstance(value, pa.DictionaryScalar):
        return as_numbers(value.value)
    return value.value if isinstance(value, pa.TimestampScalar | pa.Date32Scalar | pa.Date64Scalar) else value.as_py()


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Paris"])
def test_nanoseconds_are_rounded_down_wherever_they_are(zone: str | None) -> None:
    """Spark has microseconds; a moment before 1970 is rounded down too, as it is in milliseconds."""
    given = within(pa.array(NANOSECONDS, pa.timestamp("ns", zone)))
    wanted = within(pa.array(FLOORED, pa.timestamp("us", zone and "UTC")))
    compared(given, wanted)
    assert milliseconds(plain(given[0])).equals(milliseconds(given[0]))


def test_day_with_a_time_is_the_day_wherever_it_is() -> None:
    """Arrow's type of days in milliseconds can hold a time of day, which Spark's cannot."""
    compared(within(pa.array(MOMENTS, pa.date64())), within(pa.array(DAYS, pa.date32())))


def compared(given: list[pa.Array], wanted: list[pa.Array]) -> None:
    """Check that each array becomes the other one."""
    for each, expected in zip(given, wanted, strict=True):
        found = plain(each)
        found.validate(full=True)
        assert found.type.equals(plain(expected).type), each.type
        assert [as_numbers(one) for one in found] == [as_numbers(one) for one in plain(expected)], each.type
