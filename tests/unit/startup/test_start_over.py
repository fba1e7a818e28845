"""A driver that starts over in its process, as it does when brokers were away, keeps nothing of the run before."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tailrace import errors
from tailrace.config import Pipeline
from tailrace.startup.run import _outlast

PIPELINE = Pipeline.model_validate({"pipeline": "p", "source": {"topics": ["in"]}, "sink": {"topic": "out"}})


class Opened:
    """A ledger, which holds a client that is connected to each broker."""

    made: list[weakref.ref[Opened]]

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *given: object) -> None:
        self.close()

    def close(self) -> None:
        """Close what is open."""


@dataclass(frozen=True)
class Run:
    """The context of a run."""

    ledger: Any
    pipeline: Any = PIPELINE
    run: str = "r"
    emit: Any = print


def test_driver_that_starts_over_holds_the_first_and_the_last_ledger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of them has a client with threads and connections; outages would add up over weeks."""
    made: list[weakref.ref[Opened]] = []
    alive: list[int] = []

    def opened(pipeline: Pipeline) -> Opened:
        ledger = Opened()
        made.append(weakref.ref(ledger))
        return ledger

    def lead(context: Any) -> None:
        gc.collect()
        alive.append(sum(each() is not None for each in made))
        if len(alive) < 5:
            raise errors.BrokerUnreachable("no broker answered")

    monkeypatch.setattr("tailrace.startup.run.Ledger", SimpleNamespace(of=opened))
    patience = cast("Any", SimpleNamespace(outlasts=lambda error, emit: True, refuse_successor=lambda ledger: None))
    board = cast("Any", SimpleNamespace(failed=lambda error: None, lines=list))
    _outlast(patience, cast("Any", Run(opened(PIPELINE))), lead, board)
    assert (len(made), max(alive)) == (5, 2)
