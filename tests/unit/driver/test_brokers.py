"""Brokers that are away are told once, and their return, too; a batch does not wait for the answer."""

from __future__ import annotations

import threading

import pytest

from tailrace import errors
from tailrace.driver.brokers import Brokers
from tailrace.status.events import Event
from tailrace.testing import wait_until


class Asked:
    """A clock, and brokers that answer or not."""

    def __init__(self) -> None:
        self.now, self.away, self.times = 0.0, False, 0
        self.events: list[Event] = []
        self.brokers = Brokers(self.events.append, self.ask, lambda: self.now)

    def ask(self) -> None:
        """Answer."""
        self.times += 1
        if self.away:
            raise errors.BrokerUnreachable("no broker answered")

    def look(self, seconds: float) -> None:
        """Let time pass, ask, and take the answer."""
        self.now += seconds
        before = self.times
        self.brokers.look()
        if self.brokers._answer is not None:
            wait_until(lambda: self.times > before and self.brokers._answer.done(), "the brokers to be asked", 10)  # type: ignore[union-attr]
            self.brokers.look()

    @property
    def said(self) -> list[str]:
        """The events' names."""
        return [each.event for each in self.events]


def test_brokers_that_are_away_during_a_batch_are_told_once() -> None:
    """Only a batch that takes long asks; the page and the terminal say what it waits for."""
    one = Asked()
    one.away = True
    one.brokers.batch()
    one.look(1)
    assert (one.times, one.said) == (0, [])
    one.look(5)
    one.look(6)
    assert (one.times, one.said) == (2, ["away"])
    one.away = False
    one.look(6)
    assert one.said == ["away", "back"]


def test_brokers_that_are_away_between_batches_are_told_once() -> None:
    """The loop asks them itself."""
    one = Asked()
    one.brokers.answered()
    one.brokers.silent("no broker answered")
    one.brokers.silent("no broker answered")
    one.brokers.answered()
    assert one.said == ["away", "back"]


def test_driver_that_was_overtaken_during_a_batch_learns_it_from_the_next_answer() -> None:
    """An answer that comes after the batch is dropped: by then the ledger holds this driver's own next plan."""
    one, late = Asked(), threading.Event()

    def lead() -> None:
        late.wait(10)
        raise errors.DriverFenced("a newer driver has taken over")

    one.brokers.batch(lead)
    one.now += 6
    one.brokers.look()
    one.brokers.batch()
    late.set()
    one.look(6)
    one.brokers.batch(lead)
    with pytest.raises(errors.DriverFenced):
        one.look(6)
