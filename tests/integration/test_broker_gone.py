"""Brokers that are killed or paused while a client waits for their answer."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO, Any, cast

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from support.transactions import Line, rows
from tailrace import errors
from tailrace.config import Kafka
from tailrace.gateway import producers
from tailrace.kafka.clients import client_options
from tailrace.kafka.cluster import Cluster, OffsetSpec
from tailrace.kafka.informed_reader import InformedReader
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import Marker, markers_group, transactional_id
from tailrace.progress.plan import BatchId, SinkPartition
from tailrace.testing import Topics, wait_until
from tailrace.testing.broker import Broker
from tailrace.testing.embedded import EmbeddedKafka, EmbeddedOptions

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SOON = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}


@dataclass(frozen=True)
class Unproxied:
    """Brokers that are reached without a proxy."""

    bootstrap_servers: str

    @property
    def proxied_servers(self) -> str:
        """Return the brokers' own addresses."""
        return self.bootstrap_servers


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Start three brokers whose failure is noticed soon."""
    with EmbeddedKafka(EmbeddedOptions(brokers=3, settings=SOON)) as running:
        yield running


def test_marker_finds_another_coordinator_when_its_broker_is_killed(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka waits for the dead broker past any deadline; the attempt is given up, and the next delivers once."""
    monkeypatch.setattr(producers, "_MARKER_LIMIT", 5.0)
    one = Line.on(cast("Any", Unproxied(kafka.bootstrap_servers)))
    cluster = Cluster(Kafka(bootstrap_servers=kafka.bootstrap_servers))
    killed: list[int] = []

    def batches() -> Iterator[Any]:
        values = one.values(1)
        yield rows(values[:5])
        if not killed:
            group = markers_group(one.pipeline)
            found = cluster.admin.describe_consumer_groups([group])[group].result(timeout=30)
            killed.append(found.coordinator.id)
            next(each for each in kafka.brokers if each.node_id == killed[0]).kill()
            wait_until(
                lambda: killed[0] not in cluster.admin.list_topics(timeout=30).brokers,
                f"the others to notice that broker {killed[0]} is gone",
                60,
            )
        yield rows(values[5:])

    try:
        one.write(0)
        one.write(1, batches)
        one.write(2)
        assert killed
        assert sorted(cast("list[bytes]", one.read())) == [value for batch in range(3) for value in one.values(batch)]
        last = one.task(2)
        assert one.marker() == Marker.of(last.batch, last.digest, 1)
    finally:
        one.close()


def suspended(kafka: EmbeddedKafka, one: Line) -> Broker:
    """Suspend the broker that has the markers' group, and return it once the others have taken over all it led."""
    cluster, group = Cluster(Kafka(bootstrap_servers=kafka.bootstrap_servers)), markers_group(one.pipeline)
    number = cluster.admin.describe_consumer_groups([group])[group].result(timeout=30).coordinator.id
    found = next(each for each in kafka.brokers if each.node_id == number)
    rest = ",".join(f"127.0.0.1:{each.port}" for each in kafka.brokers if each is not found)
    others = AdminClient({"bootstrap.servers": rest, "log_level": 0})
    found.pause()
    led = {one.sink, one.ledger, "__consumer_offsets", "__transaction_state"}

    def moved() -> bool:
        topics = others.list_topics(timeout=30).topics
        leaders = {each.leader for topic in led for each in topics[topic].partitions.values()}
        return leaders.isdisjoint({number, -1})

    wait_until(moved, f"the others to lead what broker {number} has led", 60)
    return found


def test_delivered_sink_partition_is_skipped_although_a_resumed_broker_has_lost_its_marker(
    kafka: EmbeddedKafka,
) -> None:
    """The broker was suspended when another gateway wrote it, and the question for the marker waits there."""
    one = Line.on(cast("Any", Unproxied(kafka.bootstrap_servers)))
    other = Line(one.kafka, one.sink, one.ledger, one.pipeline)
    other.write(0)
    # The gateway has asked that broker for markers, and has no producer of the sink partition.
    warm = replace(one.task(0), partition=SinkPartition(1), sinks=2)
    one.gateway.write(warm, iter([rows(one.values(0))]))
    broker = suspended(kafka, one)
    resuming = threading.Timer(3.0, broker.resume)
    try:
        other.write(1)
        resuming.start()
        assert one.write(1).skipped
        assert sorted(cast("list[bytes]", one.read())) == sorted(one.values(0) * 2 + one.values(1))
    finally:
        resuming.cancel()
        broker.resume()
        one.close()
        other.close()


