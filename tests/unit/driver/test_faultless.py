"""The records of a part without the faulty ones: what is taken aside, and when."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pyarrow as pa
import pytest

from tailrace.driver.faultless import without
from tailrace.stages.arrow_rows import RECORD

FAULTS = {("in", 0): {1: "ValueError: no", 3: "ValueError: no"}}


def batch(start: int, end: int) -> pa.RecordBatch:
    """Return records with these offsets."""
    rows = [{"topic": "in", "partition": 0, "offset": offset, "value": b"%d" % offset} for offset in range(start, end)]
    return pa.RecordBatch.from_pylist(rows, schema=RECORD)


def test_faulty_records_are_taken_before_the_reader_is_asked_again() -> None:
    """Once the reader has told the gateway that all is read, the attempt may commit: without them, they were lost."""
    log: list[str] = []

    def reader() -> Generator[Any, None, str]:
        yield batch(0, 2)
        log.append("asked for the second batch")
        yield batch(2, 4)
        log.append("read to the end")
        return "done"

    def take(rows: pa.RecordBatch) -> None:
        log.append(f"took {rows.column('value').to_pylist()}")

    records = without(reader(), FAULTS, ("value", "offset"), take)
    passed = [next(records), next(records)]
    with pytest.raises(StopIteration, match="done"):
        next(records)
    assert [each.column("offset").to_pylist() for each in passed] == [[0], [2]]
    assert passed[0].schema.names == ["value", "offset"]
    assert log == ["took [b'1']", "asked for the second batch", "took [b'3']", "read to the end"]
