"""The queue: each Pipeline once, never twice at a time, and again if it failed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tailrace.testing import wait_until
from tailrace_operator import work
from tailrace_operator.model import Key

A, B = Key("ns", "a"), Key("ns", "b")


class Desk:
    """Reconciles as it is told to, and notes what it did."""

    def __init__(self) -> None:
        self.began: list[Key] = []
        self.outcomes: list[tuple[Key, str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.failures = 0
        self.queue = work.Work(self.reconcile, lambda key, outcome, _: self.outcomes.append((key, outcome)), 3)

    def reconcile(self, key: Key) -> str:
        """Wait until it may go on, then fail or not."""
        self.began.append(key)
        self.gate.wait(20)
        if self.failures:
            self.failures -= 1
            raise OSError("no answer")
        return "Running"


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """Return a queue that runs."""
    monkeypatch.setattr(work, "SHORTEST", 0.05)
    made = Desk()
    made.queue.start()
    yield made
    made.gate.set()
    made.queue.stop()


def test_pipeline_is_never_reconciled_twice_at_a_time(desk: Desk) -> None:
    """What comes meanwhile is done afterwards, once."""
    desk.gate.clear()
    desk.queue.add(A)
    wait_until(lambda: desk.began == [A], "A to be begun", 10)
    for _ in range(5):
        desk.queue.add(A)
    desk.queue.add(B)
    wait_until(lambda: B in desk.began, "B to be begun beside it", 10)
    assert desk.began.count(A) == 1
    desk.gate.set()
    wait_until(lambda: desk.began.count(A) == 2, "A to be begun again", 10)
    wait_until(lambda: desk.queue.waiting == 0, "nothing to be due", 10)
    assert desk.began.count(A) == 2


def test_failed_reconcile_is_tried_again(desk: Desk) -> None:
    """Its trouble may be over, and the others' work goes on."""
    desk.failures = 3
    desk.queue.add(A)
    wait_until(lambda: (A, "Running") in desk.outcomes, "A to succeed", 10)
    assert desk.outcomes == [(A, "error")] * 3 + [(A, "Running")]


def test_pipeline_that_waits_is_looked_at_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it waits for sends no event; the pauses grow, so that many that wait cost little."""
    monkeypatch.setattr(work, "SHORTEST", 0.01)
    monkeypatch.setattr(work, "SOON", 0.05)
    began: list[Key] = []

    def reconcile(key: Key) -> str:
        began.append(key)
        return "Waiting" if key == A else "Running"

    queue = work.Work(reconcile, lambda *_: None, 2, soon="Waiting")
    queue.start()
    try:
        queue.add(A)
        queue.add(B)
        wait_until(lambda: began.count(A) > 4, "the one that waits to be begun several times", 10)
        assert began.count(B) == 1
        assert queue._pauses == {A: 0.05}
    finally:
        queue.stop()


def test_pipeline_is_looked_at_again_without_an_event(monkeypatch: pytest.MonkeyPatch, desk: Desk) -> None:
    """Its driver is asked from time to time."""
    monkeypatch.setattr(work, "EVERY", 0.05)
    desk.queue.add(A)
    wait_until(lambda: desk.began.count(A) > 2, "A to be begun several times", 10)
