"""The transition table permits the protocol's steps and no others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import InvariantBroken
from tailrace.progress.states import TRANSITIONS, Event, State, after

PROTOCOL = [Event.FENCE, Event.READ, Event.BEGIN, Event.SEAL, Event.COMMIT, Event.COMMITTED]


def test_the_protocol_ends_ready_for_the_next_batch() -> None:
    """After fence, read, begin, seal, commit and committed, the producer may be used again."""
    state = State.UNKNOWN
    for event in PROTOCOL:
        state = after(state, event)
    assert state is State.READY


def test_no_transaction_begins_before_the_marker_is_read() -> None:
    """A fenced producer that does not know its marker must not write."""
    with pytest.raises(InvariantBroken, match="fenced cannot begin"):
        after(State.FENCED, Event.BEGIN)


def test_no_commit_is_sent_without_the_marker_in_the_transaction() -> None:
    """Outputs without their marker could be written twice."""
    with pytest.raises(InvariantBroken, match="open cannot commit"):
        after(State.OPEN, Event.COMMIT)


@given(st.sampled_from(State))
def test_a_doubt_ends_every_state(state: State) -> None:
    """After a doubt, nothing that was known still holds."""
    assert after(state, Event.DOUBT) is State.UNKNOWN


@given(st.lists(st.sampled_from(Event), max_size=30))
def test_a_commit_is_only_reached_through_a_seal(events: list[Event]) -> None:
    """In every accepted sequence, each commit directly follows a seal, and each seal is in a begun transaction."""
    state, done = State.UNKNOWN, list[Event]()
    for event in events:
        if (state, event) not in TRANSITIONS:
            continue
        state = after(state, event)
        done.append(event)
    for place, event in enumerate(done):
        if event is Event.COMMIT:
            assert done[place - 1] is Event.SEAL
        if event is Event.SEAL:
            assert done[place - 1] is Event.BEGIN
