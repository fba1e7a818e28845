"""Topics that are deleted, and created again under their name."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient

from tailrace.config import Kafka
from tailrace.kafka.cluster import Cluster, NewTopic
from tailrace.testing import wait_until


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic, and wait until a broker no longer names it."""
    admin, cluster = AdminClient({"bootstrap.servers": bootstrap}), Cluster(Kafka(bootstrap_servers=bootstrap))
    admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in cluster.topics(), "the topic to be gone", 30)


def recreate_topic(bootstrap: str, topic: str, partitions: int = 1, **config: str) -> None:
    """Delete a topic and create it again."""
    delete_topic(bootstrap, topic)
    admin, cluster = AdminClient({"bootstrap.servers": bootstrap}), Cluster(Kafka(bootstrap_servers=bootstrap))

    def made() -> bool:
        try:
            admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)
        except Exception:  # the old one is still being deleted
            return False
        return True

    wait_until(made, "the topic to exist again", 30)
    wait_until(lambda: topic in cluster.topics(), "the topic to be visible", 30)
