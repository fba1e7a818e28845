"""`tailrace offsets rewind` never moves forward, also not where the pipeline has read nothing yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from support.threads import Line
from support.ways_out import obey
from tailrace.kafka.cluster import Cluster
from tailrace.testing import Record, produce, wait_until

pytestmark = pytest.mark.integration

MakeLine = Callable[..., Line]
START = 1_700_000_000_000
REWIND = "tailrace offsets rewind FILE --to-time 2023-11-14T22:14:20Z"  # a minute after START


def send(one: Line, topic: str, partition: int, minutes: dict[bytes, int]) -> None:
    """Write records with timestamps that are minutes after START."""
    records = [Record(value, partition=partition, timestamp=START + at * 60_000) for value, at in minutes.items()]
    # A producer that has not seen the topic with one partition.
    produce(one.kafka, topic, records, options={"client.id": f"{topic}-{partition}"})


@pytest.mark.parametrize("reset", ["earliest", "latest"])
@pytest.mark.parametrize("joins", ["partition", "topic"])
def test_rewind_leaves_unread_partitions_at_their_beginning(line: MakeLine, joins: str, reset: str) -> None:
    """A start reads them from there; records from before the time would never come out."""
    one = line(1)
    source: dict[str, Any] = {"source": {"auto.offset.reset": reset}}
    one.run(**source)
    send(one, one.source, 0, {b"a0": 0, b"a1": 1, b"a2": 2})
    one.run(**source)
    topic, partition = one.source, 1
    if joins == "partition":
        admin, cluster = AdminClient({"bootstrap.servers": one.kafka}), Cluster(one.pipeline().kafka)
        admin.create_partitions([NewPartitions(one.source, 2)])[one.source].result(30)
        wait_until(lambda: cluster.topics().get(one.source) == 2, "the new partition", 30)
    else:
        topic, partition = one.topics("other", 1), 0
        source["source"]["topics"] = [one.source, topic]
    send(one, topic, partition, {b"b0": -60, b"b1": -59, b"b2": 10})
    obey(one, REWIND, **source)
    one.run(**source)
    assert one.values() == [b"a0", b"a1", b"a1", b"a2", b"a2", b"b0", b"b1", b"b2"]


def test_rewind_goes_to_a_record_and_not_to_the_end_of_a_transaction(line: MakeLine) -> None:
    """A broker asked for a time finds that too, which is as old as its commit: older records would come out again."""
    one = line(1)
    producer = Producer({"bootstrap.servers": one.kafka, "transactional.id": f"late-{one.source}"})
    producer.init_transactions(30)
    for value, seconds in ((b"a", 0), (b"b", 30), (b"c", 60), (b"d", 90)):
        producer.begin_transaction()
        producer.produce(one.source, value, partition=0, timestamp=START + seconds * 1000)
        producer.commit_transaction(30)
    one.run()
    obey(one, REWIND)
    one.run()
    assert one.values() == [b"a", b"b", b"c", b"c", b"d", b"d"]


def test_pipeline_that_has_never_run_is_rewound_from_where_it_would_begin(line: MakeLine) -> None:
    """At `latest` that is the end of each partition."""
    one = line(2)
    source: dict[str, Any] = {"source": {"auto.offset.reset": "latest"}}
    send(one, one.source, 0, {b"a0": 0, b"a1": 1})
    send(one, one.source, 1, {b"b0": 0})
    obey(one, REWIND, **source)
    one.run(**source)
    assert one.values() == [b"a1"]
