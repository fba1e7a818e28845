"""The deadline for a batch in progress after a request to stop."""

from __future__ import annotations

import threading

from tailrace.driver.shutdown import Stop, unfinished

FOREVER = 60.0


def test_work_that_ends_before_the_deadline_has_drained() -> None:
    """The deadline itself is not waited for."""
    answers = iter([True, True, False])
    assert Stop().drained(lambda: next(answers), FOREVER)


def test_work_that_reaches_the_deadline_is_given_up() -> None:
    """A hanging batch does not hold the driver forever."""
    assert not Stop().drained(lambda: True, 0.0)


def test_work_that_ends_at_the_deadline_has_drained() -> None:
    """It is checked once more before it is given up."""
    answers = iter([True, False])
    assert Stop().drained(lambda: next(answers), 0.0)


def test_a_hurry_gives_up_at_once_and_keeps_the_first_reason() -> None:
    """The second of two signals has this effect."""
    stop = Stop()
    stop("SIGTERM was received")
    stop.hurry("SIGINT was received")
    assert not stop.drained(lambda: True, FOREVER)
    error = unfinished(stop, 7, FOREVER)
    assert "batch 7 was not finished" in error.what
    assert "(SIGTERM was received)" in error.what
    assert error.what.endswith("a second signal came")


def test_work_without_a_stop_is_never_given_up() -> None:
    """The deadline counts from the stop."""
    calls: list[str] = []
    with Stop().limited(0.0, lambda: calls.append("given up")) as given_up:
        threading.Event().wait(0.3)
    assert (calls, given_up.is_set()) == ([], False)


def test_work_that_outlasts_a_stop_is_given_up_once() -> None:
    """The cancelling callback runs in another thread."""
    stop, called = Stop(), threading.Event()
    stop("the reason")
    with stop.limited(0.0, called.set) as given_up:
        assert called.wait(FOREVER)
    assert given_up.is_set()
    assert unfinished(stop, 1, 2.5).what.endswith("batch.drain is 2.5 s")
