"""Where an open batch begins, as its plan and Spark's files tell."""

from __future__ import annotations

import pytest

from tailrace.progress.plan import BatchId, Range
from tailrace.progress.stream_plan import Slice, StreamPlan
from tailrace.spark_stream.beginning import completed, planned, told_by

ENTRY = 'v1\n{"batchWatermarkMs":0}\n{"t":{"0":9,"1":11,"2":4}}\n{"t":{"0":9,"1":11,"2":4}}'
BEFORE = 'v1\n{"batchWatermarkMs":0}\n{"t":{"0":5}}\n{"t":{"0":5}}'


def plan_of(*ranges: str) -> StreamPlan:
    """Return a plan that reads these ranges."""
    return StreamPlan("p", "q", BatchId(1), tuple(map(Range.parse, ranges)), (Slice("#0"),), ENTRY)


def test_batch_begins_where_its_first_ranges_do_and_at_its_end_where_nothing_is_read() -> None:
    """Spark may split a partition, and name one without records."""
    plan = plan_of("t-0:7-9", "t-0:5-7", "t-1:3-11", "gone-0:1-2")
    assert planned(plan, ENTRY) == {("t", 0): 5, ("t", 1): 3, ("t", 2): 4}


@pytest.mark.parametrize(("batch", "file"), [(0, "sources/0/0"), (3, "offsets/2")])
def test_spark_takes_the_beginning_from_the_batch_before_or_from_the_source(batch: int, file: str) -> None:
    """The first batch has none before it."""
    assert told_by(BatchId(batch)) == file


def test_entry_of_the_batch_before_gets_the_new_partitions_in_each_line() -> None:
    """What it says of the others, and its metadata, stay."""
    found = completed(BEFORE, {("t", 0): 7, ("t", 1): 3})
    assert found == 'v1\n{"batchWatermarkMs":0}\n{"t":{"0":5,"1":3}}\n{"t":{"0":5,"1":3}}'
    assert completed(found, {("t", 1): 8}) == found


def test_initial_offsets_that_are_missing_or_lack_a_partition_are_those_of_the_plan() -> None:
    """What Spark has written of the others stays."""
    assert completed("", {("t", 1): 3}) == '\0v1\n{"t":{"1":3}}'
    assert completed('\0v1\n{"t":{"0":5}}', {("t", 0): 7, ("t", 1): 3}) == '\0v1\n{"t":{"0":5,"1":3}}'
    assert completed('\0v1\n{"t":{"0":5}}', {("t", 0): 7}) == '\0v1\n{"t":{"0":5}}'
