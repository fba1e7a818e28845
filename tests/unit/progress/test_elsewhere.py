"""Which batches the markers in another ledger topic refuse."""

from __future__ import annotations

import contextlib

import pytest

from tailrace.errors import ProgressMissing
from tailrace.progress.elsewhere import Elsewhere
from tailrace.progress.plan import BatchId


@pytest.mark.parametrize(
    ("batch", "continuing", "refused"),
    [(7, False, True), (7, True, True), (6, False, True), (6, True, False), (8, False, False), (8, True, False)],
)
def test_batch_is_refused_that_another_ledger_topic_knows(batch: int, continuing: bool, refused: bool) -> None:
    """A ledger that has the batch before goes on; later batches elsewhere are those of an earlier checkpoint folder."""
    found = Elsewhere("q", "new", {"old": BatchId(7)})
    with pytest.raises(ProgressMissing, match="'old'") if refused else contextlib.nullcontext():
        found.refuse(batch, continuing=continuing)
