"""Produce and consume the records of a test's topics in one call each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import uuid4

from tailrace.errors import KafkaFailed, TopicUnknown

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer

T = TypeVar("T")
Headers = tuple[tuple[str, bytes | None], ...]

DELIVERY_LIMIT = 60.0
# The topic's own limit decides how large a record may be, not the helper's client.
ANY_SIZE = 1_000_000_000
QUIET = {"log_level": 0}


@dataclass(frozen=True)
class Record:
    """A record to produce; without a partition, Kafka's own partitioner chooses one by the key."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp: int | None = None  # milliseconds; 0 is written as 1


@dataclass(frozen=True)
class Consumed:
    """A record as a consumer received it."""

    partition: int
    offset: int
    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp: int  # milliseconds


@dataclass(frozen=True)
class Topics:
    """Creates topics with unique names. It deletes none: the broker's folder is removed at the end."""

    bootstrap_servers: str
    options: Mapping[str, str] = field(default_factory=dict)  # connection options

    def __call__(self, name: str = "in", partitions: int = 1, **config: object) -> str:
        """Create a topic, wait until each partition has a leader, and return its name.

        Topic settings are written with underscores for dots: `cleanup_policy="compact"`.
        """
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        topic = f"{name}-{uuid4().hex[:8]}"
        settings = {key.replace("_", "."): _text(value) for key, value in config.items()}
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, **QUIET, **self.options})
        new = NewTopic(topic, num_partitions=partitions, replication_factor=-1, config=settings)
        admin.create_topics([new])[topic].result(timeout=30)

        def led() -> bool:
            found = admin.list_topics(topic, timeout=10).topics[topic].partitions
            return len(found) == partitions and all(each.leader >= 0 for each in found.values())

        wait_until(led, f"a leader of each of the {partitions} partitions of {topic}", limit=30)
        return topic


def produce(bootstrap: str, topic: str, records: Iterable[Record], *, options: Mapping[str, str] | None = None) -> None:
    """Write the records in order, each once, and return when the brokers have acknowledged them all.

    `options` are connection options, as librdkafka names them.
    """
    from tailrace.kafka.clients import sendable

    failed: list[str] = []

    def delivered(error: object, _message: Message) -> None:
        if error is not None:
            failed.append(str(error))

    producer = _producer(bootstrap, os.getpid(), tuple(sorted((options or {}).items())))
    for record in records:
        arguments: dict[str, Any] = {"key": record.key, "headers": list(record.headers), "on_delivery": delivered}
        if record.partition is not None:
            arguments["partition"] = record.partition
        if record.timestamp is not None:
            arguments["timestamp"] = sendable(record.timestamp)
        while True:
            try:
                producer.produce(topic, record.value, **arguments)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(DELIVERY_LIMIT + 5)
    if failed or left:
        _producer.cache_clear()
        raise KafkaFailed(
            f"{len(failed)} records for topic {topic!r} were refused and {left} not acknowledged"
            f" within {DELIVERY_LIMIT:.0f} s{f'; the first: {failed[0]}' if failed else ''}",
            kept="the other records are in the topic",
            then=f"check that {topic!r} exists and takes records of this size; check the broker's log",
        )


def consume(
    bootstrap: str,
    topic: str,
    *,
    isolation: str = "read_committed",
    limit: float = 30.0,
    options: Mapping[str, str] | None = None,
) -> list[Consumed]:
    """Return all records of the topic, up to its partitions' ends at the time of the call, by partition and offset.

    Nothing is committed, and no group is joined. At read_committed a partition ends before its first open transaction.
    """
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"tailrace-testing-{uuid4().hex[:8]}",  # the client insists on a name; it is not used
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.message.max.bytes": 10_000_000,
            "fetch.wait.max.ms": 10,
            **QUIET,
            **(options or {}),
        }
    )
    try:
        until = time.monotonic() + limit
        ranges = _ranges(consumer, topic, until)
        consumer.assign([TopicPartition(topic, partition, low) for partition, (low, _) in ranges.items()])
        ends = {partition: end for partition, (_, end) in ranges.items()}
        return _read(consumer, topic, ends, until, limit)
    finally:
        consumer.close()


