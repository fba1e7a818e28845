"""How long a driver that was told to stop still waits for its batch."""

from __future__ import annotations

import threading

from tailrace.driver.shutdown import Stop, unfinished

FOREVER = 60.0


def test_work_that_ends_in_time_has_drained() -> None:
    """The limit is not waited for."""
    answers = iter([True, True, False])
    assert Stop().drained(lambda: next(answers), FOREVER)


def test_work_that_reaches_the_limit_is_given_up() -> None:
    """A batch that hangs does not hold the driver for ever."""
    assert not Stop().drained(lambda: True, 0.0)


def test_work_that_ends_with_the_limit_has_drained() -> None:
    """It is asked once more before it is given up."""
    answers = iter([True, False])
    assert Stop().drained(lambda: next(answers), 0.0)


def test_a_hurry_gives_up_at_once_and_keeps_the_first_reason() -> None:
    """As the second of two signals does."""
    stop = Stop()
    stop("SIGTERM was received")
    stop.hurry("SIGINT was received")
    assert not stop.drained(lambda: True, FOREVER)
    error = unfinished(stop, 7, FOREVER)
    assert "batch 7 was not finished" in error.what
    assert "(SIGTERM was received)" in error.what
    assert error.what.endswith("a second signal came")


def test_work_without_a_stop_is_never_given_up() -> None:
    """The limit counts from the stop."""
    calls: list[str] = []
    with Stop().limited(0.0, lambda: calls.append("given up")) as given_up:
        threading.Event().wait(0.3)
    assert (calls, given_up.is_set()) == ([], False)


def test_work_that_outlasts_a_stop_is_given_up_once() -> None:
    """Whoever cancels it is called by another thread."""
    stop, called = Stop(), threading.Event()
    stop("told")
    with stop.limited(0.0, called.set) as given_up:
        assert called.wait(FOREVER)
    assert given_up.is_set()
    assert unfinished(stop, 1, 2.5).what.endswith("batch.drain is 2.5 s")
