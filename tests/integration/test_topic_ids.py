"""The ids of topics, asked of a real broker as often as a pipeline of months asks."""

from __future__ import annotations

import gc
import sys

import pytest
from confluent_kafka.admin import AdminClient

from tailrace.errors import BrokerUnreachable
from tailrace.kafka import described_topics, topics
from tailrace.testing import Topics
from tailrace.testing.embedded import EmbeddedKafka

pytestmark = [pytest.mark.integration, pytest.mark.takes(5)]


@pytest.fixture
def admin(tailrace_kafka: EmbeddedKafka) -> AdminClient:
    """Provide a client of the embedded Kafka."""
    return AdminClient({"bootstrap.servers": tailrace_kafka.bootstrap_servers})


def test_ids_of_topics_are_those_that_confluent_kafka_gives(
    admin: AdminClient, tailrace_topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that does not exist is left out, either way."""
    names = [tailrace_topics("in", partitions=3), tailrace_topics("in"), "missing"]
    asked = topics.topic_ids(admin, names)
    monkeypatch.setattr(described_topics, "handle", lambda client: None)
    assert asked == topics.topic_ids(admin, names)
    assert sorted(count for _, count in asked.values()) == [1, 3]
    assert "missing" not in asked


def test_asking_for_topic_ids_keeps_nothing(admin: AdminClient, tailrace_topics: Topics) -> None:
    """confluent-kafka's own answer leaves an object behind each time: megabytes a day in a driver."""
    topic = tailrace_topics("in")

    def blocks() -> int:
        for _ in range(300):
            topics.topic_ids(admin, [topic])
        gc.collect()
        return sys.getallocatedblocks()

    blocks()  # what the first questions create once
    before = blocks()
    assert blocks() - before < 150


def test_topic_ids_without_a_broker_end_with_the_limit() -> None:
    """The error says what was asked and that nothing answered."""
    nobody = AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    with pytest.raises(BrokerUnreachable, match="asking for the ids of in"):
        topics.topic_ids(nobody, ["in"], limit=0.5)
