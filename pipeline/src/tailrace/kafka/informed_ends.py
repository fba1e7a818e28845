"""The ends of logs as they are, and not as a broker remembers them that no longer leads their partitions.

A broker that is cut off from the others takes itself for the leader, and its log lacks what the next leader has
received since: a driver would take an older plan for the last one, and deliver its records again. No question of a
reader shows that. But such a broker cannot take a record: that needs the other brokers. So a driver that
has just fenced a transactional id sends a record, and reads at least as far as that (docs/decisions/0042).
"""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tailrace.kafka.clients import TopicPartitions, told
from tailrace.kafka.errors import PURGED

# No name has these bytes: they are not UTF-8. Each such record replaces the one before when the topic is compacted.
_KEY = b"\xff"


def informed_ends(producer: Producer, places: Sequence[tuple[str, int]], limit: float, doing: str) -> TopicPartitions:
    """Return for each partition an end behind all that was committed before; the producer has just taken its id.

    It commits a record without a value in each: an abort that arrives late may end a later transaction
    (docs/decisions/0015). If this raises, its transaction may still be open.
    """
    ends: TopicPartitions = {}
    refused: list[KafkaError] = []

    def heard(error: KafkaError | None, message: Message) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if error is not None:
            refused.extend([error] if error.code() not in PURGED else [])
        elif topic is not None and partition is not None and offset is not None:
            ends[topic, partition] = offset + 1

    producer.begin_transaction()
    for topic, partition in places:
        producer.produce(topic, None, _KEY, partition, on_delivery=heard)
    try:
        told(producer, lambda: producer.commit_transaction(limit))
    except KafkaException as error:
        raise KafkaException(refused[0]) if refused else error from error
    if len(ends) < len(places):
        raise KafkaException(KafkaError(KafkaError._FAIL, f"{doing}: {len(places) - len(ends)} reports are missing"))
    return ends
