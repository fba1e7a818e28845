"""A fresh producer's question for a broker that knows its marker: where answers are slow, and where it is overtaken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from support.kafkaproxy import ProxiedKafka, proxied
from support.transactions import Line, Older, connected, rows
from tailrace import errors
from tailrace.admin.rejected import Place
from tailrace.admin.replay import Replay, group
from tailrace.admin.selection import Home, Marks, Selection
from tailrace.config import Kafka
from tailrace.gateway.markers import MarkerReader
from tailrace.gateway.producers import SinkProducer
from tailrace.kafka import informed_reader
from tailrace.kafka.clients import client_options
from tailrace.kafka.informed_reader import Informed, InformedReader
from tailrace.kafka.pending_offsets import Stored, stored
from tailrace.kafka.reader import Message
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import GIVEN_UP, Marker
from tailrace.progress.plan import BatchId, SinkPartition
from tailrace.testing import Topics

pytestmark = [pytest.mark.integration, pytest.mark.takes(20)]


@pytest.fixture(scope="module")
def network() -> Iterator[ProxiedKafka]:
    """Start one broker behind a proxy."""
    with proxied() as kafka:
        yield kafka


@pytest.fixture
def line(network: ProxiedKafka) -> Iterator[Line]:
    """Return a sink partition whose gateway connects through the proxy."""
    with connected(network) as one:
        yield one


def written(line: Line, batches: int) -> list[bytes]:
    """Return what must come out, in this order."""
    return [value for batch in range(batches) for value in line.values(batch)]


@pytest.mark.parametrize(
    ("late", "batches"),
    [
        pytest.param(0.45, 2, marks=pytest.mark.takes(45)),
        pytest.param(2.0, 1, marks=[pytest.mark.takes(130), pytest.mark.slow]),
    ],
)
def test_brokers_that_take_long_for_each_answer_get_every_batch(line: Line, late: float, batches: int) -> None:
    """Each end of a transaction is in doubt there, also of the one that asks for the marker."""
    line.kafka.proxy.late = {broker.node_id: late for broker in line.kafka.brokers}
    for batch in range(batches):
        assert not line.write(batch).skipped
    assert line.failures == []
    line.kafka.proxy.heal()
    assert line.read() == written(line, batches)


def test_batch_that_comes_again_is_decided_by_a_producer_that_asks_anew(line: Line) -> None:
    """What a warm one wrote itself, a broker that has lost the markers' group may not know."""
    line.write(0)
    line.write(1)
    again = line.write(1)
    assert (again.skipped, again.fresh) == (True, True)
    after = line.write(2)
    assert (after.skipped, after.fresh) == (False, False)
    assert line.read() == written(line, 3)


class Thief:
    """Takes the transactional id away once, between the addition of the offset and the question for it."""

    def __init__(self, line: Line) -> None:
        self.asked = 0
        self._id = {"transactional.id": line.transaction}
        self._servers = line.kafka.bootstrap_servers

    def stored(self, consumer: Consumer, *given: Any, **more: Any) -> list[Stored]:
        """Answer as always."""
        self.asked += 1
        if self.asked == 1:
            Producer(client_options(Kafka(bootstrap_servers=self._servers)) | self._id).init_transactions(30)
        return stored(consumer, *given, **more)


