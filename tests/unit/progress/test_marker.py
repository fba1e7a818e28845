"""The decision that a task takes from a marker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import MarkerConflict
from tailrace.progress.marker import MAX_METADATA, Decision, Marker, decide
from tailrace.progress.plan import BatchId

BATCH = BatchId(7)


@given(st.integers(0, 2**40), st.text("0123456789abcdef", min_size=32, max_size=32), st.integers(1, 10**6))
def test_a_marker_is_read_back_as_it_was_written(batch: int, digest: str, sinks: int) -> None:
    """It survives the trailing NUL that the client library leaves on metadata, and stays within the broker's limit."""
    marker = Marker.of(BatchId(batch), digest, sinks)
    assert Marker.read(marker.next, marker.metadata + "\0") == marker
    assert len(marker.metadata) < MAX_METADATA


@pytest.mark.parametrize("marker", [None, Marker.of(BatchId(6), "x", 1), Marker.of(BatchId(2), "y", 9)])
def test_a_batch_that_is_not_marked_is_written(marker: Marker | None) -> None:
    """There is no marker, or one of an earlier batch."""
    assert decide(marker, BATCH, "digest", "who") is Decision.WRITE


def test_a_batch_that_is_marked_by_this_plan_is_skipped() -> None:
    """It is delivered; writing it again would duplicate it."""
    assert decide(Marker.of(BATCH, "digest", 3), BATCH, "digest", "who") is Decision.SKIP


def test_batch_marked_by_another_plan_stops_the_pipeline() -> None:
    """What was delivered is not what this plan would deliver."""
    with pytest.raises(MarkerConflict, match="batch 7 is already written, by another plan"):
        decide(Marker.of(BATCH, "other", 3), BATCH, "digest", "who")


def test_later_marker_stops_the_pipeline() -> None:
    """An older driver has woken up."""
    with pytest.raises(MarkerConflict, match="batch 8 is already written"):
        decide(Marker.of(BatchId(8), "digest", 3), BATCH, "digest", "who")


@pytest.mark.parametrize("metadata", [None, "", "\0", "not json", "[]", '{"digest": "d"}'])
def test_an_offset_set_by_a_tool_is_never_taken_for_a_marker(metadata: str | None) -> None:
    """Without a digest it cannot cause a skip."""
    marker = Marker.read(8, metadata)
    with pytest.raises(MarkerConflict, match="set by a tool"):
        decide(marker, BATCH, "digest", "who")


def test_a_missing_offset_is_not_a_marker() -> None:
    """Kafka answers -1001 if a group has no offset."""
    assert Marker.read(-1001, "") is None


def test_conflict_of_a_job_without_a_plan_names_what_such_a_job_can_do() -> None:
    """It has no pipeline file, so `tailrace offsets set` cannot help it."""
    with pytest.raises(MarkerConflict, match="batch 7 is already written, by another job") as caught:
        decide(Marker.of(BATCH, "rows/run", 0, sample="AAAA"), BATCH, "query 1", "who", planned=False)
    assert "offsets set" not in caught.value.then
    assert "another checkpoint folder and another id" in caught.value.then
