"""A marker that is missing was never written, or was forgotten: the difference is the time since the plan."""

from __future__ import annotations

import pytest

from tailrace.config import Delivery
from tailrace.errors import ProgressMissing
from tailrace.progress.expiry import DEFAULT_RETENTION, Retention, check, doubtful, duration, missing
from tailrace.progress.marker import Marker
from tailrace.progress.plan import BatchId, Range, SinkPartition
from tailrace.progress.stream_plan import Slice, StreamPlan

WEEK = Retention(DEFAULT_RETENTION)
PLANNED = 1_000_000.0
SLICES = tuple(Slice(f"in-{number}:0-1") for number in range(3))
PLAN = StreamPlan("p", "q", BatchId(4), (Range("in", 0, 0, 1),), SLICES, "v1\n{}\n{}", at=PLANNED)
WRITTEN = Marker.of(BatchId(4), PLAN.digest, 3)
OLDER = Marker.of(BatchId(3), "older", 3)


def markers(*each: Marker | None) -> dict[SinkPartition, Marker]:
    """The markers of the sink partitions in their order."""
    return {SinkPartition(number): marker for number, marker in enumerate(each) if marker is not None}


def test_a_missing_marker_is_believed_while_none_can_have_expired() -> None:
    """Up to an hour before the retention is over, for clocks differ."""
    assert doubtful(PLAN, {}, PLANNED + DEFAULT_RETENTION - 3601, WEEK) == []
    assert doubtful(PLAN, {}, PLANNED + DEFAULT_RETENTION - 3600, WEEK) == [0, 1, 2]


def test_where_some_markers_are_there_the_others_may_still_have_expired() -> None:
    """Each expires on its own: those that were committed first go first."""
    late = PLANNED + DEFAULT_RETENTION
    assert doubtful(PLAN, markers(None, WRITTEN, None), late, WEEK) == [0, 2]
    with pytest.raises(ProgressMissing, match=r"2 of its 3 sink partitions have no marker \(0, 2\)") as caught:
        check(PLAN, markers(None, WRITTEN, None), late, WEEK)
    assert "--give-up" in caught.value.then


def test_an_older_marker_that_is_there_says_that_the_batch_was_not_written() -> None:
    """Writing it would have replaced the marker."""
    assert doubtful(PLAN, markers(OLDER, WRITTEN, OLDER), PLANNED + 10 * DEFAULT_RETENTION, WEEK) == []
    check(PLAN, markers(OLDER, WRITTEN, OLDER), PLANNED + 10 * DEFAULT_RETENTION, WEEK)


@pytest.mark.parametrize(
    "plan",
    [
        PLAN.finished(),
        StreamPlan("p", "q", BatchId(4), (), SLICES, "", at=PLANNED, delivery=Delivery.AT_LEAST_ONCE),
        StreamPlan("p", "q", BatchId(4), (), (), "", at=PLANNED),
    ],
)
def test_a_batch_that_needs_no_marker_is_never_doubtful(plan: StreamPlan) -> None:
    """One that is noted as done, one that has none, and an empty one."""
    assert missing(plan, {}) == []
    check(plan, {}, PLANNED + 10 * DEFAULT_RETENTION, WEEK)


def test_where_the_retention_is_unknown_the_message_says_what_was_assumed() -> None:
    """So that whoever reads it can look it up."""
    with pytest.raises(ProgressMissing, match=r"after 7 days \(offsets.retention.minutes; assumed\)"):
        check(PLAN, {}, PLANNED + DEFAULT_RETENTION, Retention(DEFAULT_RETENTION, "assumed"))


@pytest.mark.parametrize(
    ("seconds", "text"), [(30, "30 seconds"), (60, "60 seconds"), (150, "2.5 minutes"), (604800, "7 days")]
)
def test_a_duration_is_said_in_a_fitting_unit(seconds: float, text: str) -> None:
    """A person reads it."""
    assert duration(seconds) == text
