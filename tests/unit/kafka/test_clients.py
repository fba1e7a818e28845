"""Offsets are divided into requests that the brokers can store."""

from __future__ import annotations

import threading
import weakref
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from tailrace.kafka import clients
from tailrace.kafka.clients import add_offsets, address, requests, taken

MANY = [TopicPartition("in", number, number, "a note") for number in range(1000)]


def test_requests_hold_every_offset_once_and_in_order() -> None:
    """Together they are what one request would be, and each but the last is about as large as allowed."""
    made = list(requests(MANY, 50_000))
    assert [place for each in made for place in each] == MANY
    assert [len(each) for each in made] == [240, 240, 240, 240, 40]


def test_offset_that_is_larger_than_a_request_is_sent_alone() -> None:
    """The brokers then say whether it is too large."""
    assert [len(each) for each in requests(MANY[:3], 10)] == [1, 1, 1]


def test_few_offsets_are_one_request() -> None:
    """A driver of few partitions asks the brokers as often as before."""
    assert list(requests(MANY[:3], 200_000)) == [MANY[:3]]


class Slow:
    """A producer that answers only when the test says."""

    def __init__(self) -> None:
        self.sent = 0
        self.answer = threading.Event()
        self.thread = threading.current_thread()

    def send_offsets_to_transaction(self, places: Any, group: object, limit: float) -> None:
        """Count the request, and wait."""
        self.sent += 1
        self.thread = threading.current_thread()
        self.answer.wait(10)


def test_no_request_follows_one_that_was_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """By then the producer may be in another transaction."""
    monkeypatch.setattr("tailrace.kafka.clients.OFFSETS_BYTES", 50_000)
    producer: Any = Slow()
    with pytest.raises(KafkaException, match="no answer within"):
        add_offsets(producer, MANY, object(), 0.05, "adding offsets")
    producer.answer.set()
    producer.thread.join(10)
    assert producer.sent == 1


def test_address_of_ipv6_is_in_brackets() -> None:
    """Otherwise librdkafka takes its last part for the name's, and adds a port."""
    assert [address(host, 9092) for host in ("kafka-0", "fd00::1")] == ["kafka-0:9092", "[fd00::1]:9092"]


class Unanswered:
    """A producer whose transactional id no broker gives; librdkafka goes on to ask for it behind the error."""

    @staticmethod
    def init_transactions(limit: float) -> None:
        """Fail as after the limit; like librdkafka's, its frame does not hold the producer."""
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def test_producer_that_could_not_take_its_id_is_freed_while_its_error_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the brokers answered, it took the id from the producer that was made in its place."""
    monkeypatch.setattr(clients, "_TAKING", 0.0)
    made = [cast(Producer, Unanswered())]
    there = weakref.ref(made[0])
    with pytest.raises(Exception, match="taking the id") as caught:
        taken(made, "taking the id", 1.0, [])
    assert caught.value.__traceback__ is not None
    assert (made, there()) == ([], None)
