"""Ranges with offsets that hold no record: control records, aborted and compacted ones, and those that were deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from support.kafkaproxy import ProxiedKafka, proxied
from support.readers import Reading, Ticks, request_for
from support.recreation import delete_topic, recreate_topic
from tailrace import errors
from tailrace.config import Kafka
from tailrace.gateway import ReadDone
from tailrace.gateway.stalls import LOSS
from tailrace.kafka import reader
from tailrace.progress.plan import Range
from tailrace.testing import Record, Topics, consume, produce, wait_until
from tailrace.testing.embedded import EmbeddedKafka, EmbeddedOptions

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_range_ends_with_control_records(reading: Reading, tailrace_topics: Topics, end: str) -> None:
    """Aborted records and control records have offsets, but no record arrives for them."""
    topic = tailrace_topics()
    reading.fill(topic, 3)
    reading.transaction(topic, 4, end)
    last = reading.end(topic)
    visible = list(range(7 if end == "commit" else 3))
    assert last == 8
    assert reading.offsets(Range(topic, 0, 0, last)) == visible
    assert reading.offsets(Range(topic, 0, 3, last)) == visible[3:]
    assert reading.offsets(Range(topic, 0, 7, last)) == []
    reading.fill(topic, 2)
    assert reading.offsets(Range(topic, 0, last, last + 2)) == [8, 9]
    assert reading.offsets(Range(topic, 0, 0, last + 2)) == [*visible, 8, 9]


def test_aborted_records_are_visible_to_read_uncommitted(
    make_reading: Callable[..., Reading], tailrace_topics: Topics
) -> None:
    """The control record after them is not."""
    reading, topic = make_reading("read_uncommitted"), tailrace_topics()
    reading.transaction(topic, 4, "abort")
    assert reading.offsets(Range(topic, 0, 0, 5)) == [0, 1, 2, 3]


def test_open_transaction_after_the_range_does_not_block_it(reading: Reading, tailrace_topics: Topics) -> None:
    """The range ends where the transaction begins."""
    topic = tailrace_topics()
    reading.fill(topic, 3)
    reading.transaction(topic, 2, "abort")
    producer = reading.transaction(topic, 5, "leave it open")
    last = reading.end(topic)
    assert last == 6
    assert reading.offsets(Range(topic, 0, 0, last)) == [0, 1, 2]
    producer.commit_transaction(30)
    wait_until(lambda: reading.end(topic) == 12, "the end of the transaction")
    assert reading.offsets(Range(topic, 0, last, 12)) == [6, 7, 8, 9, 10]


@pytest.mark.takes(15)
@pytest.mark.parametrize("reset", [False, True])
def test_open_transaction_in_the_range_is_neither_lost_nor_a_shorter_log(
    make_reading: Callable[..., Reading], tailrace_topics: Topics, reset: bool
) -> None:
    """The read waits for its end, then gives up with an error that names it; later the range can be read."""
    reading, topic, done = make_reading(reset=reset, limit=5.0), tailrace_topics(), ReadDone()
    reading.fill(topic, 10)
    producer = reading.transaction(topic, 10, "leave it open")
    for start in (0, 15):
        with pytest.raises(errors.KafkaFailed, match=r"open transaction of .* begins at offset 10") as failed:
            reading.read(Range(topic, 0, start, 20), done=done)
        assert "reset" not in failed.value.then
    assert done.lost == ()
    producer.commit_transaction(30)
    assert reading.offsets(Range(topic, 0, 0, 20)) == list(range(20))


def test_range_whose_transaction_is_aborted_meanwhile_ends(reading: Reading, tailrace_topics: Topics) -> None:
    """A read that has begun sees the records before it, and no other; those of a full batch at once."""
    topic = tailrace_topics()
    reading.fill(topic, 10)
    producer = reading.transaction(topic, 10, "leave it open")
    batches = reading.batches(Range(topic, 0, 0, 20), columns=("offset",), rows=10)
    assert next(batches)["offset"].to_pylist() == list(range(10))
    producer.abort_transaction(30)
    assert list(batches) == []


ABORTED = 60  # records in batches of their own, each of which takes a fetch
LATE = 0.3  # seconds for which each answer is held
IMPATIENT = 12.0  # seconds without progress: too few for all these fetches, many for the first on a busy machine
SMALL = {"fetch.max.bytes": 1_000, "message.max.bytes": 1_000}


@pytest.fixture
def slow() -> Iterator[tuple[ProxiedKafka, str]]:
    """Provide a slow Kafka, and a topic that begins with a long aborted transaction and ends with a record."""
    with proxied() as kafka:
        topic = Topics(kafka.bootstrap_servers)()
        options = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic, "batch.num.messages": 1}
        producer = Producer(options)
        producer.init_transactions(30)
        producer.begin_transaction()
        for _ in range(ABORTED):
            producer.produce(topic, bytes(5_000), partition=0)
        producer.flush(30)
        producer.abort_transaction(30)
        produce(kafka.bootstrap_servers, topic, [Record(b"visible")])
        kafka.proxy.late = {broker.node_id: LATE for broker in kafka.brokers}
        yield kafka, topic


@pytest.mark.takes(30)
def test_long_run_of_aborted_records_is_read_however_long_it_takes(slow: tuple[ProxiedKafka, str]) -> None:
    """librdkafka hands over none of them, but what it fetches is progress."""
    kafka, topic = slow
    request = request_for(kafka.proxied_servers)
    reading = Reading(kafka.proxied_servers, replace(request, options=request.options | SMALL), limit=IMPATIENT)
    try:
        assert reading.offsets(Range(topic, 0, 0, ABORTED + 2)) == [ABORTED + 1]
    finally:
        reading.reader.close()


@pytest.mark.takes(50)
def test_tools_read_past_a_long_run_of_aborted_records(
    slow: tuple[ProxiedKafka, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their consumer is another one, with the same rule."""
    kafka, topic = slow
    options = reader._options
    monkeypatch.setattr(reader, "_options", lambda *given: options(*given) | SMALL)
    connection = Kafka(bootstrap_servers=kafka.proxied_servers)
    assert [each.offset for each in reader.read(connection, topic, limit=IMPATIENT)] == [ABORTED + 1]
    with reader.follow(connection, topic, newest=False, wait=0.5, limit=IMPATIENT) as found:
        assert [each.offset for each in found] == [ABORTED + 1]


