"""Patience: which failures a driver outlasts, for how long, and when it leaves the pipeline to its successor."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from tailrace import errors
from tailrace.config import Pipeline
from tailrace.driver.shutdown import Stop
from tailrace.kafka.errors import translate
from tailrace.startup.patience import Patience
from tailrace.status.events import BrokersAway, Event, Idle, Ready, Started

PIPELINE = Pipeline.model_validate(
    {"pipeline": "p", "kafka": {"patience": 60}, "source": {"topics": ["in"]}, "sink": {"topic": "out"}}
)
AWAY = errors.BrokerUnreachable("no broker answered")


class Waiting(Stop):
    """A stop whose waits take no time, but move a clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.stops_at = float("inf")
        self.event = cast("Any", SimpleNamespace(wait=self._wait, is_set=lambda: self.now >= self.stops_at))

    def _wait(self, seconds: float) -> bool:
        self.now += seconds
        return self.now >= self.stops_at


def patience(answers: Callable[[float], bool]) -> tuple[Patience, Waiting, list[Event]]:
    """Return one whose brokers answer as is said, with its clock and its events."""
    stop, events = Waiting(), list[Event]()

    def topics() -> dict[str, int]:
        if not answers(stop.now):
            raise errors.BrokerUnreachable("no broker answered")
        return {}

    cluster = cast("Any", SimpleNamespace(topics=topics))
    return Patience(PIPELINE, cluster, "me", stop, lambda: stop.now), stop, events


def said(events: list[Event]) -> list[str]:
    """Return the events' names."""
    return [each.event for each in events]


def test_brokers_that_come_back_are_outlasted() -> None:
    """It is told that they are away, and that they are back."""
    one, stop, events = patience(lambda now: now > 30)
    assert one.outlasts(AWAY, events.append)
    assert said(events) == ["away", "back"]
    assert 30 < stop.now < 60


def test_brokers_that_a_batch_missed_are_said_to_be_back() -> None:
    """They may answer before the batch has failed; nothing else of the next run knows that they were away."""
    one, _, events = patience(lambda now: True)
    one.heard(BrokersAway("no broker answers"))
    assert one.outlasts(errors.CommitInDoubt("a commit"), events.append)
    assert said(events) == ["back"]


def test_patience_ends() -> None:
    """Then the run ends with what happened first, and a supervisor decides."""
    one, stop, events = patience(lambda now: False)
    assert not one.outlasts(AWAY, events.append)
    assert said(events) == ["away"]
    assert 60 <= stop.now < 80


def test_doubt_is_settled_by_starting_over() -> None:
    """The brokers answer already; the markers tell what was committed."""
    one, _, events = patience(lambda now: True)
    assert one.outlasts(errors.CommitInDoubt("a commit"), events.append)
    assert said(events) == []


def test_partition_whose_leader_is_away_is_outlasted() -> None:
    """Other brokers answer already; one that is still away, or starting, leads the ledger's partition, for example."""
    one, _, _ = patience(lambda now: True)
    away = KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "a leader is away"))
    assert one.outlasts(translate(away, "asking for the offsets of ledger"), print)


def test_failures_without_progress_are_bounded_together() -> None:
    """Each may be outlasted at once; together they may not take longer. A delivered batch begins anew."""
    one, _, events = patience(lambda now: True)
    tried = 0
    while one.outlasts(errors.CommitInDoubt("a commit"), events.append):
        tried += 1
        assert tried < 100
    assert 5 <= tried <= 20


def test_driver_that_is_idle_again_has_all_its_patience() -> None:
    """What failed may have been the note of the last batch: the run that starts over has none to deliver."""
    one, stop, events = patience(lambda now: now < 1000 or now > 1030)
    assert one.outlasts(AWAY, events.append)
    one.heard(Idle(7))
    stop.now = 1001.0
    assert one.outlasts(AWAY, events.append)
    assert said(events) == ["away", "back"]


@pytest.mark.parametrize("event", [Started("p", "me", 3), Ready("p", "me")])
def test_start_alone_renews_no_patience(event: Event) -> None:
    """Each try starts, and may fail again in the same batch."""
    one, stop, events = patience(lambda now: True)
    assert one.outlasts(AWAY, events.append)
    one.heard(event)
    stop.now = 61.0
    assert not one.outlasts(AWAY, events.append)


@pytest.mark.parametrize(
    "error",
    [
        errors.KafkaFailed("an odd answer"),
        errors.FunctionFailed("no"),
        errors.DriverFenced("no"),
        errors.NotAuthorized("no"),
    ],
)
def test_what_waiting_cannot_mend_ends_the_run(error: errors.TailraceError) -> None:
    """The brokers answer, or were not the reason."""
    one, stop, events = patience(lambda now: True)
    assert not one.outlasts(error, events.append)
    assert (stop.now, said(events)) == (0, [])


def test_stop_ends_the_waiting() -> None:
    """Nothing can be finished without brokers."""
    one, stop, events = patience(lambda now: False)
    stop.stops_at = 5.0
    assert not one.outlasts(AWAY, events.append)
    assert stop.now < 20


@pytest.mark.parametrize("led", [lambda one: one.begin(), lambda one: one.heard(Started("p", "me", 3))])
def test_driver_that_led_after_a_long_wait_takes_no_plan_of_before_for_its_successors(
    led: Callable[[Patience], None],
) -> None:
    """A standby may wait for days, while the driver before it plans."""
    now = [0.0]
    one = Patience(PIPELINE, cast("Any", None), "me", Stop(), now=lambda: now[0])
    before = SimpleNamespace(run="other", at=7200.0, batch=3)
    ledger = cast("Any", SimpleNamespace(latest=lambda: before, overtaken=lambda: False))
    now[0] = 7201.0
    led(one)
    one.refuse_successor(ledger)
    before.at = 7300.0
    with pytest.raises(errors.DriverFenced):
        one.refuse_successor(ledger)


@pytest.mark.parametrize(("run", "later", "fenced"), [("other", 120, False), ("me", 120, False), ("me", 0, True)])
def test_driver_that_was_replaced_ends(run: str, later: float, fenced: bool) -> None:
    """It would fence its successor otherwise; its own last plan, or an older one, says nothing."""
    one, _, _ = patience(lambda now: True)
    plan = SimpleNamespace(run=run, at=time.time() + later, batch=3)
    ledger = cast("Any", SimpleNamespace(latest=lambda: plan, overtaken=lambda: fenced))
    if run == "me" and not fenced:
        one.refuse_successor(ledger)
        return
    with pytest.raises(errors.DriverFenced):
        one.refuse_successor(ledger)
