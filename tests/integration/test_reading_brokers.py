"""A reader whose brokers are away, move a partition, or refuse it."""

from __future__ import annotations

import contextlib
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from support.kafkaproxy import proxied
from support.proxy import Fault, nth
from support.readers import Reading, request_for
from support.wire import Api
from tailrace import errors
from tailrace.config import Kafka
from tailrace.gateway.consuming import Consumer, settings
from tailrace.gateway.log_ends import LogEnds
from tailrace.gateway.reading import Reader
from tailrace.kafka import handles
from tailrace.kafka.clients import client_options
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.leaders import Leaders, leaders, most_partitions
from tailrace.kafka.rights import Operation, on_topic
from tailrace.progress.plan import Range
from tailrace.testing import Record, Topics, produce, wait_until
from tailrace.testing.embedded import EmbeddedKafka, EmbeddedOptions

pytestmark = pytest.mark.integration


def test_missing_right_is_named(tailrace_secured_kafka: EmbeddedKafka) -> None:
    """The right is Read on the topic; once it is granted, the same reader works."""
    security, name = tailrace_secured_kafka.security, f"r-{random.randrange(1 << 30)}"
    admin, door = security.administrator, security.user(name, "secret")
    topic = Topics(admin.bootstrap_servers, admin.options)()
    produce(admin.bootstrap_servers, topic, [Record(b"x")], options=admin.options)
    options = client_options(Kafka(bootstrap_servers=door.bootstrap_servers, options=dict(door.options)))
    reading = Reading(door.bootstrap_servers, replace(request_for(door.bootstrap_servers), options=options))
    try:
        with pytest.raises(errors.NotAuthorized, match=f"lacking: Read on topic {topic}"):
            reading.read(Range(topic, 0, 0, 1))
        security.allow(f"User:{name}", [on_topic(Operation.READ, topic)])
        assert reading.offsets(Range(topic, 0, 0, 1)) == [0]
    finally:
        reading.reader.close()


def test_wrong_password_is_reported(tailrace_secured_kafka: EmbeddedKafka) -> None:
    """The error has the client's own message, and comes before the deadline for unreachable brokers."""
    security, name = tailrace_secured_kafka.security, f"r-{random.randrange(1 << 30)}"
    door = security.user(name, "secret")
    options = {**door.options, "sasl.password": "wrong"}
    connection = client_options(Kafka(bootstrap_servers=door.bootstrap_servers, options=options))
    asked = replace(request_for(door.bootstrap_servers), options=connection)
    reading = Reading(door.bootstrap_servers, asked, limit=8.0)
    try:
        with pytest.raises(errors.NotAuthenticated):
            reading.read(Range("any", 0, 0, 1))
    finally:
        reading.reader.close()


@pytest.mark.takes(27)
def test_reader_waits_for_unreachable_brokers() -> None:
    """It raises after its deadline, and continues if brokers come back earlier."""
    with EmbeddedKafka() as kafka:
        topic = Topics(kafka.bootstrap_servers)()
        reading = Reading(kafka.bootstrap_servers, request_for(kafka.bootstrap_servers), limit=12.0)
        patient = Reading(kafka.bootstrap_servers, request_for(kafka.bootstrap_servers), limit=60.0)
        reading.fill(topic, 10)
        assert reading.offsets(Range(topic, 0, 0, 5)) == patient.offsets(Range(topic, 0, 0, 5)) == [0, 1, 2, 3, 4]
        kafka.brokers[0].kill()
        with pytest.raises(errors.BrokerUnreachable, match="no progress"):
            reading.read(Range(topic, 0, 0, 8))
        with ThreadPoolExecutor(1) as pool:
            later = pool.submit(patient.offsets, Range(topic, 0, 0, 8))
            kafka.brokers[0].start()
            assert later.result(60) == list(range(8))
        wait_until(lambda: answers(reading, topic), "the impatient reader's connection", limit=60)
        assert reading.offsets(Range(topic, 0, 0, 10)) == list(range(10))
        reading.reader.close()
        patient.reader.close()


def answers(reading: Reading, topic: str) -> bool:
    """Return whether a read succeeds; a client may pause before it connects again for longer than the reader waits."""
    try:
        return reading.offsets(Range(topic, 0, 0, 5)) == list(range(5))
    except errors.BrokerUnreachable:
        return False


