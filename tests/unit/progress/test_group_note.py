"""The note in the offset group: it refuses a ledger that is behind, and never one that is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.progress.group_note import GroupNote, former, later
from tailrace.progress.plan import BatchId, Plan, Range
from tailrace.progress.stream_plan import AnyPlan, Slice, StreamPlan

PLACE, OTHER = ("in", 0), ("in", 1)
PLAN = Plan("p", BatchId(4), "out", {"in": "id"}, ((Range("in", 0, 0, 5),),), 1, {PLACE: 5, OTHER: 0}, at=100.25)
STREAM = StreamPlan(
    "p", "q", BatchId(4), (Range("in", 0, 0, 5),), (Slice("in-0:0-5"),), 'v1\n{}\n{"in":{"0":5,"1":0}}', at=100.25
)


def test_note_is_read_as_it_was_written() -> None:
    """A broker may pad the metadata; what other tools commit is no note."""
    note = GroupNote.of(PLAN)
    assert GroupNote.read(note.metadata) == GroupNote.read(note.metadata + "\0") == note
    assert [GroupNote.read(text) for text in (None, "", "NONE", "7", "[]", "{}", '{"batch":null}')] == [None] * 7


@pytest.mark.parametrize(
    ("batch", "at", "done", "follows"),
    [
        (4, 100.25, False, False),  # the plan's own
        (4, 100.25, True, True),  # it was recorded as done since
        (5, 101.0, False, True),
        (5, 99.0, False, True),  # by another machine's clock
        (2, 101.0, True, True),  # with a ledger that counts its own batches
        (4, 101.0, False, True),
        (3, 99.0, True, False),  # copied from another cluster late, say
    ],
)
def test_note_follows_a_plan_by_its_number_or_its_time(batch: int, at: float, done: bool, follows: bool) -> None:
    """Each of them alone shows that the ledger has lost something."""
    assert GroupNote(batch, at, done).follows(PLAN) is follows


def test_plan_that_is_done_or_moved_is_not_behind_its_own_note() -> None:
    """Both are committed with a note of their own; a note that is older than the plan shows nothing."""
    finished = PLAN.finished({PLACE: 2, OTHER: 0})
    for noted in (GroupNote.of(PLAN), GroupNote.of(finished)):
        assert later(finished, {PLACE: noted.metadata, OTHER: noted.metadata}) == {}


@pytest.mark.parametrize("plan", [PLAN, STREAM])
def test_note_that_is_older_than_a_plan_that_is_done_is_of_former_times(plan: AnyPlan) -> None:
    """Its own transaction has replaced all of them; while it is open, older ones may be all there is."""
    done = plan.finished()
    old, opened, own = GroupNote(3, 99.0, True), GroupNote.of(plan), GroupNote.of(done)
    stored = {PLACE: old.metadata, OTHER: opened.metadata, ("gone", 0): old.metadata}
    assert former(done, stored) == {PLACE: old, OTHER: opened}
    assert former(plan, stored) == {}
    assert former(done, {PLACE: own.metadata, OTHER: own.metadata}) == {}


@pytest.mark.parametrize("text", ["", None, "moved by hand", GroupNote(5, 101.0, False).metadata])
def test_offset_without_an_older_note_is_not_of_former_times(text: str | None) -> None:
    """Other tools leave no note, and a later one is of a ledger that is behind."""
    assert former(PLAN.finished(), {PLACE: text}) == {}


def test_only_partitions_of_the_last_plan_count() -> None:
    """The group keeps the offsets of a topic that the pipeline reads no more."""
    note = GroupNote(9, 200.0, True)
    assert later(PLAN, {("gone", 0): note.metadata, PLACE: ""}) == {}
    assert later(PLAN, {("gone", 0): note.metadata, OTHER: note.metadata}) == {OTHER: note}


def test_partition_that_spark_has_found_may_have_an_old_note() -> None:
    """The plan's transaction does not commit its offset, so the note may be of an earlier pipeline of this name."""
    own, old = GroupNote.of(STREAM), GroupNote(50, 7.0, True)
    assert later(STREAM, {PLACE: own.metadata, OTHER: old.metadata}) == {}
    assert later(replace(STREAM, batch=BatchId(3), at=99.0), {PLACE: own.metadata}) == {PLACE: own}
