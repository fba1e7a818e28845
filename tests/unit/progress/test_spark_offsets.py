"""Entries of Spark's offset log: what they may contain, and what they may not."""

from __future__ import annotations

import pytest

from tailrace import errors
from tailrace.progress.stream_plan import offsets_of, replace_offsets

HEAD = 'v1\n{"batchWatermarkMs":0}'
ENDS = '{"in":{"0":5,"1":7}}'


@pytest.mark.parametrize("times", [1, 2])
def test_the_source_may_be_read_twice(times: int) -> None:
    """It is read for the good and for the rejected records; both are one source with one end."""
    entry = "\n".join([HEAD, *[ENDS] * times])
    assert offsets_of(entry) == {("in", 0): 5, ("in", 1): 7}
    replaced = replace_offsets(entry, {("in", 0): 1})
    assert replaced == "\n".join([HEAD, *['{"in":{"0":1}}'] * times])


def test_two_different_ends_of_one_batch_are_refused() -> None:
    """One of the two branches would lose or repeat the records between them."""
    with pytest.raises(errors.InvariantBroken, match="end differently"):
        offsets_of("\n".join([HEAD, ENDS, '{"in":{"0":5,"1":8}}']))


@pytest.mark.parametrize("entry", ["", HEAD, f"{HEAD}\n-", f"{HEAD}\n[1]", f"{HEAD}\nnonsense"])
def test_an_entry_without_offsets_is_refused(entry: str) -> None:
    """It is an entry of another query, or one that was tampered with."""
    with pytest.raises(errors.LedgerUnusable, match="does not hold offsets"):
        offsets_of(entry)