def wait_until(condition: Callable[[], T], what: str, limit: float = 30.0, every: float = 0.05) -> T:
    """Wait until the condition holds, and return its value; raise TimeoutError, which names `what`, after the limit."""
    until = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= until:
            raise TimeoutError(f"waited {limit:g} s for {what}; the last answer was {value!r}")
        time.sleep(every)


def forget_producers() -> None:
    """Close the producers that are cached between calls, once their broker is gone."""
    _producer.cache_clear()


@lru_cache(maxsize=4)
def _producer(bootstrap: str, _process: int, options: tuple[tuple[str, str], ...] = ()) -> Producer:
    # Cached between calls, because an idempotent producer's first record takes half a second; a fork needs its own.
    from confluent_kafka import Producer

    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",  # Java's
            "message.max.bytes": ANY_SIZE,
            "delivery.timeout.ms": int(DELIVERY_LIMIT * 1000),
            "linger.ms": 5,
            "socket.timeout.ms": 5000,  # so that a paused broker times out while there is time to try another
            "topic.metadata.propagation.max.ms": 5000,  # a topic that is still unknown then does not exist
            **QUIET,
            **dict(options),
        }
    )


def _ranges(consumer: Consumer, topic: str, until: float) -> dict[int, tuple[int, int]]:
    """Return the first offset and the end of each partition that is not empty."""
    from confluent_kafka import TopicPartition

    found = _retried(lambda left: consumer.list_topics(topic, timeout=left), until).topics[topic]
    if found.error is not None:
        raise TopicUnknown(
            f"topic {topic!r} cannot be read: {found.error}", then="create the topic first, with `tailrace_topics`"
        )
    ends = {}
    for partition in found.partitions:
        place = TopicPartition(topic, partition)
        ends[partition] = _retried(partial(consumer.get_watermark_offsets, place), until)
    return {partition: (low, end) for partition, (low, end) in ends.items() if end > low}


def _retried(call: Callable[[float], T], until: float) -> T:
    """Return the result of the call, retried on the transient errors of brokers that start and stop."""
    from confluent_kafka import KafkaException

    while True:
        try:
            return call(max(0.1, until - time.monotonic()))
        except KafkaException as error:
            if not _passes(error.args[0]) or time.monotonic() >= until:
                raise KafkaFailed(f"asking for the ends of a topic: {error.args[0]}") from error
            time.sleep(0.1)


def _passes(error: KafkaError) -> bool:
    from confluent_kafka import KafkaError

    return error.retriable() or error.code() in {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }


def _read(consumer: Consumer, topic: str, ends: dict[int, int], until: float, limit: float) -> list[Consumed]:
    from confluent_kafka import KafkaError

    records: list[Consumed] = []
    waiting = set(ends)
    while waiting:
        if time.monotonic() >= until:
            raise TimeoutError(
                f"waited {limit:g} s for the end of topic {topic!r}: partitions {sorted(waiting)} are not read to their"
                f" ends {[ends[partition] for partition in sorted(waiting)]}; {len(records)} records came"
            )
        for message in consumer.consume(1000, timeout=0.05):
            partition, offset, error = cast(int, message.partition()), cast(int, message.offset()), message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                if _passes(error):
                    continue
                raise KafkaFailed(f"reading topic {topic!r}, partition {partition}: {error}")
            if error is None and offset < ends[partition]:
                records.append(_consumed(message, partition, offset))
            # A transaction's end marker takes an offset but is not a record, so the last offset may never come; the
            # end-of-partition event does.
            if offset >= ends[partition] - (error is None):
                waiting.discard(partition)
    return sorted(records, key=lambda record: (record.partition, record.offset))


def _consumed(message: Message, partition: int, offset: int) -> Consumed:
    return Consumed(
        partition=partition,
        offset=offset,
        value=message.value(),
        key=message.key(),
        headers=tuple(cast(list[tuple[str, bytes | None]], message.headers() or [])),
        timestamp=message.timestamp()[1],
    )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
