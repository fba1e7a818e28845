"""What a retention does to a topic, at once."""

from __future__ import annotations

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient


def expire(bootstrap: str, topic: str, before: int, partition: int = 0) -> None:
    """Delete the records of a partition before an offset."""
    admin = AdminClient({"bootstrap.servers": bootstrap})  # no answer reaches a client that is gone
    place = TopicPartition(topic, partition, before)
    admin.delete_records([place])[place].result(30)
