"""Health: how a pipeline is, since when, why, and what to do, from what its driver knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.status.fault_search import FaultSearch
from tailrace.status.health import Health, Phase, Sight, Speed, State, assess

NOW = 10_000.0
LEADING = Sight(NOW, Phase.LEADING, NOW - 3_600, ready=True, lag=0)
SEARCH = FaultSearch(7, "ValueError: no", NOW - 20, 300.0)


@pytest.mark.parametrize(
    ("sight", "state", "since"),
    [
        (LEADING, State.WELL, NOW),
        (replace(LEADING, lag=500, age=2.0), State.WELL, NOW),
        (replace(LEADING, lag=None), State.WELL, NOW),
        (replace(LEADING, ready=False, since=NOW - 9), State.STARTING, NOW - 9),
        (replace(LEADING, phase=Phase.STARTING, ready=False, since=NOW - 9), State.STARTING, NOW - 9),
        (replace(LEADING, phase=Phase.STANDBY, since=NOW - 9), State.STANDBY, NOW - 9),
        (replace(LEADING, phase=Phase.STOPPING, since=NOW - 9), State.ENDING, NOW - 9),
        (replace(LEADING, stalled="lag 7", moved=NOW - 400), State.STUCK, NOW - 400),
        (replace(LEADING, away=(NOW - 70, "timed out")), State.STUCK, NOW - 70),
        (replace(LEADING, phase=Phase.STARTING, ready=False, away=(NOW - 70, "timed out")), State.STUCK, NOW - 70),
        (replace(LEADING, lag=9_000, age=90.0), State.BEHIND, NOW),
        (replace(LEADING, held=(12, 90.0)), State.BEHIND, NOW - 90),
        (replace(LEADING, held=(12, 5.0)), State.WELL, NOW),
        (replace(LEADING, read=1_000, rejected=900, reason="not json"), State.REJECTING, NOW),
        (replace(LEADING, read=10, rejected=10), State.WELL, NOW),
        (replace(LEADING, search=SEARCH, lag=9_000, age=90.0), State.SEARCHING, NOW - 20),
        (replace(LEADING, search=SEARCH, ready=False), State.SEARCHING, NOW - 20),
        (replace(LEADING, search=replace(SEARCH, since=NOW - 5)), State.WELL, NOW),
        (replace(LEADING, search=replace(SEARCH, since=NOW - 400), lag=9_000, age=90.0), State.BEHIND, NOW),
        (replace(LEADING, search=SEARCH, away=(NOW - 70, "timed out")), State.STUCK, NOW - 70),
    ],
)
def test_state_follows_from_what_the_driver_knows(sight: Sight, state: State, since: float) -> None:
    """Each state has its own beginning: a phase, the last batch, the silence of the brokers."""
    found = assess(sight)
    assert (found.state, found.since) == (state, since)
    assert found.why.endswith(".")
    assert found.well == (state in {State.WELL, State.STANDBY})
    assert bool(found.runbook) == (state in {State.BEHIND, State.STUCK, State.REJECTING})


def test_lasting_state_keeps_its_beginning() -> None:
    """The reason may change meanwhile; another state begins now."""
    before = Health(State.BEHIND, NOW - 600, "1 record waits")
    assert assess(replace(LEADING, lag=9_000, age=90.0), before).since == NOW - 600
    assert assess(LEADING, before).since == NOW


def test_old_timestamps_alone_do_not_put_a_pipeline_behind() -> None:
    """Records that are copied from elsewhere are old when they arrive; what waits is less than arrives in a second."""
    copied = replace(LEADING, lag=80, age=86_400.0, speed=Speed(100.0, 100.0))
    assert assess(copied).state is State.WELL
    assert assess(replace(copied, lag=80_000)).state is State.BEHIND


@pytest.mark.parametrize(
    ("speed", "until", "says"),
    [
        (Speed(100.0, 300.0), 45.0, "It catches up: 300 records are read a second, 100 arrive."),
        (Speed(100.0, 50.0), None, "It falls further behind: 50 records are read a second, 100 arrive."),
        (Speed(100.0, 100.0), None, "It keeps its distance: 100 records are read a second, 100 arrive."),
        (Speed(0.0, 100.0), 90.0, "It catches up: 100 records are read a second, 0 arrive."),
        (None, None, "How fast it catches up is not known yet."),
    ],
)
def test_pipeline_that_is_behind_says_when_it_will_not_be(speed: Speed | None, until: float | None, says: str) -> None:
    """The estimate is the lag over the gain; a lag that does not shrink has none, and something to do instead."""
    found = assess(replace(LEADING, lag=9_000, age=120.0, speed=speed))
    assert found.until == until
    assert says in found.why
    assert bool(found.next) == (speed is not None and until is None)


@pytest.mark.parametrize(
    ("speed", "says"),
    [(Speed(100.0, 0.0), "the driver's log"), (Speed(100.0, 50.0), "add executors"), (Speed(10.0, 50.0), "")],
)
def test_more_executors_are_advised_only_where_records_are_read(speed: Speed, says: str) -> None:
    """A batch that fails again and again reads none, and capacity does not help it."""
    found = assess(replace(LEADING, lag=9_000, age=120.0, speed=speed))
    assert found.state is State.BEHIND
    assert says in found.next if says else not found.next


@pytest.mark.parametrize(("rejects", "then"), [(True, "They are rejected"), (False, "Then the pipeline stops")])
def test_search_for_faulty_records_asks_for_patience_and_not_for_executors(rejects: bool, then: str) -> None:
    """It says what was raised, how long it may last and what follows, although records wait and none is read."""
    found = assess(replace(LEADING, search=SEARCH, rejects=rejects, lag=9_000, age=120.0, speed=Speed(100.0, 0.0)))
    assert "Batch 7 failed: ValueError: no." in found.why
    assert "for at most another 4.67 min" in found.why
    assert then in found.why
    assert "9,000 records wait" in found.why
    assert found.next.startswith("nothing for now")
    assert "executors" not in found.next


def test_missing_executors_are_named_when_nothing_moves() -> None:
    """They are a frequent cause, and the person need not look them up."""
    found = assess(replace(LEADING, stalled="lag 7", moved=NOW - 600, lag=7_000, executors=(4, 1)))
    assert found.why == ("No batch has finished for 10 min, and 7,000 records wait. Only 1 of 4 executors are present.")
    assert "executors" not in assess(replace(LEADING, stalled="lag 7", executors=(4, 4))).why
