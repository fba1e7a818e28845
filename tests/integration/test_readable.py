"""A bounded run ends when a read_committed reader gets everything that it has written."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from support.pipelines import numbered
from support.threads import Line
from tailrace.kafka.cluster import Cluster
from tailrace.testing import wait_until

pytestmark = pytest.mark.integration


def test_bounded_run_ends_when_readers_get_its_last_records(line: Callable[..., Line]) -> None:
    """The next job of a chain would miss them; here another producer's transaction is what keeps readers back."""
    one = line(1)
    other = Producer({"bootstrap.servers": one.kafka, "transactional.id": f"{one.name}-other"})
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(one.sink, b"other", partition=0)
    other.flush(30)
    one.send(numbered(0, 10), partition=0)
    running = threading.Thread(target=one.run)
    running.start()
    cluster, sink = Cluster(one.pipeline().kafka), (one.sink, 0)
    wait_until(lambda: cluster.latest([sink])[sink] > 10, "the batch to be written")
    running.join(2)
    assert running.is_alive()
    assert one.values() == []
    other.commit_transaction(30)
    running.join(30)
    assert not running.is_alive()
    assert one.values() == [*numbered(0, 10), b"other"]
