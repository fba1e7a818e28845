"""What a start says about the run before it."""

from __future__ import annotations

from tailrace.driver.recovery import changed
from tailrace.progress.plan import BatchId, Range
from tailrace.progress.stream_plan import Slice, StreamPlan


def plan(rules: str, code: str) -> StreamPlan:
    """Return the plan of a batch that was begun with these rules and this code."""
    ranges = (Range("in", 0, 0, 1),)
    return StreamPlan(
        "p", "q", BatchId(7), ranges, (Slice("in-0:0-1"),), "v1\n{}\n{}", run="ab", rules=rules, code=code
    )


def test_changed_function_is_named_with_the_last_batch_of_the_old_one() -> None:
    """So that a person sees from which batch on the output may differ."""
    assert changed(plan("r", "c"), "r", "new") == [
        "the function or its arguments have changed since batch 7, of run ab"
    ]


def test_changed_rules_are_named_apart_from_the_function() -> None:
    """They decide what is rejected."""
    both = changed(plan("r", "c"), "new", "new")
    assert len(both) == 2
    assert "reject records" in both[1]


def test_same_code_or_an_old_plan_without_digests_is_no_change() -> None:
    """Version 0.1 wrote none."""
    assert changed(plan("r", "c"), "r", "c") == []
    assert changed(plan("", ""), "r", "c") == []
