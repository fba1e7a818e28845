"""What follows from a look at the source: an answer that says less than is known moves no position by itself."""

from __future__ import annotations

import pytest

from tailrace import errors
from tailrace.driver.look import Seen
from tailrace.driver.source_changes import Changes, changes

A, B = ("a", 0), ("b", 0)
POSITIONS, IDS = {A: 10, B: 20}, {"a": "id-a", "b": "id-b"}


def after(found: Changes, positions: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
    """Return the positions after the changes; every topic begins at 0."""
    return found.moved(positions, dict.fromkeys(found.new, 0))


def test_topic_that_is_missing_keeps_its_positions_until_it_is_seen_again() -> None:
    """It has the same id then, so it is neither lost nor new."""
    hidden = changes(POSITIONS, IDS, Seen({B: 25}, {"b": "id-b"}, 0.0))
    hidden.refuse_loss()
    assert after(hidden, POSITIONS) == {B: 20}
    assert hidden.away == {"id-a": {A: 10}}
    assert hidden.reports == []
    back = changes({B: 25}, IDS, Seen({A: 15, ("a", 1): 3, B: 25}, IDS, 0.0), hidden.away)
    back.refuse_loss()
    assert after(back, {B: 25}) == {A: 10, ("a", 1): 0, B: 25}
    assert back.away == {}
    assert back.reports == []


def test_hidden_topic_that_was_created_again_is_read_from_its_beginning() -> None:
    """Its kept positions mean nothing in the new topic."""
    found = changes({B: 20}, {"b": "id-b"}, Seen({A: 15, B: 25}, IDS | {"a": "id-n"}, 0.0), {"id-a": {A: 10}})
    assert found.recreated == ("a",)
    assert after(found, {B: 20}) == {A: 0, B: 20}
    assert found.away == {}
    with pytest.raises(errors.PlanOfAnother, match="created again"):
        found.refuse_loss()


@pytest.mark.parametrize("hidden", [True, False])
def test_topic_that_was_certainly_deleted_is_a_loss(hidden: bool) -> None:
    """It is reported, whether its positions are in use or kept."""
    positions, away = ({B: 20}, {"id-a": {A: 10}}) if hidden else (POSITIONS, {})
    found = changes(positions, IDS, Seen({B: 25}, {"b": "id-b"}, 0.0, deleted=frozenset({"a"})), away)
    assert found.any
    assert found.reports == ["a-0 no longer exists"]
    assert after(found, positions) == {B: 20}
    assert found.away == {}
    with pytest.raises(errors.SourceChanged, match="a-0"):
        found.refuse_loss()


def test_end_before_a_position_counts_once_it_is_certain() -> None:
    """A look ahead of the batch, or a broker that is cut off, shows an earlier end."""
    assert not changes(POSITIONS, IDS, Seen({A: 5, B: 20}, IDS, 0.0)).any
    found = changes(POSITIONS, IDS, Seen({A: 5, B: 20}, IDS, 0.0, short=frozenset({A})))
    assert after(found, POSITIONS) == {A: 5, B: 20}
    with pytest.raises(errors.OffsetsOutOfRange, match="a-0"):
        found.refuse_loss()


def test_missing_partition_of_the_same_topic_keeps_its_position() -> None:
    """Kafka removes no partition of a topic."""
    positions = {A: 10, ("a", 1): 7}
    found = changes(positions, IDS, Seen({A: 12}, {"a": "id-a"}, 0.0))
    assert not found.any
    assert after(found, positions) == positions


def test_topic_without_positions_is_noted_unless_it_was_created_again_or_a_bound_leaves_it_out() -> None:
    """New partitions of a topic that is read are no news."""
    ends = {A: 10, ("a", 1): 3, B: 20, ("b", 1): 4}
    found = changes({A: 10}, IDS, Seen(ends, IDS, 0.0))
    [note] = found.events({**dict.fromkeys(ends, 0), B: 5})
    assert "'b' is new to this pipeline, and is read from its beginning (b-0 at 5, b-1 at 0)" in note.what
    assert found.events(dict.fromkeys(ends, 0), bounded=True) == []
    again = changes({A: 10}, IDS, Seen(ends, {**IDS, "b": "id-n"}, 0.0))
    assert [each.event for each in again.events(dict.fromkeys(ends, 0))] == ["reset"]


@pytest.mark.parametrize(
    "seen",
    [
        Seen({B: 25}, {"b": "id-b"}, 0.0),
        Seen({B: 25}, {"b": "id-b"}, 0.0, deleted=frozenset({"a"})),
        Seen({A: 15, ("a", 1): 3, B: 25}, IDS | {"a": "id-n"}, 0.0),
    ],
    ids=["hidden", "deleted", "recreated"],
)
def test_topic_that_is_read_to_its_bound_is_no_loss_and_is_not_read_again(seen: Seen) -> None:
    """Its offsets are kept by its id: brokers take none of a topic that is gone."""
    until = {A: 10, B: 30}
    found = changes(POSITIONS, IDS, seen, {}, until)
    found.refuse_loss()
    assert after(found, POSITIONS) == {B: 20}
    assert found.away == {"id-a": {A: 10}}
    ids = IDS | dict(seen.topics)
    later = changes({B: 20}, ids, seen, found.away, until)
    later.refuse_loss()
    assert not later.any
    assert later.away == found.away


def test_topic_that_is_not_read_to_its_bound_is_missed_by_a_bounded_run() -> None:
    """The rest of its range is not delivered."""
    seen = Seen({B: 25}, {"b": "id-b"}, 0.0, deleted=frozenset({"a"}))
    with pytest.raises(errors.SourceChanged, match="a-0"):
        changes(POSITIONS, IDS, seen, {}, {A: 11, B: 30}).refuse_loss()
