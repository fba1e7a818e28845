"""The board of a driver that leads, and a clock that a test moves."""

from __future__ import annotations

import pytest

from support.boards import Clock
from tailrace.config import Pipeline
from tailrace.status.board import Board
from tailrace.status.events import Started


@pytest.fixture
def clock() -> Clock:
    """Return a clock that the test moves."""
    return Clock()


@pytest.fixture
def board(clock: Clock) -> Board:
    """Return the board of a driver that leads, and counts as stalled after a minute."""
    pipeline = Pipeline.model_validate(
        {
            "pipeline": "p",
            "source": {"topics": ["in"]},
            "sink": {"topic": "out", "format": "raw"},
            "metrics": {"stalled": "1m"},
        }
    )
    board = Board(pipeline, "run", clock)
    board.heard(Started("p", "run", 0))
    return board
