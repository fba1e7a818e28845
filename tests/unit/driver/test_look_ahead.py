"""Looks ahead that are out of date when a batch is chosen from them, in every order of what may happen meanwhile."""

from __future__ import annotations

import pytest
from hypothesis import example, find, given
from hypothesis import strategies as st

from support.source_model import Source, Step, walk

STEPS = st.lists(st.sampled_from(Step), max_size=14)


def wrong(source: Source, stopped: bool) -> str:
    """Return what is wrong about what was read, or an empty text."""
    twice = sorted(record for record, times in source.read.items() if times > 1)
    if twice:
        return f"{twice[0]} was read twice"
    skipped = sorted(source.ever - source.read.keys() - source.gone)
    return f"{skipped[0]} was skipped" if skipped and not stopped else ""


@given(steps=STEPS, reset=st.booleans())
@example(steps=[Step.APPEND, Step.LOOK_AHEAD, Step.BATCH, Step.RECREATE, Step.APPEND, Step.BATCH], reset=True)
@example(steps=[Step.APPEND, Step.BATCH, Step.HIDE, Step.BATCH, Step.SHOW], reset=True)
@example(steps=[Step.APPEND, Step.BATCH, Step.BATCH, Step.LOOK_STALE, Step.BATCH], reset=True)
@example(steps=[Step.APPEND, Step.LOOK_AHEAD, Step.TRIM, Step.BATCH, Step.GROW, Step.APPEND], reset=False)
def test_records_are_read_once_whatever_changes_after_a_look(steps: list[Step], reset: bool) -> None:
    """Only records that were deleted before may be missing; or the pipeline stops and says why."""
    assert not wrong(*walk(steps, reset=reset))


@pytest.mark.parametrize("broken", ["asks", "admits"])
def test_walk_finds_the_fault_that_a_rule_prevents(broken: str) -> None:
    """The rules are that the reader compares the topic's id, and that the loop compares each look with the last."""
    rules = {broken: False}
    assert wrong(*walk(find(STEPS, lambda steps: bool(wrong(*walk(steps, reset=True, **rules)))), reset=True, **rules))


def test_pipeline_stops_rather_than_lose_records() -> None:
    """Unless it may: then it goes on with what there is."""
    steps = [Step.APPEND, Step.BATCH, Step.APPEND, Step.TRIM, Step.TRIM, Step.TRIM, Step.BATCH]
    assert walk(steps, reset=False)[1]
    source, stopped = walk(steps, reset=True)
    assert not stopped
    assert source.gone