@pytest.mark.takes(24)
def test_reader_follows_a_partition_to_its_next_leader() -> None:
    """While brokers are killed one after another, every record arrives once and in order."""
    count, step = 6_000, 50
    with EmbeddedKafka(EmbeddedOptions(brokers=3)) as kafka:
        topic = Topics(kafka.bootstrap_servers)()
        reading = Reading(kafka.bootstrap_servers, request_for(kafka.bootstrap_servers), limit=90.0)
        produce(kafka.bootstrap_servers, topic, [Record(bytes(2_000)) for _ in range(count)])
        found: list[int] = []
        try:
            for broker in kafka.brokers:
                broker.kill()
                for start in range(len(found), len(found) + count // 3, step):
                    found += reading.offsets(Range(topic, 0, start, start + step))
                broker.start()
            assert found == list(range(count))
        finally:
            reading.reader.close()


@pytest.mark.takes(20)
def test_loss_needs_the_word_of_most_brokers() -> None:
    """Each is asked by itself. Those that are left agree on the end, or on a topic that does not exist."""
    with EmbeddedKafka(EmbeddedOptions(brokers=3)) as kafka:
        topic = Topics(kafka.bootstrap_servers)()
        produce(kafka.bootstrap_servers, topic, [Record(b"x") for _ in range(5)])
        options = client_options(Kafka(bootstrap_servers=kafka.bootstrap_servers))
        ends = LogEnds(options)
        everyone = {broker.node_id for broker in kafka.brokers}
        assert asked(options, topic, 5.0).told.keys() == everyone
        assert (ends.agreed(topic, 0, 5.0), ends.agreed(topic, 1, 5.0), ends.agreed("none", 0, 5.0)) == (5, -1, -1)
        cluster = Cluster(Kafka(bootstrap_servers=kafka.bootstrap_servers))
        assert cluster.agreed_latest([(topic, 0)]) == {(topic, 0): 5}
        with pytest.raises(errors.KafkaFailed, match="no broker knows"):
            cluster.agreed_latest([(topic, 1)])
        kafka.brokers[0].kill()
        left = everyone - {kafka.brokers[0].node_id}
        wait_until(lambda: settled(options, topic, left), "the brokers that are left to agree", 60)
        assert ends.agreed(topic, 0, 5.0) == 5
        assert cluster.agreed_latest([(topic, 0)]) == {(topic, 0): 5}
        kafka.brokers[1].kill()
        with pytest.raises((errors.KafkaFailed, KafkaException)):
            ends.agreed(topic, 0, 3.0)


@pytest.mark.parametrize("known", [True, False])
def test_each_broker_is_asked_by_itself_with_any_version_of_confluent_kafka(
    monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Its own call asks one that it chooses, and that one's answer would count as every broker's."""
    with EmbeddedKafka(EmbeddedOptions(brokers=3)) as kafka:
        topic = Topics(kafka.bootstrap_servers)()
        options = client_options(Kafka(bootstrap_servers=kafka.bootstrap_servers))
        monkeypatch.setattr(handles, "known", lambda: known)
        others = {broker.node_id for broker in kafka.brokers[:2]}
        with contextlib.closing(Consumer(settings(options, "read_uncommitted", 1))) as consumer:
            brokers = consumer.brokers(10.0)
            kafka.brokers[2].pause()
            try:
                assert leaders(consumer.handle, brokers, topic, 0, 3.0).told.keys() == others
            finally:
                kafka.brokers[2].resume()


def asked(options: dict[str, Any], topic: str, limit: float) -> Leaders:
    """Return what the brokers say of a topic's first partition."""
    with contextlib.closing(Consumer(settings(options, "read_uncommitted", 1))) as consumer:
        return leaders(consumer.handle, consumer.brokers(limit), topic, 0, limit)


def settled(options: dict[str, Any], topic: str, left: set[int]) -> bool:
    """Return whether these brokers agree on one of themselves."""
    with contextlib.suppress(errors.KafkaFailed):
        return asked(options, topic, 3.0).agreed(topic, "", "") in left
    return False


def test_option_that_librdkafka_refuses_is_named(reading: Reading) -> None:
    """Its value is left out if it is a secret."""
    for name, value, shown in (
        ("fetch.min.bytes", "many", "Invalid value"),
        ("no.such.password", "secret", "no.such.password"),
    ):
        with pytest.raises(errors.OptionRefused, match=shown) as refused:
            Reader(replace(reading.request, options={**reading.request.options, name: value}))
        assert "secret" not in str(refused.value)


@pytest.mark.takes(10)
def test_beginning_that_the_leader_refuses_to_tell_is_not_taken_for_the_end() -> None:
    """It was elected between two answers, which arrive together; the records in between would count as lost."""
    with proxied() as kafka, contextlib.ExitStack() as held:
        topic = Topics(kafka.bootstrap_servers)()
        produce(kafka.bootstrap_servers, topic, [Record(b"x")] * 10)
        connection = client_options(Kafka(bootstrap_servers=kafka.proxied_servers))
        consumer = held.enter_context(contextlib.closing(Consumer(settings(connection, "read_committed", 1))))
        assert consumer.watermarks(topic, 0, 10) == (0, 10)
        told = set[object]()
        for _ in range(50):
            kafka.proxy.judge = nth(Api.LIST_OFFSETS, Fault.NOT_LEADER)
            try:
                told.add(consumer.watermarks(topic, 0, 10))
            except KafkaException as error:
                told.add(error.args[0].code())
        assert told <= {(0, 10), KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION}
        assert told - {(0, 10)}


def test_number_of_partitions_is_that_of_most_brokers_or_unknown(tailrace_topics: Topics) -> None:
    """A broker that does not answer may know more."""
    servers = tailrace_topics.bootstrap_servers
    topic, admin = tailrace_topics(partitions=3), Cluster(Kafka(bootstrap_servers=servers)).admin
    instance = handles.handle(admin)
    assert instance is not None
    [own] = admin.list_topics(timeout=10).brokers
    assert most_partitions(instance, [own], topic, 10) == 3
    assert most_partitions(instance, [own, own + 77], topic, 3) is None
