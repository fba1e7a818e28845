"""Rows for the gateway in Arrow: where rejected records came from, whatever their timestamps."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tailrace.kafka.rejected_headers import HEADER_OFFSET, HEADER_TIMESTAMP, HEADER_TOPIC
from tailrace.stages.arrow_rows import HEADERS, RECORD, finished, origin, rejected

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
