"""The check of the ledger finds batches that do not join."""

from __future__ import annotations

from faults.proof import wrong_ranges
from tailrace.progress.plan import BatchId, Plan, Range


def plan(number: int, *spans: tuple[int, int, int]) -> Plan:
    """Return the plan of a batch that reads these spans: source partition, start and end."""
    parts = tuple((Range("in", *each),) for each in spans)
    return Plan("p", BatchId(number), "out", {"in": "id"}, parts, len(parts), {})


GOOD = {0: plan(0, (0, 0, 10), (1, 0, 5)), 1: plan(1, (0, 15, 20), (0, 10, 15)), 2: plan(2, (1, 5, 9))}
ENDS = {0: 20, 1: 9, 2: 0}


def test_batches_that_join_and_reach_the_ends_are_right() -> None:
    """A range may be split among tasks, and a partition may be empty."""
    assert wrong_ranges(GOOD, ENDS) == []


def test_gap_overlap_and_missing_batch_are_found() -> None:
    """Each of them loses or repeats records, or will."""
    assert wrong_ranges(GOOD | {2: plan(2, (1, 6, 9))}, ENDS) == ["batch 2 reads in-1:6-9, and 5 was reached"]
    assert wrong_ranges(GOOD | {2: plan(2, (1, 4, 9))}, ENDS) == ["batch 2 reads in-1:4-9, and 5 was reached"]
    assert "there is no plan of batch 1" in wrong_ranges({0: GOOD[0], 2: GOOD[2]}, ENDS)


def test_batch_that_was_given_up_is_no_gap() -> None:
    """The next one reads its records."""
    given_up = Plan("p", BatchId(2), "out", {"in": "id"}, (), 0, {}, done=True)
    assert wrong_ranges(GOOD | {2: given_up, 3: plan(3, (1, 5, 9))}, ENDS) == []


def test_partition_that_was_not_read_to_its_end_is_found() -> None:
    """Its last records would wait for ever."""
    assert wrong_ranges(GOOD, ENDS | {1: 10}) == ["partition 1 was read to 9 of 10"]
    assert wrong_ranges(GOOD, ENDS | {2: 1}) == ["partition 2 was read to 0 of 1"]
