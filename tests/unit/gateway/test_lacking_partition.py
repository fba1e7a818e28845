"""A producer finds out whether a topic has the partition that a row names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tailrace.gateway import sender as senders
from tailrace.gateway.sender import Sender


class Brokers:
    """A producer whose brokers give these answers, of which the last one stays."""

    answers: list[int | None]

    def __init__(self, options: object) -> None:
        self.asked = 0

    def list_topics(self, topic: str, limit: float) -> Any:
        """Answer with the number of partitions; raise instead of None."""
        count = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if count is None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        found = SimpleNamespace(error=None, partitions=dict.fromkeys(range(count)))
        return SimpleNamespace(topics={topic: found})


def made(monkeypatch: pytest.MonkeyPatch, *answers: int | None) -> tuple[Sender, Any]:
    """Return a sender of these brokers, and its producer."""
    monkeypatch.setattr(Brokers, "answers", list(answers), raising=False)
    monkeypatch.setattr(senders, "Producer", Brokers)
    monkeypatch.setattr(senders, "_LOOK_EVERY", 0)
    monkeypatch.setattr(Sender, "_most", lambda sender, topic: 0)
    sender = Sender({}, "at-least-once")
    return sender, sender.producer


def test_partition_that_exists_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partitions of a topic never become fewer."""
    sender, brokers = made(monkeypatch, 4)
    assert [sender.lacking("out", number, again=True) for number in (0, 3, 1)] == [None, None, None]
    assert brokers.asked == 1


def test_partition_that_was_just_added_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker may not know it yet: one answer is not enough."""
    sender, brokers = made(monkeypatch, 4, 4, 8)
    assert sender.lacking("out", 7, again=True) is None
    assert brokers.asked == 3


def test_count_that_was_confirmed_is_asked_for_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later batches with such rows do not wait; without `again` nothing is asked."""
    sender, brokers = made(monkeypatch, 4)
    assert sender.lacking("out", 7, again=True) == 4
    before = brokers.asked
    assert sender.lacking("out", 9, again=True) == 4
    assert sender.lacking("out", 9, again=False) == 4
    assert (before, brokers.asked) == (senders._LOOKS, senders._LOOKS + 1)


def test_confirmed_count_is_not_believed_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions may be added meanwhile, and the first broker asked may not know them yet."""
    sender, _ = made(monkeypatch, *[4] * senders._LOOKS, 4, 8)
    monkeypatch.setattr(senders, "_SETTLED", 0.0)
    assert sender.lacking("out", 7, again=True) == 4
    assert sender.lacking("out", 7, again=True) is None


def test_answer_of_a_broker_that_lags_behind_takes_no_partition_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the same batch for a partition that exists are written."""
    sender, _ = made(monkeypatch, 8, 4)
    assert sender.lacking("out", 7, again=True) is None
    assert sender.lacking("out", 8, again=True) == 8
    assert sender.lacking("out", 5, again=False) is None


def test_row_counts_as_writable_while_the_brokers_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing it shows what is wrong."""
    sender, _ = made(monkeypatch, None)
    assert sender.lacking("out", 7, again=True) is None


def test_partition_that_only_one_broker_does_not_know_is_not_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cut off from the others, and each look was at that one: the row would be rejected."""
    sender, _ = made(monkeypatch, 4)
    monkeypatch.setattr(Sender, "_most", lambda sender, topic: 8)
    assert sender.lacking("out", 7, again=True) is None
    assert sender.lacking("out", 8, again=True) == 8
