"""Brokers that allow only short transactions: what opens one of its own there, and what a refusal advises."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.kafkaproxy import ProxiedKafka, proxied
from support.transactions import Line
from tailrace import errors
from tailrace.admin.replay import Replay
from tailrace.config import Kafka
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import GIVEN_UP, Marker
from tailrace.progress.plan import BatchId, SinkPartition

pytestmark = [pytest.mark.integration, pytest.mark.takes(15)]


@pytest.fixture(scope="module")
def brokers() -> Iterator[ProxiedKafka]:
    """Start a broker that ends a transaction after 45 seconds at the latest."""
    with proxied({"transaction.max.timeout.ms": "45000"}) as running:
        yield running


@pytest.fixture
def line(brokers: ProxiedKafka) -> Iterator[Line]:
    """Return a sink partition whose transactions are as short as these brokers ask."""
    one = Line.on(brokers, **{"transaction.timeout.ms": "45000"})
    yield one
    one.close()


@pytest.fixture
def kafka(brokers: ProxiedKafka) -> Kafka:
    """Return how to reach the broker."""
    return Kafka(bootstrap_servers=brokers.bootstrap_servers)


def test_start_after_a_delivered_batch_fences_its_sink_partitions(line: Line, kafka: Kafka) -> None:
    """The first run fences none, so only the second one was refused, and each one after it."""
    assert not line.once(0).skipped
    with Ledger(line.pipeline, line.ledger, kafka, 4, 1) as ledger:
        ledger.take()
        ledger.fence(1)
        ledger.give_up([SinkPartition(0)], Marker.of(BatchId(1), GIVEN_UP, 1), ledger.markers())
        assert ledger.markers()[SinkPartition(0)].next == 2


def test_replay_of_rejected_records_takes_shorter_transactions(line: Line, kafka: Kafka) -> None:
    """Its own would be two minutes."""
    with Replay(kafka, line.pipeline, line.ledger, 1) as sending:
        assert sending.marks()[0].before == 0


def test_refused_duration_names_the_option_and_the_brokers_setting(line: Line) -> None:
    """The pipeline's transactions are two minutes unless its options say otherwise."""
    line.options.clear()
    with pytest.raises(errors.KafkaFailed, match="INVALID_TRANSACTION_TIMEOUT") as caught:
        line.once(0)
    assert "sink.options: transaction.timeout.ms" in caught.value.then
    assert "transaction.max.timeout.ms" in caught.value.then