def test_compaction_gaps_are_passed_over() -> None:
    """Gaps may be anywhere in a range, or fill it completely."""
    settings = {"log.cleaner.backoff.ms": "100"}
    with EmbeddedKafka(EmbeddedOptions(settings=settings)) as kafka:
        topics = Topics(kafka.bootstrap_servers)
        topic = topics(cleanup_policy="compact", segment_ms=100, min_cleanable_dirty_ratio=0.01)
        reading = Reading(kafka.bootstrap_servers, request_for(kafka.bootstrap_servers))
        kept = list(range(3, 1003, 100))
        records = [Record(b"%d" % n, b"kept %d" % n if n in kept else b"again") for n in range(1000)]
        produce(kafka.bootstrap_servers, topic, records)

        def compacted() -> list[int]:
            produce(kafka.bootstrap_servers, topic, [Record(b"x", b"again")])  # closes the previous segment
            found = [each.offset for each in consume(kafka.bootstrap_servers, topic)]
            # Wait for all of it: the cleaner must not remove more between this read and the tested one.
            return found if [each for each in found if each < 1000] == kept else []

        remaining = wait_until(compacted, "the compaction of the topic", 60, every=0.5)
        assert remaining[: len(kept)] == kept
        try:
            assert reading.offsets(Range(topic, 0, 0, 1000)) == kept
            assert reading.offsets(Range(topic, 0, 10, 60)) == []
            assert reading.offsets(Range(topic, 0, 60, 104)) == [103]
            assert reading.offsets(Range(topic, 0, 104, 150)) == []
        finally:
            reading.reader.close()


def test_lost_offsets_stop_the_read(reading: Reading, tailrace_topics: Topics) -> None:
    """The message has the planned offsets and those that the topic holds."""
    topic = tailrace_topics()
    reading.fill(topic, 10)
    reading.truncate(topic, 4)
    with pytest.raises(errors.OffsetsOutOfRange, match=rf"{topic}-0: the plan reads 2 to 10, .* holds 4 to 10"):
        reading.read(Range(topic, 0, 2, 10))
    assert reading.offsets(Range(topic, 0, 4, 10)) == [4, 5, 6, 7, 8, 9]


def test_lost_offsets_are_counted_if_the_pipeline_allows_it(
    make_reading: Callable[..., Reading], tailrace_topics: Topics
) -> None:
    """The read continues at the log start; a completely lost range yields nothing."""
    reading, topic, done = make_reading(reset=True), tailrace_topics(), ReadDone()
    reading.fill(topic, 10)
    reading.truncate(topic, 4)
    assert reading.offsets(Range(topic, 0, 2, 10), done=done) == [4, 5, 6, 7, 8, 9]
    assert reading.offsets(Range(topic, 0, 0, 3), done=done) == []
    assert done.lost == (Range(topic, 0, 2, 4), Range(topic, 0, 0, 3))
    assert done.records == 6


def test_records_deleted_during_a_read_are_counted(
    make_reading: Callable[..., Reading], tailrace_topics: Topics
) -> None:
    """Prefetched records are delivered; only the others are lost."""
    reading, topic, done = make_reading(reset=True), tailrace_topics(), ReadDone()
    values = [Record(bytes(100_000), partition=0) for _ in range(400)]
    produce(reading.bootstrap, topic, values)
    batches = reading.batches(Range(topic, 0, 0, 400), rows=5, columns=("offset",), done=done)
    found = next(batches)["offset"].to_pylist()
    reading.truncate(topic, 390)
    found += [offset for each in batches for offset in each["offset"].to_pylist()]
    assert [each for each in found if each >= 390] == list(range(390, 400))
    (lost,) = done.lost
    assert lost.end == 390
    assert found == [*range(lost.start), *range(390, 400)]


