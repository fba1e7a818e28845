"""An overlay becomes the spec of a shadow, and that of a promotion: by table."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace_operator import overlay, revisions
from tailrace_operator.changes import Effect, part
from tailrace_operator.model import PROMOTED, Key, Resource, Revision

SPEC: dict[str, Any] = {
    "config": {
        "source": {"topics": ["a"]},
        "sink": {"topic": "b", "partitions": 2},
        "rejected": "bad",
        "offsets": {"from": "before"},
    },
    "driver": {"standbys": 1, "memory": "1g"},
    "executors": {"instances": 2},
    "topics": {"read": ["a2"], "readPrefixes": ["a."], "write": ["other"]},
    "suspend": False,
    "waitFor": [{"kind": "Secret", "name": "s"}],
    "deletionPolicy": "Retain",
}
CHANGE: dict[str, Any] = {"config": {"process": {"function": "f.py:g"}}, "executors": {"instances": 1}}
SHADOWED = {**SPEC, "shadow": CHANGE}


@pytest.mark.parametrize(
    ("below", "above", "made"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, {"a": {"b": 3, "c": 2}}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}),
        ({"a": 1}, {"a": {"b": 2}}, {"a": {"b": 2}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}),
    ],
)
def test_overlay_is_merged_at_any_depth(below: Any, above: Any, made: Any) -> None:
    """Null removes a key, and a list is taken as it is."""
    before = repr(below)
    assert overlay.merged(below, above) == made
    assert repr(below) == before


def test_shadow_has_its_own_topic_and_no_rights_of_the_live_pipeline() -> None:
    """It may read both outputs, and write no topic that the spec names."""
    made = overlay.spec_of(SHADOWED, "b", suspend=True)
    assert made["config"] == {
        "source": {"topics": ["a"]},
        "sink": {"topic": "b-shadow", "partitions": 2},
        "process": {"function": "f.py:g"},
    }
    assert made["topics"] == {"read": ["a2", "b", "b-shadow"], "readPrefixes": ["a."]}
    assert (made["driver"], made["executors"]) == ({"memory": "1g"}, {"instances": 1})
    assert (made["suspend"], made["deletionPolicy"], made["waitFor"]) == (True, "Delete", SPEC["waitFor"])
    assert "shadow" not in made
    own = overlay.spec_of({**SPEC, "shadow": {"topic": "c", "deletionPolicy": "Retain"}}, "b", suspend=False)
    assert (own["config"]["sink"]["topic"], own["deletionPolicy"], own["suspend"]) == ("c", "Retain", False)


@pytest.mark.parametrize(("written", "policy"), [({}, "Retain"), ({"deletionPolicy": "Delete"}, "Delete")])
def test_sink_topic_that_a_shadow_names_is_deleted_only_if_the_spec_says_so(
    written: dict[str, str], policy: str
) -> None:
    """It may have been there before, with the records of somebody else and without a KafkaTopic."""
    named = {**SPEC, "shadow": {"topic": "c", **written}}
    assert overlay.spec_of(named, "b", suspend=False)["deletionPolicy"] == policy


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"process": {"function": "f"}, "sink": {"partitions": 3}}, []),
        ({"sink": {"topic": "b"}}, ["config.sink.topic"]),
        ({"source": {"pattern": None}, "rejected": None}, ["config.source.pattern", "config.rejected"]),
        ({"offsets": {}, "ledger": {}, "checkpoint": "x"}, ["config.offsets", "config.ledger", "config.checkpoint"]),
    ],
)
def test_keys_that_a_shadow_may_not_change_are_named(config: dict[str, Any], found: list[str]) -> None:
    """Even if they are only removed."""
    assert overlay.misplaced({"config": config}) == found


def resource(spec: dict[str, Any]) -> Resource:
    """Return a Pipeline."""
    return Resource(Key("ns", "p"), "uid", 1, spec)


def known(spec: dict[str, Any], promoted: str = "") -> Revision:
    """Return a recorded revision."""
    fixed = part(spec, Effect.HAND_OVER)
    return Revision(revisions.digest(fixed), fixed, 1, stable="t", promoted=promoted, topics=spec.get("topics") or {})


def test_shadow_is_no_change_of_the_live_revision() -> None:
    """With it and without it, the spec asks for the same."""
    names = {revisions.wanted(resource(each), ()).name for each in (SPEC, SHADOWED)}
    assert len(names) == 1


def test_promoted_revision_is_that_of_the_spec_with_the_overlay_moved_into_it() -> None:
    """So a person who moves it changes nothing that runs."""
    promoted = revisions.candidate(resource(SHADOWED))
    base = known(SPEC, promoted=promoted.name)
    now = revisions.wanted(resource(SHADOWED), (base,))
    assert (now.name, now.number) == (promoted.name, 2)
    moved = {**SPEC, "config": {**SPEC["config"], **CHANGE["config"]}}
    for spec in (moved, {**moved, "shadow": CHANGE}):
        assert revisions.wanted(resource(spec), (base, now)) == now


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,  # the shadow is gone, and the overlay with it
        {**SHADOWED, "image": {"driver": {"tag": "2"}}},  # another spec
    ],
)
def test_promotion_ends_with_its_shadow_or_its_spec(spec: dict[str, Any]) -> None:
    """Then the spec alone says what runs."""
    promoted = revisions.candidate(resource(SHADOWED))
    base = known(SPEC, promoted=promoted.name)
    now = revisions.wanted(resource(spec), (base, promoted))
    assert now.spec == part(spec, Effect.HAND_OVER)


def test_promotion_that_has_ended_is_taken_back() -> None:
    """Otherwise another shadow of the same spec would begin with it."""
    promoted = revisions.candidate(resource(SHADOWED))
    base = known(SPEC, promoted=promoted.name)
    moved = {**SPEC, "config": {**SPEC["config"], **CHANGE["config"]}, "shadow": CHANGE}
    assert revisions.overdue(resource(SHADOWED), (base, promoted)) == []
    for spec in (SPEC, moved):
        assert revisions.overdue(resource(spec), (base, promoted)) == [base]
    notes = revisions.record(resource(SPEC), base, ends=True)["metadata"]["annotations"]
    assert notes[PROMOTED] == ""
    assert PROMOTED not in revisions.record(resource(SPEC), base)["metadata"]["annotations"]


def test_promotion_outlives_another_overlay() -> None:
    """To try the next change does not take back the one before; a mark without a revision is none."""
    promoted = Revision("kept", {"config": {}}, 2, stable="t")
    base, other = known(SPEC, promoted="kept"), {**SPEC, "shadow": {"image": {"driver": {"tag": "3"}}}}
    assert revisions.wanted(resource(other), (base, promoted)) == promoted
    assert revisions.wanted(resource(other), (base,)) == base
