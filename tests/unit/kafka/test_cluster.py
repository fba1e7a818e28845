"""Offsets of topics that a broker does not know yet, or no longer, and requests that no broker answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tailrace import errors
from tailrace.config import Kafka
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.reach import Finding

PLACE = ("in", 0)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a cluster whose brokers are not asked; a real race between two brokers takes luck."""
    made = Cluster(Kafka(bootstrap_servers="127.0.0.1:1"))
    monkeypatch.setattr(made, "topics", lambda: {"in": 1})
    return made


def known_after(times: int) -> Callable[..., dict[tuple[str, int], int]]:
    """Return a request for offsets that a broker which does not know the topic answers so many times."""
    left = [KafkaError.UNKNOWN_TOPIC_OR_PART] * times

    def asked(*_: object) -> dict[tuple[str, int], int]:
        if left:
            raise KafkaException(KafkaError(left.pop()))
        return {PLACE: 7}

    return asked


def test_offsets_of_a_new_topic_are_asked_again_until_the_broker_knows_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another broker has shown it."""
    monkeypatch.setattr(cluster, "_offsets", known_after(2))
    assert cluster.latest([PLACE]) == {PLACE: 7}


def test_offsets_of_a_new_topic_are_asked_again_although_a_broker_does_not_show_it_yet(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker that says which topics there are may itself be the one that does not know it."""
    monkeypatch.setattr(cluster, "_offsets", known_after(3))
    monkeypatch.setattr(cluster, "topics", dict)
    assert cluster.latest([PLACE]) == {PLACE: 7}


@pytest.mark.parametrize("shown", [{}, {"in": 0}, {"other": 1}])
def test_offsets_of_a_partition_that_no_broker_shows_for_a_while_are_an_error(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, shown: dict[str, int]
) -> None:
    """Its topic was deleted, or created again with fewer partitions."""
    begun = time.monotonic()

    def asked(*_: object) -> dict[tuple[str, int], int]:
        raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))

    monkeypatch.setattr(cluster, "_offsets", asked)
    monkeypatch.setattr(cluster, "topics", lambda: shown)
    monkeypatch.setattr("tailrace.kafka.cluster._SPREAD", 0.3)
    with pytest.raises(errors.TopicUnknown):
        cluster.latest([PLACE])
    assert time.monotonic() - begun >= 0.3


