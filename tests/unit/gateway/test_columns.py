"""Small Arrow batches are joined: each costs the stages as much as several hundred records."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.gateway import columns
from tailrace.gateway.columns import joined
from tailrace.gateway.schemas import RECORDS

SMALL = columns._SMALL


def records(first: int, count: int, value: bytes = b"v") -> pa.RecordBatch:
    """Return a batch of records with these offsets."""
    made = {
        "key": pa.nulls(count, pa.binary()),
        "value": pa.array([value] * count, pa.binary()),
        "offset": pa.array(range(first, first + count), pa.int64()),
    }
    return pa.RecordBatch.from_pydict(made, schema=pa.schema([RECORDS.field(name) for name in made]))


def offsets(batches: list[pa.RecordBatch]) -> list[int]:
    """Return the offsets of all records."""
    return [offset for each in batches for offset in each.column("offset").to_pylist()]


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 60))
def test_joined_batches_hold_the_same_records_in_the_same_order(sizes: list[int], most: int) -> None:
    """No batch becomes larger than asked for, and no two neighbours would fit into one."""
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    made = [records(start, min(size, most)) for start, size in zip(starts, sizes, strict=True)]
    found = list(joined(iter(made), most))
    assert offsets(found) == offsets(made)
    assert all(each.num_rows <= most for each in found)
    assert all(one.num_rows + two.num_rows > most for one, two in pairwise(found))


@pytest.mark.parametrize("large", [records(1, SMALL + 1), records(1, 1, b"x" * (columns._SMALL_BYTES + 1))])
def test_large_batch_waits_for_no_other(large: pa.RecordBatch) -> None:
    """Whatever is read after it may take long, and its records can be processed meanwhile."""
    asked: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number, each in enumerate((records(0, 1), large, records(9, 1))):
            asked.append(number)
            yield each

    found = joined(batches(), 10 * SMALL)
    assert [next(found).num_rows, next(found).num_rows, asked] == [1, large.num_rows, [0, 1]]
    assert [each.num_rows for each in found] == [1]


def test_full_batch_waits_for_no_other() -> None:
    """Nothing fits into it any more, and the next records may be those of a transaction that is open."""
    asked: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(4):
            asked.append(number)
            yield records(5 * number, 5)

    assert [next(joined(batches(), 10)).num_rows, asked] == [10, [0, 1]]
