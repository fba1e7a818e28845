"""Brokers that allow only short transactions: what opens one of its own there, and what a refusal advises."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from support.transactions import rows
from tailrace import errors
from tailrace.admin.replay import Replay
from tailrace.config import Delivery, Kafka
from tailrace.gateway import Assignment
from tailrace.gateway.writing import Deliveries
from tailrace.kafka.clients import client_options
from tailrace.kafka.cluster import Cluster
from tailrace.progress.ledger import LEDGER_SETTINGS, Ledger
from tailrace.progress.marker import GIVEN_UP, Marker
from tailrace.progress.plan import BatchId, SinkPartition
from tailrace.testing import Topics
from tailrace.testing.embedded import EmbeddedKafka, EmbeddedOptions

pytestmark = [pytest.mark.integration, pytest.mark.takes(15)]


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    """Start a broker that ends a transaction after 45 seconds at the latest."""
    with EmbeddedKafka(EmbeddedOptions(settings={"transaction.max.timeout.ms": "45000"})) as running:
        yield Kafka(bootstrap_servers=running.bootstrap_servers)


@pytest.fixture
def task(kafka: Kafka) -> Assignment:
    """Return the only task of a batch, whose sink's transactions are as short as these brokers ask."""
    name = f"n-{uuid.uuid4().hex[:8]}"
    Cluster(kafka).ensure(f"{name}.ledger", 4, -1, LEDGER_SETTINGS)
    return Assignment(
        pipeline=name,
        batch=BatchId(0),
        partition=SinkPartition(0),
        sinks=1,
        digest="of the batch",
        delivery=Delivery.EXACTLY_ONCE,
        ledger=f"{name}.ledger",
        topic=Topics(kafka.bootstrap_servers)("out", 1),
        rejected=None,
        run="run",
        options=client_options(kafka) | {"transaction.timeout.ms": "45000"},
    )


def test_start_after_a_delivered_batch_fences_its_sink_partitions(kafka: Kafka, task: Assignment) -> None:
    """The first run fences none, so only the second one was refused, and each one after it."""
    gateway = Deliveries("the gateway of the test")
    assert not gateway.write(task, iter([rows([b"one"])])).skipped
    with Ledger(task.pipeline, task.ledger, kafka, 4, 1) as ledger:
        ledger.take()
        ledger.fence(1)
        ledger.give_up([SinkPartition(0)], Marker.of(BatchId(1), GIVEN_UP, 1), ledger.markers())
        assert ledger.markers()[SinkPartition(0)].next == 2
    for cache in gateway.caches().values():
        cache.close()


def test_replay_of_rejected_records_takes_shorter_transactions(kafka: Kafka, task: Assignment) -> None:
    """Its own would be two minutes."""
    with Replay(kafka, task.pipeline, task.ledger, 1) as sending:
        assert sending.marks()[0].before == 0


def test_refused_duration_names_the_option_and_the_brokers_setting(kafka: Kafka, task: Assignment) -> None:
    """The pipeline's transactions are two minutes unless its options say otherwise."""
    gateway = Deliveries("the gateway of the test")
    usual = Assignment(**{**vars(task), "options": client_options(kafka)})
    with pytest.raises(errors.KafkaFailed, match="INVALID_TRANSACTION_TIMEOUT") as caught:
        gateway.write(usual, iter([rows([b"one"])]))
    assert "sink.options: transaction.timeout.ms" in caught.value.then
    assert "transaction.max.timeout.ms" in caught.value.then