def test_marker_whose_end_the_brokers_have_lost_is_not_undone() -> None:
    """Kafka skips partitions without a leader when it ends a transaction, and reports it as committed all the same.

    The question whether a broker knows all markers is a transaction that is aborted, and would have undone this one.
    """
    settings = SOON | {"offsets.topic.replication.factor": "1"}
    with EmbeddedKafka(EmbeddedOptions(brokers=3, settings=settings)) as kafka:
        one = Line.on(cast("Any", Unproxied(kafka.bootstrap_servers)))
        one.write(0)
        options, group = Kafka(bootstrap_servers=kafka.bootstrap_servers), markers_group(one.pipeline)
        cluster, reader = Cluster(options), InformedReader(client_options(options), group)
        number = cluster.admin.describe_consumer_groups([group])[group].result(timeout=30).coordinator.id
        found = next(each for each in kafka.brokers if each.node_id == number)
        others = AdminClient({
            "bootstrap.servers": ",".join(f"127.0.0.1:{each.port}" for each in kafka.brokers if each is not found),
            "log_level": 0,
        })  # fmt: skip
        sending = Producer(
            client_options(options) | {"transactional.id": transactional_id(one.pipeline, SinkPartition(0))}
        )
        sending.init_transactions(30)
        sending.begin_transaction()
        sending.produce(one.sink, b"delivered")
        marker = Marker.of(BatchId(1), "digest of 1", 1)
        place = TopicPartition(one.ledger, 0, marker.next, marker.metadata)
        sending.send_offsets_to_transaction([place], reader.metadata, 30)
        sending.flush(30)
        found.kill()

        def leaderless() -> bool:
            partitions = others.list_topics(timeout=30).topics["__consumer_offsets"].partitions.values()
            return any(each.leader == -1 for each in partitions)

        wait_until(leaderless, f"the others to notice that broker {number} is gone", 60)
        sending.commit_transaction(60)
        wait_until(lambda: b"delivered" in one.read(), "the commit to be seen in the sink", 60)
        found.start()
        with Ledger(one.pipeline, one.ledger, options, 4, 1) as ledger:
            ledger.take()
            ledger.fence(1)
            with pytest.raises(errors.KafkaFailed, match="the brokers have lost its end"):
                ledger.markers(fenced=True)
        one.close()
        reader.close()


ASKING = """
import sys
from confluent_kafka import Consumer, KafkaException, TopicPartition
from tailrace.config import Kafka
from tailrace.kafka.clients import client_options
from tailrace.kafka.pending_offsets import stored

kafka = Kafka(bootstrap_servers=sys.argv[1])
consumer = Consumer(client_options(kafka) | {"group.id": "asked"})

def ask():
    try:
        return len(stored(consumer, "asked", [TopicPartition(sys.argv[2], 0)], 1.0))
    except KafkaException as error:
        return error.args[0].name()

while ask() != 1:
    pass
print("asked", flush=True)
sys.stdin.readline()
print(ask(), flush=True)
sys.stdin.readline()
while ask() != 1:
    pass
print("asked again", flush=True)
"""


def test_process_survives_that_a_coordinator_returns_for_which_a_request_has_not_waited() -> None:
    """librdkafka aborts the process if the request itself has expired by then."""
    with EmbeddedKafka() as kafka:
        given = [sys.executable, "-c", ASKING, kafka.bootstrap_servers, Topics(kafka.bootstrap_servers)()]
        with subprocess.Popen(given, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as asking:
            to, said = cast("IO[str]", asking.stdin), cast("IO[str]", asking.stdout)
            try:
                assert said.readline() == "asked\n"
                kafka.brokers[0].kill()
                print(file=to)
                assert said.readline() in {"_TIMED_OUT\n", "_TRANSPORT\n"}
                kafka.brokers[0].start()
                print(file=to)
                assert said.readline() == "asked again\n"
            finally:
                asking.kill()


def test_client_gets_offsets_after_a_leader_was_killed(kafka: EmbeddedKafka) -> None:
    """The same client requests them before and after."""
    one = Line.on(cast("Any", Unproxied(kafka.bootstrap_servers)))
    cluster = Cluster(Kafka(bootstrap_servers=kafka.bootstrap_servers))
    one.write(0)
    one.ended()  # its control record counts too
    place = [(one.sink, 0)]
    before = cluster.latest(place)[place[0]]
    leader = cluster.admin.list_topics(one.sink, timeout=30).topics[one.sink].partitions[0].leader
    next(each for each in kafka.brokers if each.node_id == leader).kill()
    try:
        after = cluster.offsets(place, OffsetSpec.latest())[place[0]]  # type: ignore[no-untyped-call]
        # If the transaction's coordinator was killed before it noted the end, the next one writes it again.
        assert after - before in {0, 1}
    finally:
        one.close()


def test_client_of_a_paused_broker_is_replaced_and_gets_offsets_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The new client asks for no offsets before the broker has listed the topics, so requests do not pile up."""
    limits: list[float] = []
    made: list[AdminClient] = []

    class Spy(AdminClient):
        """Notes each client, and the limits of its requests for offsets."""

        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

        def list_offsets(self, *given: Any, **more: Any) -> Any:
            """Note the limit."""
            limits.append(more["request_timeout"])
            return super().list_offsets(*given, **more)

    monkeypatch.setattr("tailrace.kafka.cluster.AdminClient", Spy)
    monkeypatch.setattr("tailrace.kafka.cluster.SHORT_TRY", 1.0)
    with EmbeddedKafka() as kafka:
        place = [(Topics(kafka.bootstrap_servers)(), 0)]
        cluster = Cluster(Kafka(bootstrap_servers=kafka.bootstrap_servers))
        before = cluster.latest(place)

        def silent() -> bool:
            try:
                cluster.latest(place)
            except errors.BrokerUnreachable:
                return True
            return False

        with monkeypatch.context() as impatient:
            impatient.setattr("tailrace.kafka.cluster.ANSWER_LIMIT", 2.0)
            kafka.brokers[0].pause()
            try:
                wait_until(silent, "the broker to halt", 60)
                sent = len(limits)
                assert [silent() for _ in range(4)] == [True] * 4
            finally:
                kafka.brokers[0].resume()
        assert len(limits) <= sent + 1
        assert set(limits) == {3600}
        # Right after it resumes it may list no broker at all, until it has registered itself again.
        wait_until(lambda: not silent(), "the broker to list itself again", 120)
        assert cluster.latest(place) == before
        assert len(made) > 1
