"""`tailrace doctor` on the logs that a pipeline writes: their copies, and transactions that hang."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tailrace.admin.checks import Check, State
from tailrace.admin.log_checks import logs
from tailrace.config import Pipeline
from tailrace.progress.marker import markers_group
from tailrace.testing import Topics, wait_until
from tailrace.testing.embedded import EmbeddedKafka, EmbeddedOptions

pytestmark = [pytest.mark.integration, pytest.mark.takes(15)]

SOON = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}


@pytest.fixture(scope="module")
def three() -> Iterator[EmbeddedKafka]:
    """Start three brokers."""
    with EmbeddedKafka(EmbeddedOptions(brokers=3, settings=SOON)) as running:
        yield running


def admin(kafka: EmbeddedKafka, without: int | None = None) -> AdminClient:
    """Return a client of all brokers, or of all but one."""
    addresses = [f"127.0.0.1:{each.port}" for each in kafka.brokers if each.node_id != without]
    return AdminClient({"bootstrap.servers": ",".join(addresses), "log_level": 0})


def made(kafka: EmbeddedKafka, name: str = "", copies: int = 3, **settings: str) -> str:
    """Create a topic of one partition, by default a sink's."""
    name = name or f"out-{uuid4().hex[:8]}"
    new = NewTopic(name, 1, copies, config={key.replace("_", "."): value for key, value in settings.items()})
    asked = admin(kafka)
    asked.create_topics([new])[name].result(30)
    wait_until(lambda: led_by(asked, name) >= 0, f"a leader of {name}", 30)
    return name


def led_by(client: AdminClient, topic: str) -> int:
    """Return which broker leads the topic's partition; -1 if none does."""
    found = client.list_topics(timeout=30).topics.get(topic)
    return -1 if found is None or not found.partitions else int(found.partitions[0].leader)


def checked(kafka: EmbeddedKafka, sink: str, **sections: Any) -> dict[str, Check]:
    """Return what the doctor says of a pipeline that writes there, with a ledger of the same beginning."""
    config = {
        "pipeline": sink,
        "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
        "source": {"topics": ["unread"]},
        "sink": {"topic": sink, **sections},
        "ledger": {"topic": f"{sink}-ledger", "partitions": 1},
    }
    return {each.name: each for each in logs(Pipeline.model_validate(config))}


def written(kafka: EmbeddedKafka, sink: str) -> Producer:
    """Write a record in a transaction that stays open."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": sink, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(sink, b"open")
    assert producer.flush(30) == 0
    return producer


def test_sink_with_the_copies_that_kafka_makes_by_default_passes(three: EmbeddedKafka) -> None:
    """Three copies, of which two acknowledge, outlast a broker."""
    found = checked(three, made(three))
    assert {name: each.state for name, each in found.items()} == {"copies": State.OK, "hanging": State.OK}, found


def test_doctor_warns_of_a_sink_with_one_copy(three: EmbeddedKafka) -> None:
    """If its broker is away while a transaction ends, Kafka 4.3 leaves that end out."""
    sink = made(three, copies=1)
    found = checked(three, sink)["copies"]
    assert (found.state, found.found.partition(":")[0]) == (State.WARN, sink)
    assert "3 replicas, with min.insync.replicas=2" in found.hint


def test_doctor_warns_of_a_sink_that_one_copy_acknowledges(three: EmbeddedKafka) -> None:
    """What only a leader has is lost with it."""
    sink = made(three, min_insync_replicas="1")
    found = checked(three, sink)["copies"]
    assert (found.state, found.hint) == (State.WARN, f"set min.insync.replicas=2 on {sink}")


def test_single_broker_is_not_blamed_for_single_copies(tailrace_kafka: EmbeddedKafka, tailrace_topics: Topics) -> None:
    """On a laptop there is nothing to change."""
    found = checked(tailrace_kafka, tailrace_topics("out"))["copies"]
    assert (found.state, "one broker" in found.found) == (State.OK, True)


def test_doctor_warns_of_an_open_transaction_until_it_ends(three: EmbeddedKafka) -> None:
    """Readers of the sink wait there."""
    sink = made(three)
    producer = written(three, sink)
    found = checked(three, sink)["hanging"]
    assert found.state is State.WARN
    assert f"{sink}-0 from offset 0 on" in found.found
    assert f"find-hanging --max-transaction-timeout 0 --topic {sink} --partition 0" in found.hint
    assert "hanging" not in checked(three, sink, delivery="at-least-once")
    producer.commit_transaction(30)
    assert checked(three, sink)["hanging"].state is State.OK


def test_doctor_warns_of_an_open_transaction_in_the_ledger_and_at_a_marker(three: EmbeddedKafka) -> None:
    """The next start would wait for both, and end with an error."""
    sink = made(three)
    ledger = made(three, f"{sink}-ledger")
    assert checked(three, sink)["hanging"].state is State.OK
    producer = written(three, ledger)
    assert f"{ledger}-0 from offset 0 on" in checked(three, sink)["hanging"].found
    producer.abort_transaction(30)
    producer.begin_transaction()
    marker = Consumer({"bootstrap.servers": three.bootstrap_servers, "group.id": markers_group(sink)})
    producer.send_offsets_to_transaction([TopicPartition(ledger, 0, 1)], marker.consumer_group_metadata(), 30)
    found = checked(three, sink)["hanging"]
    assert (found.state, f"offsets of the group {markers_group(sink)}" in found.found) == (State.WARN, True)
    assert "--topic __consumer_offsets" in found.hint
    producer.commit_transaction(30)
    assert checked(three, sink)["hanging"].state is State.OK
    marker.close()


def test_doctor_warns_of_a_transaction_whose_end_the_brokers_have_lost(three: EmbeddedKafka) -> None:
    """Kafka reports it as committed, and nobody else sees that its readers wait."""
    sink = made(three, copies=1)
    producer = written(three, sink)
    asked = admin(three)
    leader = led_by(asked, sink)
    [broker] = [each for each in three.brokers if each.node_id == leader]
    others = admin(three, without=leader)
    broker.kill()
    wait_until(lambda: led_by(others, sink) == -1, f"the others to notice that broker {leader} is gone", 60)
    assert checked(three, sink)["copies"].found.startswith(sink)
    producer.commit_transaction(60)
    broker.start()
    wait_until(lambda: led_by(others, sink) == leader, f"broker {leader} to lead {sink} again", 60)
    found = checked(three, sink)["hanging"]
    assert (found.state, f"{sink}-0 from offset 0 on" in found.found) == (State.WARN, True)


def test_brokers_that_do_not_answer_are_a_warning(three: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check never raises."""
    sink = made(three)
    monkeypatch.setattr("tailrace.admin.log_checks.ANSWER_LIMIT", 0.0)
    found = checked(three, sink)
    assert [each.state for each in found.values()] == [State.WARN]
