"""The deadline for a batch in progress after a request to stop."""

from __future__ import annotations

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


def test_error_names_the_limit_that_was_reached() -> None:
    """It is the one to raise."""
    stop = Stop()
    stop("the reason")
    assert unfinished(stop, 1, 2.5).what.endswith("batch.drain is 2.5 s")
