"""A driver that was killed in mid-commit leaves a transaction that hides its markers from commands that only look."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from support.pipelines import Bench
from tailrace.admin.offsets import look
from tailrace.errors import BrokerUnreachable
from tailrace.kafka.cluster import Cluster
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import Marker, markers_group, transactional_id
from tailrace.progress.plan import BatchId, SinkPartition
from tailrace.progress.stores import open_store

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.takes(85)]

TIMEOUT = 65  # seconds: more than the ledger's own limit for reading markers


@pytest.fixture
def left(bench: Callable[..., Bench]) -> Iterator[Bench]:
    """Yield a pipeline with one delivered batch, and an open transaction that has added the next marker."""
    one = bench()
    one.send([b"first"])
    one.run()
    options = {"bootstrap.servers": one.kafka, "transactional.id": transactional_id(one.name, SinkPartition(0))}
    killed = Producer(options | {"transaction.timeout.ms": TIMEOUT * 1000})
    reader = Consumer({"bootstrap.servers": one.kafka, "group.id": markers_group(one.name)})
    killed.init_transactions(30)
    killed.begin_transaction()
    place = TopicPartition(one.pipeline().ledger.topic, 0, 2, Marker.of(BatchId(1), "its digest", 1).metadata)
    killed.send_offsets_to_transaction([place], reader.consumer_group_metadata(), 30)
    yield one
    reader.close()


def test_offsets_are_shown_once_the_brokers_have_ended_a_killed_drivers_transaction(left: Bench) -> None:
    """The command waits as long as that transaction may take, which is longer than other requests may."""
    pipeline = left.pipeline(sink={"options": {"transaction.timeout.ms": TIMEOUT * 1000}})
    with Ledger.of(pipeline) as ledger:
        with pytest.raises(BrokerUnreachable):
            ledger.markers(1.0)
        now = look(pipeline, Cluster(pipeline.kafka), ledger, open_store(pipeline, left.folder))
    assert now.state == "stopped"
    assert [marker.next for marker in now.markers.values()] == [1]
