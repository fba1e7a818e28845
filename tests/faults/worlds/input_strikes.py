"""The strikes against the input: it grows, it has an open transaction, and its beginning is deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from faults.worlds.pipeline import LIMIT, Driven
from faults.worlds.records import aborted
from faults.worlds.world import Strike
from tailrace.config import Kafka
from tailrace.kafka.clients import persist
from tailrace.kafka.cluster import Cluster
from tailrace.testing import wait_until

_OPEN = 3.0  # seconds
_TIMEOUT_MS = 4000


def _grow(one: Driven) -> None:
    count = len(one.counts) + 2
    admin = AdminClient({"bootstrap.servers": one.context.bootstrap})
    admin.create_partitions([NewPartitions(one.source, count)])[one.source].result(30)
    one.wait(1.0)
    one.write(dict.fromkeys(range(count - 2, count), one.world.max_records))


def _hang(one: Driven) -> None:
    """Leave a transaction open, write behind it, then abort it; or abandon it, until the brokers abort it."""
    bootstrap = one.context.bootstrap
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"hanging-{one.name}-{one.chance.random()}",
            "transaction.timeout.ms": _TIMEOUT_MS,
        }
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(50):
        producer.produce(one.source, aborted(one.world, 0, number), partition=0)
    producer.flush(30)
    one.write({0: one.world.max_records})
    one.wait(_OPEN)
    if one.chance.random() < 0.5:
        with suppress(KafkaException):  # on a slow machine the brokers have aborted it already
            producer.abort_transaction(30)
    cluster, place = Cluster(Kafka(bootstrap_servers=bootstrap)), [(one.source, 0)]

    def closed() -> bool:
        one.step()
        return cluster.latest(place, committed=True) == cluster.latest(place)

    wait_until(closed, "the transaction in the input to be aborted", LIMIT)


def _trim(one: Driven) -> None:
    """Delete what the pipeline says it has read, which is known to every tool as the offsets of its group."""
    bootstrap = one.context.bootstrap
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"tailrace.{one.name}"})
    try:
        read = consumer.committed([TopicPartition(one.source, number) for number in one.counts], timeout=30)
    finally:
        consumer.close()
    ends = [each for each in read if each.offset >= 0]
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def delete() -> None:
        for answer in admin.delete_records(ends).values():
            answer.result(30)

    if ends:
        persist(delete, "deleting what was read", LIMIT)


INPUT: Mapping[Strike, Callable[[Driven], None]] = {Strike.GROW: _grow, Strike.HANG: _hang, Strike.TRIM: _trim}
