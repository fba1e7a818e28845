"""Killing one of three brokers during a sink partition's transaction: the one that its client waits for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest

from support.transactions import Line, rows
from tailrace.config import Kafka
from tailrace.gateway import producers
from tailrace.kafka.cluster import Cluster, OffsetSpec
from tailrace.progress.marker import Marker, markers_group
from tailrace.testing import wait_until
from tailrace.testing.embedded import EmbeddedKafka, EmbeddedOptions

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SOON = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}


@dataclass(frozen=True)
class Unproxied:
    """Brokers that are reached without a proxy."""

    bootstrap_servers: str

    @property
    def proxied_servers(self) -> str:
        """Return the brokers' own addresses."""
        return self.bootstrap_servers


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Start three brokers whose failure is noticed soon."""
    with EmbeddedKafka(EmbeddedOptions(brokers=3, settings=SOON)) as running:
        yield running


def test_marker_finds_another_coordinator_when_its_broker_is_killed(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka waits for the dead broker past any deadline; the attempt is given up, and the next delivers once."""
    monkeypatch.setattr(producers, "_MARKER_LIMIT", 5.0)
    one = Line.on(cast("Any", Unproxied(kafka.bootstrap_servers)))
    cluster = Cluster(Kafka(bootstrap_servers=kafka.bootstrap_servers))
    killed: list[int] = []

    def batches() -> Iterator[Any]:
        values = one.values(1)
        yield rows(values[:5])
        if not killed:
            group = markers_group(one.pipeline)
            found = cluster.admin.describe_consumer_groups([group])[group].result(timeout=30)
            killed.append(found.coordinator.id)
            next(each for each in kafka.brokers if each.node_id == killed[0]).kill()
            wait_until(
                lambda: killed[0] not in cluster.admin.list_topics(timeout=30).brokers,
                f"the others to notice that broker {killed[0]} is gone",
                60,
            )
        yield rows(values[5:])

    try:
        one.write(0)
        one.write(1, batches)
        one.write(2)
        assert killed
        assert sorted(cast("list[bytes]", one.read())) == [value for batch in range(3) for value in one.values(batch)]
        last = one.task(2)
        assert one.marker() == Marker.of(last.batch, last.digest, 1)
    finally:
        one.close()


def test_client_gets_offsets_after_a_leader_was_killed(kafka: EmbeddedKafka) -> None:
    """The same client requests them before and after."""
    one = Line.on(cast("Any", Unproxied(kafka.bootstrap_servers)))
    cluster = Cluster(Kafka(bootstrap_servers=kafka.bootstrap_servers))
    one.write(0)
    one.ended()  # its control record counts too
    place = [(one.sink, 0)]
    before = cluster.latest(place)
    leader = cluster.admin.list_topics(one.sink, timeout=30).topics[one.sink].partitions[0].leader
    next(each for each in kafka.brokers if each.node_id == leader).kill()
    try:
        assert cluster.offsets(place, OffsetSpec.latest()) == before  # type: ignore[no-untyped-call]
    finally:
        one.close()
