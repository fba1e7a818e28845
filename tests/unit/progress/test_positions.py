"""Offsets in the formats of external stores, and the differences between two sets of positions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import OffsetStoreUnusable
from tailrace.progress.plan import BatchId, Plan, Range
from tailrace.progress.positions import (
    LARGEST,
    Known,
    begins,
    differences,
    from_document,
    from_node,
    seen_again,
    to_document,
    to_node,
)
from tailrace.progress.stream_plan import StreamPlan

OFFSETS = st.integers(0, LARGEST)
KNOWN = Known({("in", 0): 10, ("in", 1): 20}, {("in", 0): 5, ("in", 1): 20})


def test_a_node_has_the_format_of_older_jobs() -> None:
    """The partitions are in order."""
    assert to_node({1: 38115057, 0: 38114984}) == "0:38114984,1:38115057"


@given(st.dictionaries(st.integers(0, 9999), OFFSETS))
def test_a_node_is_read_back(offsets: dict[int, int]) -> None:
    """This holds whatever the offsets are."""
    assert from_node(to_node(offsets), "n") == offsets


@pytest.mark.parametrize(
    "text", ["0", "0:", ":1", "0:1,", "0:1;1:2", "0:-1", "0:1,0:2", "a:1", f"0:{LARGEST + 1}", "{}"]
)
def test_a_node_without_offsets_is_refused_with_its_name(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(OffsetStoreUnusable, match=r"^TR-311.*the-node"):
        from_node(text, "the-node")


@given(st.dictionaries(st.tuples(st.sampled_from(["a", "b.c", "d-1"]), st.integers(0, 99)), OFFSETS))
def test_a_document_is_read_back(offsets: dict[tuple[str, int], int]) -> None:
    """This holds whatever the offsets are."""
    assert from_document(to_document("p", offsets), "d") == offsets


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("{", "not JSON"),
        ("[]", "no object `offsets`"),
        ('{"offsets": []}', "no object `offsets`"),
        ('{"offsets": {}}', "its version is None"),
        ('{"version": 1, "offsets": {"a": 1}}', "not an object of partitions"),
        ('{"version": 1, "offsets": {"a": {"x": 1}}}', "not a partition's number"),
        ('{"version": 1, "offsets": {"a": {"0": true}}}', "not an offset"),
        ('{"version": 1, "offsets": {"a": {"0": -1}}}', "not an offset"),
        ('{"version": 1, "offsets": {"a": {"0": "1"}}}', "not an offset"),
        (json.dumps({"version": 1, "offsets": {"a": {"0": LARGEST + 1}}}), "not an offset"),
    ],
)
def test_an_invalid_document_is_refused_with_the_reason(document: str, why: str) -> None:
    """The error comes before anything is changed."""
    with pytest.raises(OffsetStoreUnusable, match=why):
        from_document(document, "d")


def test_batch_begins_where_its_first_range_does() -> None:
    """Long ranges are split; a partition that is not read begins where it ends."""
    ranges = (Range("in", 0, 7, 9), Range("in", 0, 5, 7))
    plan = StreamPlan("p", "q", BatchId(1), ranges, (), "")
    assert begins(plan, {("in", 0): 9, ("in", 1): 4}) == {("in", 0): 5, ("in", 1): 4}


@pytest.mark.parametrize("stored", [KNOWN.positions, KNOWN.begins])
def test_a_store_as_the_pipeline_left_it_does_not_differ(stored: dict[tuple[str, int], int]) -> None:
    """This holds after a clean end, and after a kill."""
    assert differences(KNOWN, stored) == []


@pytest.mark.parametrize(
    ("stored", "what"),
    [
        ({}, "it has no offsets of this pipeline"),
        ({("in", 0): 10}, "it has no offset of in-1, which continues at 20"),
        ({("in", 0): 9, ("in", 1): 20}, "it has in-0 at 9, which continues at 10"),
        ({("in", 0): 10, ("in", 1): 20, ("in", 2): 3}, "it has in-2 at 3, which the pipeline does not read"),
    ],
)
def test_each_difference_is_named_with_its_values(stored: dict[tuple[str, int], int], what: str) -> None:
    """The values help to find the cause."""
    assert differences(KNOWN, stored) == [what]


def test_topic_that_is_seen_again_continues_at_its_kept_offsets_unless_it_was_created_again() -> None:
    """The id tells them apart: a kept offset means nothing in another topic of the same name."""
    away = {"id-a": {("a", 0): 7}, "id-b": {("b", 0): 9}}
    plan = Plan("p", BatchId(3), "out", {}, (), 0, {("c", 0): 5}, done=True, away=away)
    assert seen_again(plan, {"a": ("id-a", 1), "b": ("id-other", 1)}) == {("a", 0): 7}
    assert seen_again(plan, {"c": ("id-c", 1)}) == {}
