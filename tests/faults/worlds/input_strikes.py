"""The strikes against the input: it grows, it has an open transaction, and a part or all of it is deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from faults.reading import exists
from faults.worlds.excuses import Stuck
from faults.worlds.oracle import Gap
from faults.worlds.pipeline import LIMIT, Driven
from faults.worlds.records import ABORTED, aborted, key_of
from faults.worlds.world import GROWTH, Strike, Work
from tailrace.config import Kafka
from tailrace.errors import KafkaFailed
from tailrace.kafka.clients import persist
from tailrace.kafka.cluster import Cluster
from tailrace.testing import wait_until

_OPEN = 3.0  # seconds
_TIMEOUT_MS = 4000
_NOTICED = 3.0  # seconds


def _grow(one: Driven) -> None:
    count = len(one.counts) + GROWTH
    admin = AdminClient({"bootstrap.servers": one.context.bootstrap})
    admin.create_partitions([NewPartitions(one.source, count)])[one.source].result(30)
    one.wait(1.0)
    one.write(dict.fromkeys(range(count - GROWTH, count), one.world.max_records))


def _hang(one: Driven) -> None:
    """Leave a transaction open, write behind it, then abort it; or abandon it, until the brokers abort it."""
    producer = begun(one, _TIMEOUT_MS)
    for number in range(50):
        producer.produce(one.source, aborted(one.world, 0, number), key_of(one.world, ABORTED + number), partition=0)
    producer.flush(30)
    one.write({0: one.world.max_records})
    one.wait(_OPEN)
    if one.chance.random() < 0.5:
        with suppress(KafkaException):  # on a slow machine the brokers have aborted it already
            producer.abort_transaction(30)
    wait_for_ends(one)


def begun(one: Driven, timeout_ms: int) -> Producer:
    """Return another producer, in an open transaction."""
    name = f"another-{one.name}-{one.chance.random()}"
    options = {"transactional.id": name, "transaction.timeout.ms": timeout_ms}
    producer = Producer({"bootstrap.servers": one.context.bootstrap, **options})
    producer.init_transactions(60)
    producer.begin_transaction()
    return producer


def wait_for_ends(one: Driven) -> None:
    """Follow until no transaction is open in the input."""
    cluster = Cluster(Kafka(bootstrap_servers=one.context.bootstrap))
    places = [(one.source, each) for each in one.counts]

    def closed() -> bool:
        one.step()
        return cluster.latest(places, committed=True) == cluster.latest(places)

    wait_until(closed, "the transaction in the input to end", LIMIT)


def _trim(one: Driven) -> None:
    """Delete what the pipeline says it has read."""
    _delete(one, _read(one))


def _lose(one: Driven) -> None:
    """Delete more than that in some partitions, as a retention that is too short would."""
    ends = {}
    for number, read in _read(one).items():
        more = min(one.counts[number] - one.base.get(number, 0), read + one.chance.randint(0, one.world.max_records))
        ends[number] = one.chance.choice((read, more))
        one.gaps.append(gap(one, number, read, ends[number]))
    _delete(one, ends)


def _recreate(one: Driven) -> None:
    if one.world.work is Work.DISTINCT:  # an open batch that reads the topic is refused for good
        one.drain()
    # A pipeline looks at its topics once a second; faster than that is a gap which docs/guarantees.md describes.
    recreated(one, _NOTICED)


def recreated(one: Driven, after: float = 0.0) -> None:
    """Delete the source topic, and create it again some seconds later; everything that was not read is gone."""
    admin = AdminClient({"bootstrap.servers": one.context.bootstrap})
    read, count = _read(one), len(one.counts)
    admin.delete_topics([one.source])[one.source].result(30)
    for number, total in one.counts.items():
        one.gaps.append(gap(one, number, read.get(number, 0), total - one.base.get(number, 0)))
        one.base[number] = total
    wait_until(lambda: not exists(one.context.bootstrap, one.source), "the source topic to be gone", LIMIT)
    one.wait(after)
    admin.create_topics([NewTopic(one.source, count, -1)])[one.source].result(30)
    one.write(dict.fromkeys(range(count), 10))


def _read(one: Driven) -> dict[int, int]:
    """Return the offsets that the pipeline has read, which every tool knows as those of its group."""
    consumer = Consumer({"bootstrap.servers": one.context.bootstrap, "group.id": f"tailrace.{one.name}"})
    try:
        found = consumer.committed([TopicPartition(one.source, number) for number in one.counts], timeout=30)
    finally:
        consumer.close()
    return {each.partition: each.offset for each in found if each.offset >= 0}


def gap(one: Driven, partition: int, first: int, end: int) -> Gap:
    """Return these offsets of the input as a gap."""
    base = one.base.get(partition, 0)
    return Gap(partition, base + first, base + end)


def _delete(one: Driven, ends: Mapping[int, int]) -> None:
    admin = AdminClient({"bootstrap.servers": one.context.bootstrap})

    def delete() -> None:
        places = [TopicPartition(one.source, number, end) for number, end in ends.items()]
        for answer in admin.delete_records(places).values():
            answer.result(30)

    try:
        if ends:
            persist(delete, "deleting records of the input", LIMIT)
    except KafkaFailed as error:  # what a pipeline has read cannot lie beyond the end of its input
        raise Stuck(f"the input is said to be read to {dict(ends)}: {error.what}") from error


INPUT: Mapping[Strike, Callable[[Driven], None]] = {
    Strike.GROW: _grow,
    Strike.HANG: _hang,
    Strike.TRIM: _trim,
    Strike.LOSE: _lose,
    Strike.RECREATE: _recreate,
}