def test_range_beyond_the_end_of_the_topic_is_refused(reading: Reading, tailrace_topics: Topics) -> None:
    """A recreated or truncated topic never gets these offsets."""
    topic = tailrace_topics()
    reading.fill(topic, 10)
    with pytest.raises(errors.SourceChanged, match="plan reads 5 to 12, and the topic holds 0 to 10"):
        reading.read(Range(topic, 0, 5, 12))
    with pytest.raises(errors.SourceChanged, match="plan reads 20 to 22, and the topic holds 0 to 10"):
        reading.read(Range(topic, 0, 20, 22))
    assert reading.offsets(Range(topic, 0, 5, 10)) == [5, 6, 7, 8, 9]


@pytest.mark.takes(11)
def test_range_beyond_the_end_is_counted_if_the_pipeline_allows_it(
    make_reading: Callable[..., Reading], tailrace_topics: Topics
) -> None:
    """This is what the refusal advises; it also covers a topic that is deleted in mid-batch."""
    reading, topic, done = make_reading(reset=True, limit=8.0), tailrace_topics(), ReadDone()
    reading.fill(topic, 10)
    assert reading.offsets(Range(topic, 0, 5, 12), done=done) == [5, 6, 7, 8, 9]
    assert reading.offsets(Range(topic, 0, 20, 22), done=done) == []
    assert done.lost == (Range(topic, 0, 10, 12), Range(topic, 0, 20, 22))
    admin = AdminClient({"bootstrap.servers": reading.bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    assert reading.offsets(Range(topic, 0, 3, 10), done=done) == []
    assert done.lost[-1] == Range(topic, 0, 3, 10)


@pytest.mark.takes(8)
def test_topic_that_was_created_again_ends_the_read_of_all_its_ranges_at_once(
    make_reading: Callable[..., Reading], tailrace_topics: Topics
) -> None:
    """Offsets of the older topic are not waited for, partition by partition; by the reader's clock, here."""
    ticks = Ticks()
    reading, topic = make_reading(reset=True, limit=1000.0, now=ticks), tailrace_topics(partitions=3)
    planned = {topic: reading.topic_id(topic)}
    recreate_topic(reading.bootstrap, topic, partitions=3)
    began = ticks.now
    with pytest.raises(errors.PlanOfAnother, match="deleted and created again while a batch was read"):
        reading.read(*(Range(topic, number, 2, 7) for number in range(3)), topics=planned)
    assert ticks.now - began < LOSS


@pytest.mark.takes(8)
def test_records_that_were_fetched_before_a_topic_was_created_again_are_not_read_as_its_own(
    reading: Reading, tailrace_topics: Topics
) -> None:
    """The plan and the cluster name the new topic; what was fetched for an earlier plan is of the old one."""
    topic = tailrace_topics()
    reading.fill(topic, 200)
    assert len(reading.read(Range(topic, 0, 0, 50), topics={topic: reading.topic_id(topic)})) == 50
    recreate_topic(reading.bootstrap, topic)
    produce(reading.bootstrap, topic, [Record(b"new%d" % number) for number in range(200)])
    rows = reading.read(Range(topic, 0, 50, 80), topics={topic: reading.topic_id(topic)})
    assert [row["value"] for row in rows] == [b"new%d" % number for number in range(50, 80)]


@pytest.mark.takes(8)
def test_deleted_topic_is_waited_for_once(make_reading: Callable[..., Reading], tailrace_topics: Topics) -> None:
    """All its partitions are gone when one has been for long enough; by the reader's clock, here."""
    ticks, done = Ticks(), ReadDone()
    reading, topic = make_reading(reset=True, limit=1000.0, now=ticks), tailrace_topics(partitions=3)
    delete_topic(reading.bootstrap, topic)
    spans = tuple(Range(topic, number, 2, 7) for number in range(3))
    began = ticks.now
    assert reading.offsets(*spans, done=done) == []
    assert done.lost == spans
    assert LOSS <= ticks.now - began < 2 * LOSS


def test_deleted_topic_is_reported(reading: Reading, tailrace_topics: Topics) -> None:
    """A partition that never existed is reported too."""
    topic = tailrace_topics()
    reading.fill(topic, 10)
    assert reading.offsets(Range(topic, 0, 0, 5)) == [0, 1, 2, 3, 4]
    admin = AdminClient({"bootstrap.servers": reading.bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    with pytest.raises(errors.SourceChanged, match=f"{topic}-0: .* no longer exists"):
        reading.read(Range(topic, 0, 0, 10))
    other = tailrace_topics()
    with pytest.raises(errors.SourceChanged, match=f"{other}-3: .* no longer exists"):
        reading.read(Range(other, 3, 0, 10))
