"""Brokers that list no broker for a moment, as after all of them were suspended: librdkafka then has nobody to ask.

It forgets every broker that an answer does not list, and if that leaves none, it never asks again
(confluentinc/librdkafka#5301). So a client that gets no answer is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError

from support.kafkaproxy import ProxiedKafka, proxied
from support.proxy import brokerless
from support.readers import Reading, request_for
from tailrace import errors
from tailrace.config import Kafka, Pipeline
from tailrace.gateway.consuming import Consumer
from tailrace.kafka.clients import TopicPartitions
from tailrace.kafka.cluster import Cluster
from tailrace.progress.plan import Range
from tailrace.status import lag, samples
from tailrace.status.lag import Lags
from tailrace.status.samples import Sampler, Samples
from tailrace.status.snapshots import LagSeen
from tailrace.testing import Record, Topics, produce, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def network() -> Iterator[ProxiedKafka]:
    """Start one broker behind a proxy."""
    with proxied() as kafka:
        yield kafka


def test_cluster_answers_after_no_broker_was_listed(network: ProxiedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver asked a client that had forgotten every broker, until its patience ended."""
    place = [(Topics(network.bootstrap_servers)(), 0)]
    cluster = Cluster(Kafka(bootstrap_servers=network.proxied_servers))
    before = cluster.latest(place)

    def silent() -> bool:
        try:
            cluster.topics()
        except errors.BrokerUnreachable:
            return True
        return False

    monkeypatch.setattr("tailrace.kafka.cluster.ANSWER_LIMIT", 2.0)
    network.proxy.judge = brokerless
    try:
        wait_until(silent, "the client to have forgotten the broker", 60)
    finally:
        network.proxy.heal()
    wait_until(lambda: not silent(), "an answer", 60)
    assert cluster.latest(place) == before


def forgotten(client: Consumer, topic: str) -> bool:
    """Ask for this topic, and return whether there is nobody left to ask."""
    wrong = client.topic_error(topic, 2.0)
    return wrong is not None and wrong.code() == KafkaError._TRANSPORT


def test_topic_is_not_taken_for_a_deleted_one_after_no_broker_was_listed(network: ProxiedKafka) -> None:
    """The reader's client says that the partition is unknown; the driver ended, with advice to do without the topic."""
    topic = Topics(network.bootstrap_servers)()
    asked = request_for(network.proxied_servers)
    forgetful, fresh = Reading(network.bootstrap_servers, asked, limit=80.0), Reading(network.bootstrap_servers, asked)
    try:
        forgetful.fill(topic, 4)
        assert forgetful.offsets(Range(topic, 0, 0, 4)) == [0, 1, 2, 3]
        known = forgetful.reader._consumer
        network.proxy.judge = brokerless
        wait_until(lambda: forgotten(known, topic), "the client to have forgotten the broker", 60)
        network.proxy.heal()
        forgetful.fill(topic, 4)
        with pytest.raises(errors.BrokerUnreachable, match="as this client's brokers say"):
            forgetful.read(Range(topic, 0, 4, 8))
        assert fresh.offsets(Range(topic, 0, 4, 8)) == [4, 5, 6, 7]
    finally:
        network.proxy.heal()
        forgetful.reader.close()
        fresh.reader.close()


def test_lag_has_an_age_again_after_no_broker_was_listed(
    network: ProxiedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its consumer heard of nothing until the driver was started again."""
    monkeypatch.setattr("tailrace.kafka.cluster.ANSWER_LIMIT", 2.0)
    options = lag._options
    monkeypatch.setattr("tailrace.status.lag._options", lambda pipeline: options(pipeline) | {"client.id": "ages"})
    topic = Topics(network.bootstrap_servers)()
    positions: TopicPartitions = {}
    seen, kept = list[LagSeen](), list[float]()
    pipeline = Pipeline.model_validate(
        {
            "pipeline": "aged",
            "kafka": {"bootstrap.servers": network.proxied_servers},
            "source": {"topics": [topic]},
            "sink": {"topic": "out", "format": "raw"},
        }
    )
    lags = Lags(pipeline, seen.append, kept.append)
    lags.start(lambda: dict(positions))
    try:
        wait_until(lambda: kept, "the clients to know the broker", 60)
        produce(network.bootstrap_servers, topic, [Record(b"x")])
        network.proxy.judge = brokerless
        positions[topic, 0] = 0
        faults = network.proxy.faults
        wait_until(lambda: any(each.client == "ages" for each, _ in faults), "the consumer to ask for the topic", 60)
        network.proxy.heal()
        wait_until(lambda: seen and seen[-1].oldest is not None, "the age of the oldest record", 120)
    finally:
        network.proxy.heal()
        lags.stop()


def test_samples_are_shown_again_after_no_broker_was_listed(
    network: ProxiedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no broker gave was even kept as the last records, until the next one was delivered."""
    options = samples._options
    monkeypatch.setattr("tailrace.status.samples._options", lambda pipeline: options(pipeline) | {"client.id": "shown"})
    monkeypatch.setattr("tailrace.status.samples.EVERY", 1.0)
    topics = Topics(network.bootstrap_servers)
    sink, rejected = topics(), topics()
    pipeline = Pipeline.model_validate(
        {
            "pipeline": "shown",
            "kafka": {"bootstrap.servers": network.proxied_servers},
            "source": {"topics": ["in"]},
            "sink": {"topic": sink, "format": "raw"},
            "rejected": rejected,
            "metrics": {"samples": 3},
        }
    )
    seen: list[Samples] = []
    sampler = Sampler(pipeline, seen.append)
    network.proxy.judge = lambda request: brokerless(request) if request.client == "shown" else None
    try:
        produce(network.bootstrap_servers, sink, [Record(b"x")])
        sampler.start()
        wait_until(lambda: seen, "the first look", 60)
        assert seen[0]["delivered"]["records"] == []
        network.proxy.heal()
        wait_until(lambda: seen[-1]["delivered"]["records"], "the record", 60)
    finally:
        network.proxy.heal()
        sampler.stop()