def test_task_that_is_overtaken_while_it_asks_for_its_marker_tells_so_at_once(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is pending any more at any broker, and more questions would not change that."""
    thief = Thief(line)
    monkeypatch.setattr(informed_reader, "stored", thief.stored)
    with pytest.raises(errors.Contested, match="another attempt has taken the transactional id"):
        line.once(0)
    assert thief.asked < 3
    line.write(0)
    assert line.read() == written(line, 1)


def test_command_that_is_overtaken_while_it_asks_for_a_marker_says_that_it_may_be_repeated(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task has written the sink partition that the command was about to give up."""
    line.write(0)
    given_up: Any = (SinkPartition(0),), Marker.of(BatchId(1), GIVEN_UP, 1), {}
    with Ledger(line.pipeline, line.ledger, Kafka(bootstrap_servers=line.kafka.bootstrap_servers), 4, 1) as ledger:
        ledger.take()
        thief = Thief(line)
        with monkeypatch.context() as stolen:
            stolen.setattr(informed_reader, "stored", thief.stored)
            with pytest.raises(errors.PipelineRunning, match="was written while this command"):
                ledger.give_up(*given_up)
    assert thief.asked < 3


class Former:
    """A broker that loses the markers' group once it has answered; another executor writes before the next fence."""

    def __init__(self, line: Line, answers: int) -> None:
        self._line, self._inform, self._answers = line, SinkProducer.inform, answers
        self._client: Consumer | None = None

    def stored(
        self, consumer: Consumer, group: str, places: Sequence[TopicPartition], limit: float, *, beneath: bool = False
    ) -> list[Stored]:
        """Answer the first client so many times as if nothing had been written; then as another broker does."""
        if consumer is self._client and self._answers:
            self._answers -= 1
            return [Stored(each.topic, each.partition, -1, None) for each in places]
        return stored(consumer, group, places, limit, beneath=beneath)

    def inform(self, sink: SinkProducer) -> tuple[Informed, str]:
        """Ask as always; after the first question the other one writes."""
        informed, doubt = self._inform(sink)
        if self._client is None:
            self._client = informed.consumer
            with Older(self._line) as other:
                other.gateway.write(other.task(0, direct=True), iter([rows(other.values(0))]))
        return informed, doubt


@pytest.mark.takes(45)
@pytest.mark.parametrize("answers", [1, 1000], ids=["until it is asked again", "for ever"])
def test_marker_that_an_earlier_producer_was_told_is_not_used_once_its_broker_has_lost_the_group(
    line: Line, monkeypatch: pytest.MonkeyPatch, answers: int
) -> None:
    """What was written between that answer and the next fence would come out twice."""
    line.kafka.proxy.late = {broker.node_id: 0.45 for broker in line.kafka.brokers}
    monkeypatch.setattr(informed_reader, "_RECENT", 60.0)  # the other one's write takes some seconds
    former = Former(line, answers)
    monkeypatch.setattr(informed_reader, "stored", former.stored)
    monkeypatch.setattr(SinkProducer, "inform", lambda sink: former.inform(sink))
    assert line.write(0).skipped
    assert len(line.failures) == 1
    assert "may have lost the markers' group" in line.failures[0]
    line.kafka.proxy.heal()
    assert line.read() == written(line, 1)


def test_command_does_not_give_up_by_a_marker_of_a_broker_that_has_lost_the_group(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task wrote the sink partition after the question, and the client has found the right broker since."""
    line.write(0)
    asked = []

    def answered(
        consumer: Consumer, group: str, places: Sequence[TopicPartition], limit: float, *, beneath: bool = False
    ) -> list[Stored]:
        asked.append(places)
        if len(asked) == 2:
            return [Stored(line.ledger, 0, known[0].next, known[0].metadata)]
        found = stored(consumer, group, places, limit, beneath=beneath)
        if len(asked) == 1:
            assert found[0].pending
            with Older(line) as other:
                other.gateway.write(other.task(1, direct=True), iter([rows(other.values(1))]))
        return found

    monkeypatch.setattr(informed_reader, "_RECENT", 60.0)
    with Ledger(line.pipeline, line.ledger, Kafka(bootstrap_servers=line.kafka.bootstrap_servers), 4, 1) as ledger:
        ledger.take()
        known = {int(number): marker for number, marker in ledger.markers().items()}
        given_up: Any = (SinkPartition(0),), Marker.of(BatchId(2), GIVEN_UP, 1), known
        with monkeypatch.context() as stale:
            stale.setattr(informed_reader, "stored", answered)
            with pytest.raises(errors.PipelineRunning, match="was written while this command"):
                ledger.give_up(*given_up)
    assert len(asked) > 2
    assert line.marker() == Marker.of(BatchId(1), "digest of 1", 1)


def test_start_is_told_its_markers_by_a_broker_that_knows_of_its_transaction(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By older ones it would take a batch for untouched, and finish it by other code, or in another topic."""
    line.write(0)
    first: list[Consumer] = []

    def former(consumer: Consumer, group: str, places: Sequence[TopicPartition], *given: Any, **more: Any) -> Any:
        first[:] = first or [consumer]
        if consumer is first[0]:  # it knows neither the marker nor the transaction
            return [Stored(each.topic, each.partition, -1, "") for each in places]
        return stored(consumer, group, places, *given, **more)

    with Ledger(line.pipeline, line.ledger, Kafka(bootstrap_servers=line.kafka.bootstrap_servers), 4, 1) as ledger:
        ledger.take()
        ledger.fence(1)
        monkeypatch.setattr(informed_reader, "stored", former)
        assert ledger.markers(fenced=True) == {SinkPartition(0): line.marker()}


def test_reader_leaves_a_broker_that_is_no_longer_the_groups(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka would ask the same one until the limit."""
    line.write(0)
    reader = MarkerReader(line.task(0, direct=True))
    first: list[Consumer] = []

    def answered(consumer: Consumer, *given: Any, **more: Any) -> list[Stored]:
        first[:] = first or [consumer]
        if consumer is first[0]:
            raise KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))
        return stored(consumer, *given, **more)

    monkeypatch.setattr(informed_reader, "stored", answered)
    assert reader.markers([0], "the test", 10.0)[0].next == 1
    reader.close()


def test_replay_is_told_its_marks_by_a_broker_that_knows_of_its_transaction(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has lost the group does not know what the last replay sent, and all of it would be sent again."""
    stale: list[Consumer] = []

    def answered(consumer: Consumer, group: str, places: Sequence[TopicPartition], limit: float) -> list[Stored]:
        stale[:] = stale or [consumer]
        if consumer is stale[0]:
            return [Stored(each.topic, each.partition, -1, None) for each in places]
        return stored(consumer, group, places, limit)

    kafka, producer = Kafka(bootstrap_servers=line.kafka.bootstrap_servers), {"transactional.id": group(line.pipeline)}
    sender = Producer(client_options(kafka) | producer)
    sender.init_transactions(30)
    sender.begin_transaction()
    place, reader = TopicPartition(line.sink, 0, 7, "9-9"), InformedReader(client_options(kafka), group(line.pipeline))
    sender.send_offsets_to_transaction([place], reader.metadata, 30)
    sender.commit_transaction(30)
    reader.close()
    monkeypatch.setattr(informed_reader, "stored", answered)
    with Replay(kafka, line.pipeline, line.sink, 1) as sending:
        assert sending.marks() == {0: Marks(7, ((9, 9),))}


def rejected_once(line: Line, partition: int = 0) -> tuple[list[tuple[Message, Home]], Selection]:
    """Return a rejected record with where to send it, and the selection that holds it alone."""
    home = Home(line.sink, None)
    selection = Selection({Place(partition, 0): home}, {}, {partition: [0]}, frozenset({line.pipeline}))
    return [(Message(line.sink, partition, 0, 0, None, b"rejected"), home)], selection


@pytest.mark.parametrize(("partition", "others"), [(0, 0), (1, 1), (0, 1), (1, 0)])
def test_replay_sends_nothing_by_marks_of_a_broker_that_has_lost_the_group_since_its_question(
    line: Line, monkeypatch: pytest.MonkeyPatch, partition: int, others: int
) -> None:
    """It was suspended behind the question; another replay has sent records meanwhile, and its marks would be lost."""
    kafka, asked = Kafka(bootstrap_servers=line.kafka.bootstrap_servers), list[object]()
    records, chosen = rejected_once(line, partition)
    theirs = rejected_once(line, others)
    topic = Topics(line.kafka.bootstrap_servers)(partitions=2)

    def answered(
        consumer: Consumer, group: str, places: Sequence[TopicPartition], limit: float, *, beneath: bool = False
    ) -> list[Stored]:
        asked.append(places)
        if len(asked) == 2:
            return [Stored(topic, number, -1, None) for number in range(2)]
        found = stored(consumer, group, places, limit, beneath=beneath)
        if len(asked) == 1:
            assert found[0].pending
            with monkeypatch.context() as sane, Replay(kafka, line.pipeline, topic, 2) as other:
                sane.setattr(informed_reader, "stored", stored)
                other.send(*theirs, other.marks())
        return found

    monkeypatch.setattr(informed_reader, "_RECENT", 60.0)
    monkeypatch.setattr(informed_reader, "stored", answered)
    with Replay(kafka, line.pipeline, topic, 2) as sending:
        assert sending.marks() == {0: Marks(), 1: Marks()}
        with pytest.raises(errors.KafkaFailed, match="another replay has sent something meanwhile"):
            sending.send(records, chosen, {0: Marks(), 1: Marks()})
    assert line.read() == [b"rejected"]


def test_replay_commits_though_the_broker_that_told_its_marks_answers_no_more(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group has moved, as when brokers are restarted in turn; another client finds it."""
    kafka, asked = Kafka(bootstrap_servers=line.kafka.bootstrap_servers), list[Consumer]()
    records, chosen = rejected_once(line)

    def answered(consumer: Consumer, *given: Any, **more: Any) -> list[Stored]:
        asked.append(consumer)
        if len(asked) > 2 and consumer is asked[0]:
            raise KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))
        return stored(consumer, *given, **more)

    monkeypatch.setattr(informed_reader, "stored", answered)
    with Replay(kafka, line.pipeline, line.sink, 1) as sending:
        sending.send(records, chosen, sending.marks())
    assert line.read() == [b"rejected"]
    assert len(set(map(id, asked))) == 2
