"""A driver's last plan, asked of brokers that may have lost the ledger's partition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, TopicPartition

from support.plans import plan_of
from tailrace import errors
from tailrace.config import Pipeline, Sink, Source
from tailrace.kafka.clients import TopicPartitions
from tailrace.progress import plan_lookup
from tailrace.progress.plan_lookup import PlanLookup

PIPELINE = Pipeline(pipeline="p", source=Source(topics=["in"]), sink=Sink(topic="out"))
PLANS = [plan_of(PIPELINE, batch, 1) for batch in range(3)]


class Message:
    """A record of the ledger, or its end."""

    def __init__(self, offset: int, value: bytes | None) -> None:
        self._offset, self._value = offset, value

    def partition(self) -> int:
        """Return the one partition."""
        return 0

    def offset(self) -> int:
        """Return the place."""
        return self._offset

    def key(self) -> bytes:
        """Return the pipeline's name."""
        return b"p"

    def value(self) -> bytes | None:
        """Return the plan."""
        return self._value

    def error(self) -> Any:
        """Return the event that the log ends here."""
        return None if self._value is not None else self

    def name(self) -> str:
        """Return the event's name."""
        return "_PARTITION_EOF"


class Former:
    """A consumer whose broker has the first plans only, as one that was cut off from the others."""

    def __init__(self, plans: int) -> None:
        self._plans, self._next = plans, 0

    def assign(self, places: list[TopicPartition]) -> None:
        """Go to an offset."""
        self._next = places[0].offset if places else 0

    def close(self) -> None:
        """Do nothing."""

    def poll(self, _: float) -> Message | None:
        """Return the next record, and the end once."""
        offset, self._next = self._next, self._next + 1
        if offset > self._plans:
            return None
        return Message(offset, PLANS[offset].to_bytes() if offset < self._plans else None)


def lookup(plans: int, end: int) -> PlanLookup:
    """Return a search at a broker with these many plans, in a log that is known to end there."""

    def first(places: list[tuple[str, int]]) -> TopicPartitions:
        return dict.fromkeys(places, 0)

    def last(places: list[tuple[str, int]]) -> TopicPartitions:
        return dict.fromkeys(places, end)

    return PlanLookup(lambda: cast(Consumer, Former(plans)), "ledger", first, last, "p")


def test_former_plan_is_not_taken_for_the_last_one_if_the_log_is_known_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A driver knows where its own record is. A broker of former times ends before it, and never gets there."""
    monkeypatch.setattr(plan_lookup, "_READ_LIMIT", 0.2)
    with pytest.raises(errors.LedgerUnusable, match="was not read to its end"):
        lookup(plans=2, end=3).latest("p", 0, 1)
    assert lookup(plans=3, end=3).latest("p", 0, 1) == PLANS[2]


def test_former_plan_is_the_last_one_if_only_that_broker_says_where_the_log_ends() -> None:
    """So a driver must not learn the end from the brokers alone."""
    assert lookup(plans=2, end=2).latest("p", 0, 1) == PLANS[1]


class Deaf(Former):
    """A consumer that no broker answers."""

    def poll(self, _: float) -> Message | None:
        """Hear nothing."""
        return None


def test_brokers_that_deliver_nothing_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have gone since they told where the log ends: that is for `kafka.patience`, and no fault of the ledger."""
    monkeypatch.setattr(plan_lookup, "_SILENCE", 0.05)
    monkeypatch.setattr(plan_lookup, "_READ_LIMIT", 0.2)
    found = replace(lookup(plans=3, end=3), consumer=lambda: cast(Consumer, Deaf(3)))
    with pytest.raises(errors.BrokerUnreachable, match=r"no broker has delivered anything of the ledger ledger-0"):
        found.latest("p", 0, 1)


def test_consumer_that_hears_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told of no broker, as after all of them were suspended, and has nobody left to ask."""
    monkeypatch.setattr(plan_lookup, "_SILENCE", 0.1)
    monkeypatch.setattr(plan_lookup, "_READ_LIMIT", 20.0)
    consumers = iter([Deaf(3), Former(3)])
    found = replace(lookup(plans=3, end=3), consumer=lambda: cast(Consumer, next(consumers)))
    assert found.latest("p", 0, 1) == PLANS[2]
