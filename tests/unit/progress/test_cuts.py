"""What deals out a batch's rows: when two cuts are the same, and how a difference is told."""

from __future__ import annotations

import pytest

from tailrace.progress.cuts import difference, same_cut, shown_cuts, with_branches

KEYS = ("hashpartitioning(id~1, 2)",)


@pytest.mark.parametrize("shuffles", [(), KEYS])
def test_cut_with_branches_is_another_one_with_other_branches(shuffles: tuple[str, ...]) -> None:
    """Their order decides which sink partition has the records of which branch."""
    was, now = with_branches(shuffles, "a"), with_branches(shuffles, "b")
    assert same_cut(was, was)
    assert not same_cut(was, now)
    assert not same_cut(was, shuffles)
    assert difference(was, now)[0].startswith("the branches of a union")


@pytest.mark.parametrize("shuffles", [(), KEYS])
def test_cut_of_an_earlier_version_is_the_same_with_any_branches(shuffles: tuple[str, ...]) -> None:
    """It has noted none, and another number of them gives another number of sink partitions."""
    assert same_cut(shuffles, with_branches(shuffles, "a"))
    assert with_branches(shuffles, "") == shuffles


def test_difference_in_shuffles_is_told_without_the_branches() -> None:
    """A digest says nothing to people."""
    was, now = with_branches(KEYS, "a"), with_branches(("hashpartitioning(user~1, 2)",), "b")
    assert not same_cut(was, now)
    assert shown_cuts(was, now) == ("hashpartitioning(id, 2)", "hashpartitioning(user, 2)")
    how, then = difference(was, now)
    assert how.startswith("the shuffles hashpartitioning(id, 2); Spark would now plan hashpartitioning(user, 2)")
    assert "autoBroadcastJoinThreshold" in then
