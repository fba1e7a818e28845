"""The size of the first records, from a sample that is read before the first batch.

Nothing else is known then, and a limit that suits small records would be terabytes of large ones.
"""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tailrace.config import Kafka
from tailrace.kafka.clients import TopicPartitions, client_options

_PROBED_PARTITIONS = 16
_PROBED_RECORDS = 64
_PROBED_BYTES = 16_384_000
_PROBE_LIMIT = 1.0  # seconds; a topic whose record size is unknown by then starts with small batches
_PASSING = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT})


def weight(kafka: Kafka, positions: TopicPartitions) -> float | None:
    """Return the mean size of a sample of the next records; None if there are none, or no broker answers."""
    places = sorted(positions)[:: max(1, len(positions) // _PROBED_PARTITIONS)]
    if not places:
        return None
    consumer = Consumer(_options(kafka))
    try:
        consumer.assign([TopicPartition(*place, positions[place]) for place in places])
        sizes = _sizes(consumer, len(places))
    except KafkaException:
        return None  # only a guess is needed here; reading the batch will report the problem
    finally:
        consumer.close()
    return sum(sizes) / len(sizes) if sizes else None


def _options(kafka: Kafka) -> dict[str, Any]:
    return client_options(kafka) | {
        "group.id": "tailrace.size",  # never joined: the partitions are assigned
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_uncommitted",
        "fetch.wait.max.ms": 20,  # the end of a short topic is reported by a fetch that finds nothing
        "fetch.message.max.bytes": 65_536,
        "queued.max.messages.kbytes": 4_096,
    }


def _sizes(consumer: Consumer, partitions: int) -> list[int]:
    sizes: list[int] = []
    ended: set[tuple[str | None, int | None]] = set()
    limit = time.monotonic() + _PROBE_LIMIT
    while len(ended) < partitions and len(sizes) < _PROBED_RECORDS * partitions and sum(sizes) < _PROBED_BYTES:
        left = limit - time.monotonic()
        if left <= 0:
            break
        for message in consumer.consume(_PROBED_RECORDS, min(0.05, left)):
            problem = message.error()
            if problem is None:
                sizes.append(len(message.key() or b"") + len(message.value() or b""))
            elif problem.code() not in _PASSING:
                ended.add((message.topic(), message.partition()))
    return sizes
