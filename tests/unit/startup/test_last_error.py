"""The error that ends a run is the one that is raised, whatever happens to the note about it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tailrace import errors
from tailrace.config import Pipeline
from tailrace.startup.run import _outlast

PIPELINE = Pipeline.model_validate({"pipeline": "p", "source": {"topics": ["in"]}, "sink": {"topic": "out"}})


@pytest.mark.parametrize(
    "refusal", [errors.DriverFenced("a newer one leads"), errors.NotAuthorized("no right"), errors.CommitInDoubt("?")]
)
def test_error_that_cannot_be_kept_in_kafka_is_raised_all_the_same(refusal: errors.TailraceError) -> None:
    """A driver that a newer one fenced meanwhile may still fail for a reason of its own."""

    def note(group: str, text: str, limit: float) -> None:
        raise refusal

    def lead(context: Any) -> None:
        raise errors.FunctionFailed("price is negative")

    context = cast(
        "Any", SimpleNamespace(pipeline=PIPELINE, run="r", emit=print, ledger=SimpleNamespace(note=note, close=list))
    )
    patience = cast("Any", SimpleNamespace(begin=lambda: None, outlasts=lambda error, emit: False))
    board = cast("Any", SimpleNamespace(failed=lambda error: None, lines=list))
    with pytest.raises(errors.FunctionFailed, match="price is negative"):
        _outlast(patience, context, lead, board)
