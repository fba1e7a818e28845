"""A reader whose partition gets a leader that never had the last records: an unclean election."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from integration.test_doctor_of_logs import SOON, led_by
from support.readers import Reading, request_for
from tailrace import errors
from tailrace.progress.plan import Range
from tailrace.testing import Record, produce, wait_until
from tailrace.testing.embedded import EmbeddedKafka, EmbeddedOptions
from tailrace.testing.records import forget_producers

pytestmark = [pytest.mark.integration, pytest.mark.takes(20)]

TOPIC = "orders"
# Offsets: what both copies have, the end of the log that is lost, and of the one that is left.
BOTH, FORMER, NOW = 100, 160, 300


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Start three brokers; the third keeps the quorum."""
    with EmbeddedKafka(EmbeddedOptions(brokers=3, settings=SOON)) as running:
        yield running


def topic_of_two(kafka: EmbeddedKafka, admin: AdminClient) -> str:
    """Create a topic on the first two brokers, either of which may lead it whatever it lacks."""
    config = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    copies = [[kafka.brokers[0].node_id, kafka.brokers[1].node_id]]
    admin.create_topics([NewTopic(TOPIC, 1, replica_assignment=copies, config=config)])[TOPIC].result(30)
    wait_until(lambda: led_by(admin, TOPIC) == kafka.brokers[0].node_id, "the first broker to lead", 30)
    return TOPIC


def in_sync(admin: AdminClient) -> int:
    """Return how many copies are in sync."""
    return len(admin.list_topics(timeout=10).topics[TOPIC].partitions[0].isrs)


@pytest.mark.parametrize("reset", [False, True], ids=["stop", "reset"])
def test_records_of_a_log_that_is_lost_are_not_read_in_place_of_those_that_are_there(
    kafka: EmbeddedKafka, reset: bool
) -> None:
    """Refuse what was fetched of the former log, records before the error too; read the range of the other log then."""
    servers = kafka.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    topic = topic_of_two(kafka, admin)
    first, second = kafka.brokers[:2]
    reading = Reading(servers, request_for(servers, reset=reset), limit=60.0)
    try:
        produce(servers, topic, [Record(b"both", partition=0)] * BOTH)
        wait_until(lambda: in_sync(admin) == 2, "both copies to be in sync", 30)
        second.kill()
        wait_until(lambda: in_sync(admin) == 1, "the second copy to fall behind", 30)
        produce(servers, topic, [Record(b"former", partition=0)] * (FORMER - BOTH))
        assert reading.offsets(Range(topic, 0, 0, BOTH // 2)) == list(range(BOTH // 2))
        queued = FORMER - BOTH // 2
        wait_until(lambda: waiting(reading, topic) >= queued, "the records to be fetched ahead", 30)
        before = waiting(reading, topic)
        first.kill()
        second.start()
        wait_until(lambda: led_by(admin, TOPIC) == second.node_id, "the second broker to lead", 60)
        forget_producers()  # this one's last records are not there
        produce(servers, topic, [Record(b"now", partition=0)] * (NOW - BOTH))
        wait_until(lambda: waiting(reading, topic) > before, "the client to notice", 60)
        planned = Range(topic, 0, BOTH // 2, NOW)
        with pytest.raises(errors.SourceChanged, match="truncated before offset"):
            reading.read(planned)
        values = [row["value"] for row in reading.read(planned)]
        assert values == [b"both"] * (BOTH // 2) + [b"now"] * (NOW - BOTH)
    finally:
        reading.reader.close()


def waiting(reading: Reading, topic: str) -> int:
    """Return how much a reader has fetched and not yet handed out."""
    partition = reading.reader._partitions[topic, 0]
    return sum(map(len, partition.pending)) + reading.reader._consumer.queued(topic, 0)
