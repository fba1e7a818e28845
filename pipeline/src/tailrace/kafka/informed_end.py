"""The end of a log as it is, and not as a broker remembers it that no longer leads the partition.

A broker that is cut off from the others takes itself for the leader, and its log lacks what the next leader has
received since: a driver would take an older plan for the last one, and deliver its records again. No question of a
reader shows that. But such a broker cannot take a record: that needs the other brokers. So a driver that
has just fenced a transactional id sends a record, and reads at least as far as that (docs/decisions/0042).
"""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tailrace.kafka.clients import told
from tailrace.kafka.errors import PURGED

# No name has these bytes: they are not UTF-8. Each such record replaces the one before when the topic is compacted.
_KEY = b"\xff"


def informed_end(producer: Producer, topic: str, partition: int, limit: float) -> int:
    """Return an end behind all that was committed before; the producer has just taken its transactional id.

    It commits a record without a value: an abort that arrives late may end a later transaction (docs/decisions/0015).
    If this raises, its transaction may still be open.
    """
    ends: list[int] = []
    refused: list[KafkaError] = []

    def heard(error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        if error is not None:
            refused.extend([error] if error.code() not in PURGED else [])
        elif offset is not None:
            ends.append(offset + 1)

    producer.begin_transaction()
    producer.produce(topic, None, _KEY, partition, on_delivery=heard)
    try:
        told(producer, lambda: producer.commit_transaction(limit))
    except KafkaException as error:
        raise KafkaException(refused[0]) if refused else error from error
    if not ends:
        raise KafkaException(KafkaError(KafkaError._FAIL, "the record was committed, and not reported"))
    return ends[0]
