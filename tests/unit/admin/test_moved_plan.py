"""The plan that a change of offsets writes."""

from __future__ import annotations

import pytest

from tailrace.admin.moved_plan import moved
from tailrace.config import Pipeline, Sink, Source
from tailrace.progress.group_note import GroupNote, later
from tailrace.progress.plan import BatchId, position

PIPELINE = Pipeline(pipeline="p", source=Source(topics=["in"]), sink=Sink(topic="out"))
PLACE = ("in", 0)


def test_offsets_that_were_changed_tell_the_plan_before_from_the_last() -> None:
    """An older copy of the ledger, or a broker that is cut off, would undo the change without an error.

    The time stays that of the plan, whose markers expire by it.
    """
    plan = position(PIPELINE, BatchId(7), {"in": "id"}, {PLACE: 100}, 4e9)
    changed = moved(PIPELINE, plan, {}, {PLACE: 50}, {"in": "id"}, {})
    note = GroupNote.of(changed)
    assert (changed.batch, changed.ends) == (7, {PLACE: 50})
    assert changed.at == pytest.approx(plan.at)
    assert later(plan, {PLACE: note.metadata}) == {PLACE: note}
    assert later(changed, {PLACE: note.metadata}) == {}