def test_topic_is_created_although_the_client_replaces_its_connection_meanwhile(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request may have created it: then the second one learns that it exists."""
    answers = [KafkaError.TOPIC_ALREADY_EXISTS, KafkaError._DESTROY_BROKER]
    shown: dict[str, int] = {}

    def create(_: object) -> dict[str, Future[None]]:
        answer: Future[None] = Future()
        answer.set_exception(KafkaException(KafkaError(answers.pop())))
        shown["ledger"] = 8
        return {"ledger": answer}

    monkeypatch.setattr(cluster, "topics", lambda: shown if len(answers) == 0 else {})
    monkeypatch.setattr(cluster.admin, "create_topics", create)
    monkeypatch.setattr(cluster, "hides", lambda topic: False)
    assert cluster.ensure("ledger", 8, -1, {}) == 8
    assert answers == []


class Clients:
    """Makes clients that list topics at once, and of which the first few never answer for offsets."""

    def __init__(self, silent: int) -> None:
        self.silent, self.made = silent, 0
        self.brokerless = 0  # so many of the first know no broker
        self.asked: list[str] = []  # a number of a client, and its request
        self.limits: list[float] = []

    def __call__(self, _: object) -> Any:
        """Make one."""
        self.made += 1
        number = self.made

        def topics(timeout: float) -> SimpleNamespace:
            self.asked.append(f"{number} topics")
            if number <= self.brokerless:
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))
            return SimpleNamespace(topics={"in": SimpleNamespace(partitions={0: None}, error=None)})

        def offsets(asked: dict[TopicPartition, object], request_timeout: float, **_: object) -> dict[Any, Future[Any]]:
            self.asked.append(f"{number} offsets")
            self.limits.append(request_timeout)
            answer: Future[Any] = Future()
            if number > self.silent:
                answer.set_result(SimpleNamespace(offset=7))
            return dict.fromkeys(asked, answer)

        return SimpleNamespace(list_topics=topics, list_offsets=offsets, poll=lambda _: None)


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], tuple[Cluster, Clients]]:
    """Return a factory of a cluster of which so many clients stay silent, and of these clients."""

    def make(silent: int) -> tuple[Cluster, Clients]:
        made = Clients(silent)
        monkeypatch.setattr("tailrace.kafka.cluster.AdminClient", made)
        monkeypatch.setattr("tailrace.kafka.cluster.SHORT_TRY", 0.05)
        return Cluster(Kafka(bootstrap_servers="127.0.0.1:1")), made

    return make


def test_client_that_is_suspended_during_a_request_for_offsets_has_an_hour_before_it_expires(
    clients: Callable[[int], tuple[Cluster, Clients]],
) -> None:
    """If it expires while the caller is still in librdkafka, the same memory is freed twice."""
    cluster, made = clients(0)
    assert cluster.latest([PLACE]) == {PLACE: 7}
    assert made.limits == [3600]


def test_client_that_twice_gives_no_offsets_is_replaced(clients: Callable[[int], tuple[Cluster, Clients]]) -> None:
    """A single miss may be a broker that is slow."""
    cluster, made = clients(1)
    assert cluster.latest([PLACE]) == {PLACE: 7}
    assert made.asked == ["1 offsets", "1 topics", "1 offsets", "2 topics", "2 offsets"]


def test_new_client_lists_topics_before_offsets_although_the_request_of_the_former_has_failed(
    clients: Callable[[int], tuple[Cluster, Clients]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an answer to another thread may free the request for offsets while librdkafka still makes it."""
    monkeypatch.setattr("tailrace.kafka.cluster.ANSWER_LIMIT", 0.0)
    cluster, made = clients(1)
    for _ in range(3):
        with suppress(errors.BrokerUnreachable):
            cluster.latest([PLACE])
    assert [each for each in made.asked if each.startswith("2")] == ["2 topics", "2 offsets"]


def test_client_that_knows_no_broker_is_replaced_and_the_new_one_lists_topics_first(
    clients: Callable[[int], tuple[Cluster, Clients]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never asks again; and the new one knows no leaders yet."""
    cluster, made = clients(0)
    made.brokerless = 1
    listening = [Finding("127.0.0.1:1", "accepts a connection", connects=True)]
    monkeypatch.setattr("tailrace.kafka.reach.findings", lambda _: listening)
    with pytest.raises(errors.BrokerUnreachable):
        cluster.topics()
    assert cluster.latest([PLACE]) == {PLACE: 7}
    assert made.asked == ["1 topics", "2 topics", "2 offsets"]


def unanswered(*_: object, **__: object) -> dict[str, Future[Any]]:
    """Make a request that no broker answers, nor librdkafka in their place."""
    return {"ledger": Future()}


def test_topic_whose_creation_is_not_answered_is_an_error_of_the_brokers(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first creation of the ledger may take longer than we wait."""
    monkeypatch.setattr("tailrace.kafka.cluster.ANSWER_LIMIT", 0.1)
    monkeypatch.setattr(cluster.admin, "create_topics", unanswered)
    monkeypatch.setattr(cluster.admin, "describe_topics", unanswered)
    with pytest.raises(errors.BrokerUnreachable, match="creating the topic 'ledger' with 8 partitions"):
        cluster.ensure("ledger", 8, -1, {})


def test_members_of_a_group_that_no_broker_tells_are_an_error_of_the_brokers(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again first."""
    monkeypatch.setattr("tailrace.kafka.cluster.ANSWER_LIMIT", 0.1)
    monkeypatch.setattr(cluster.admin, "describe_consumer_groups", unanswered)
    with pytest.raises(errors.BrokerUnreachable, match="members of the group 'ledger'"):
        cluster.members("ledger")


def test_options_that_the_client_refuses_are_an_error_of_the_configuration() -> None:
    """The name of a file that does not exist, for example."""
    options = {"security.protocol": "SSL", "ssl.ca.location": "/no/such/ca.crt"}
    with pytest.raises(errors.ConfigInvalid, match=r"refuses kafka\.options.*ssl\.ca\.location"):
        Cluster(Kafka(options=options))


def test_addresses_are_as_bootstrap_servers_takes_them(cluster: Cluster) -> None:
    """A broker is asked alone by its address, and the metadata has one of IPv6 without brackets."""
    brokers = {0: SimpleNamespace(host="kafka-0", port=9092), 1: SimpleNamespace(host="fd00::1", port=9093)}
    cluster._admin = cast("AdminClient", SimpleNamespace(list_topics=lambda timeout: SimpleNamespace(brokers=brokers)))
    assert cluster.addresses() == {0: "kafka-0:9092", 1: "[fd00::1]:9093"}
