"""Patience: which failures a driver outlasts, for how long, and when it leaves the pipeline to its successor."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from tailrace import errors
from tailrace.config import Pipeline
from tailrace.driver.shutdown import Stop
from tailrace.kafka.errors import translate
from tailrace.progress.ledger import Ledger
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


@pytest.mark.parametrize(("run", "batch", "fenced"), [("other", 3, False), ("me", 3, False), ("me", 3, True)])
def test_driver_that_was_replaced_ends(run: str, batch: int, fenced: bool) -> None:
    """It would fence its successor otherwise; its own last plan says nothing."""
    one, _, _ = patience(lambda now: True)
    one.heard(Started("p", "me", 3))
    ledger = ledger_with(run, batch, fenced=fenced)
    if run == "me" and not fenced:
        one.refuse_successor(ledger)
        return
    with pytest.raises(errors.DriverFenced):
        one.refuse_successor(ledger)


@pytest.mark.parametrize("at", [0.0, 2e9, 4e9])
def test_plan_of_the_driver_before_is_not_taken_for_a_successors_whatever_its_clock_was(at: float) -> None:
    """A clock that was set back would end the only driver there is, and a supervisor does not start that again."""
    one, _, _ = patience(lambda now: True)
    one.refuse_successor(ledger_with("other", 2, at))
    one.heard(Started("p", "me", 3))
    one.refuse_successor(ledger_with("other", 2, at))
    with pytest.raises(errors.DriverFenced):
        one.refuse_successor(ledger_with("other", 3, at))


def ledger_with(run: str, batch: int, at: float = 0.0, *, fenced: bool = False) -> Ledger:
    """Return a ledger with this last plan."""
    plan = SimpleNamespace(run=run, at=at, batch=batch)
    return cast("Ledger", SimpleNamespace(latest=lambda: plan, overtaken=lambda: fenced))
