"""Exact reads of offset ranges from a real Kafka: gaps, aborted transactions, lost offsets, brokers that go away."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tailrace import errors
from tailrace.config import Kafka
from tailrace.gateway import ReadDone, ReadRequest, columns
from tailrace.gateway.reading import CAUGHT_UP, Reader
from tailrace.gateway.schemas import RECORDS
from tailrace.gateway.stalls import LOSS
from tailrace.kafka.clients import client_options, persist
from tailrace.kafka.cluster import Cluster, NewTopic
from tailrace.kafka.rights import Operation, on_topic
from tailrace.kafka.topics import topic_ids
from tailrace.progress.plan import Range
from tailrace.testing import Record, Topics, consume, produce, wait_until
from tailrace.testing.embedded import EmbeddedKafka, EmbeddedOptions

pytestmark = pytest.mark.integration


class Ticks:
    """A clock that goes on with each look at it, so that what a reader waits for does not depend on the machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        self.now += 0.05
        return self.now


@dataclass
class Bench:
    """A reader, and what tests do to the topics that it reads."""

    bootstrap: str
    request: ReadRequest
    limit: float = 30.0
    now: Callable[[], float] | None = None
    starts: list[tuple[str, int, int]] = field(default_factory=list)  # each fetch that began with a seek

    def __post_init__(self) -> None:
        extra = {"clock": self.now} if self.now else {}
        self.reader = Reader(self.request, limit=self.limit, **extra)  # type: ignore[arg-type]
        start = self.reader._consumer.start

        def begun(topic: str, partition: int, offset: int) -> None:
            self.starts.append((topic, partition, offset))
            start(topic, partition, offset)

        self.reader._consumer.start = begun  # type: ignore[method-assign]

    def batches(self, *ranges: Range, done: ReadDone | None = None, **others: Any) -> Iterator[Any]:
        """Read like a task."""
        return self.reader.read(replace(self.request, ranges=ranges, **others), done or ReadDone())

    def read(self, *ranges: Range, **others: Any) -> list[dict[str, Any]]:
        """Return all records of the ranges."""
        return [row for each in self.batches(*ranges, **others) for row in each.to_pylist()]

    def offsets(self, *ranges: Range, **others: Any) -> list[int]:
        """Return the offsets of the records in the ranges."""
        return [row["offset"] for row in self.read(*ranges, **others)]

    def end(self, topic: str, partition: int = 0) -> int:
        """Return where a plan would end now."""
        cluster = Cluster(Kafka(bootstrap_servers=self.bootstrap))
        return cluster.latest([(topic, partition)], self.request.isolation == "read_committed")[topic, partition]

    def fill(self, topic: str, count: int, partition: int = 0) -> None:
        """Write records whose values are their numbers."""
        records = [Record(b"%d" % number, partition=partition) for number in range(count)]
        produce(self.bootstrap, topic, records)

    def truncate(self, topic: str, before: int, partition: int = 0) -> None:
        """Delete the records before this offset."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in admin.delete_records([TopicPartition(topic, partition, before)]).values():
            future.result(30)

    def transaction(self, topic: str, count: int, end: str) -> Producer:
        """Write records in a transaction, then commit it, abort it or leave it open."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": f"{topic}-{random.random()}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for number in range(count):
            producer.produce(topic, b"t%d" % number, partition=0)
        producer.flush(30)
        if end == "commit":
            producer.commit_transaction(30)
        elif end == "abort":
            producer.abort_transaction(30)
        if end in {"commit", "abort"}:  # the brokers answer before they have written the control records

            def ended() -> bool:
                cluster, place = Cluster(Kafka(bootstrap_servers=self.bootstrap)), (topic, 0)
                return cluster.latest([place], True) == cluster.latest([place])

            wait_until(ended, f"the end of the transaction in {topic}")
        return producer


def request_for(bootstrap: str, isolation: str = "read_committed", reset: bool = False) -> ReadRequest:
    """Return a request without ranges."""
    options = client_options(Kafka(bootstrap_servers=bootstrap))
    return ReadRequest("p", (), isolation, reset, options=options, share=4)


@pytest.fixture
def make(tailrace_topics: Topics) -> Iterator[Callable[..., Bench]]:
    """Return a factory of benches; close their readers after the test."""
    made: list[Bench] = []

    def bench(isolation: str = "read_committed", reset: bool = False, **others: Any) -> Bench:
        made.append(
            Bench(
                tailrace_topics.bootstrap_servers,
                request_for(tailrace_topics.bootstrap_servers, isolation, reset),
                **others,
            )
        )
        return made[-1]

    yield bench
    for each in made:
        each.reader.close()


@pytest.fixture
def bench(make: Callable[..., Bench]) -> Bench:
    """Return a bench that reads committed records, and stops if offsets are lost."""
    return make()


def test_records_arrive_with_every_column_of_sparks_source(bench: Bench, tailrace_topics: Topics) -> None:
    """Null and empty keys, values and headers differ; times and their types are as in Java."""
    topic = tailrace_topics(partitions=2)
    headers = (("a", b"1"), ("a", None), ("b", b""))
    sent = [
        Record(b"value", b"key", headers, 1, 1_700_000_000_123),
        Record(None, b"", (), 1, 1_700_000_000_124),
        Record(b"", None, (), 1, 1),
        Record(b"x", b"k", (("only", b"\x00\xff"),), 1, 5),
    ]
    produce(bench.bootstrap, topic, sent)
    found = list(bench.batches(Range(topic, 1, 0, 4)))
    assert [each.schema for each in found] == [RECORDS] * len(found)
    rows = [row for each in found for row in each.to_pylist()]
    assert [(row["value"], row["key"]) for row in rows] == [(each.value, each.key) for each in sent]
    assert [row["headers"] for row in rows] == [
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "b", "value": b""}],
        None,
        None,
        [{"key": "only", "value": b"\x00\xff"}],
    ]
    assert [round(row["timestamp"].timestamp() * 1000) for row in rows] == [each.timestamp for each in sent]
    assert {(row["topic"], row["partition"], row["timestampType"]) for row in rows} == {(topic, 1, 0)}
    assert [row["offset"] for row in rows] == [0, 1, 2, 3]


def test_details_are_the_same_with_an_unknown_layout(
    bench: Bench, tailrace_topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another librdkafka, time and headers are requested for each record."""
    topic = tailrace_topics(message_timestamp_type="LogAppendTime")
    produce(bench.bootstrap, topic, [Record(b"a"), Record(b"b", headers=(("h", b"1"),)), Record(b"c")])
    known = bench.read(Range(topic, 0, 0, 3))
    monkeypatch.setattr(columns, "_PRIVATE_VERSIONS", frozenset())
    assert bench.read(Range(topic, 0, 0, 3)) == known
    assert {row["timestampType"] for row in known} == {1}


def test_headers_of_any_form_are_those_that_librdkafka_parses(
    bench: Bench, tailrace_topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This covers long, missing, many, empty and null headers."""
    topic, chance = tailrace_topics(), random.Random(3)
    records = [
        Record(
            b"v",
            headers=tuple(
                (chance.choice(["", "k", "key " * 40, "ü" * 70]), chance.choice([None, b"", chance.randbytes(5_000)]))
                for _ in range(chance.choice([0, 0, 1, 2, 9, 130]))
            ),
        )
        for _ in range(60)
    ]
    produce(bench.bootstrap, topic, records)
    gathered = bench.read(Range(topic, 0, 0, 60), rows=20)
    assert [[(each["key"], each["value"]) for each in row["headers"] or ()] for row in gathered] == [
        list(each.headers) for each in records
    ]
    monkeypatch.setattr(columns, "parsed", lambda *_: None)
    assert bench.read(Range(topic, 0, 0, 60)) == gathered


def test_wrong_layout_is_noticed(bench: Bench, tailrace_topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data read at the wrong place differs from librdkafka's answer, which is used instead."""
    topic = tailrace_topics()
    bench.fill(topic, 5)
    known = bench.read(Range(topic, 0, 0, 5))
    monkeypatch.setattr(columns, "_PRIVATE", columns._PRIVATE - 1)
    assert bench.read(Range(topic, 0, 0, 5)) == known


def test_reader_yields_only_the_columns_asked_for(bench: Bench, tailrace_topics: Topics) -> None:
    """They come in the order of the request, in batches of at most its number of rows."""
    topic = tailrace_topics()
    bench.fill(topic, 10)
    found = list(bench.batches(Range(topic, 0, 0, 10), columns=("offset", "value"), rows=4))
    assert all(each.schema.names == ["offset", "value"] and each.num_rows <= 4 for each in found)
    assert [row["value"] for each in found for row in each.to_pylist()] == [b"%d" % number for number in range(10)]


def test_done_counts_records_and_bytes(bench: Bench, tailrace_topics: Topics) -> None:
    """It counts over all ranges of a request."""
    topic, done = tailrace_topics(partitions=2), ReadDone()
    produce(bench.bootstrap, topic, [Record(b"12345", b"k", partition=number) for number in (0, 1)])
    bench.read(Range(topic, 0, 0, 1), Range(topic, 1, 0, 1), done=done)
    assert done == ReadDone(2, 12, ())


def test_reader_resumes_without_seeking_where_the_last_range_ended(bench: Bench, tailrace_topics: Topics) -> None:
    """Prefetched records are used, and those that are skipped are dropped."""
    topic = tailrace_topics()
    bench.fill(topic, 100)
    found = bench.offsets(Range(topic, 0, 0, 10)) + bench.offsets(Range(topic, 0, 10, 50), Range(topic, 0, 50, 60))
    bench.fill(topic, 5)
    found += bench.offsets(Range(topic, 0, 60, 105))
    assert found == list(range(105))
    assert bench.starts == [(topic, 0, 0)]


def test_reader_seeks_to_a_range_read_again_and_to_one_ahead(bench: Bench, tailrace_topics: Topics) -> None:
    """Ranges may come in any order."""
    topic = tailrace_topics()
    bench.fill(topic, 100)
    for start, end in ((20, 30), (20, 30), (0, 5), (90, 100), (5, 6), (95, 95), (0, 100)):
        assert bench.offsets(Range(topic, 0, start, end)) == list(range(start, end))


def test_empty_range_yields_nothing_and_sends_no_request(bench: Bench, tailrace_topics: Topics) -> None:
    """It does not even check whether the topic exists."""
    assert bench.offsets(Range("nowhere", 0, 7, 7)) == []
    assert bench.starts == []


def test_read_that_is_abandoned_leaves_the_reader_usable(bench: Bench, tailrace_topics: Topics) -> None:
    """The next read gets every record, before and after the point where the first one stopped."""
    topic = tailrace_topics()
    bench.fill(topic, 100)
    batches = bench.batches(Range(topic, 0, 0, 100), rows=10)
    assert next(batches).num_rows == 10
    batches.close()  # type: ignore[attr-defined]
    assert bench.offsets(Range(topic, 0, 0, 100)) == list(range(100))


def test_later_read_takes_a_partition_over(bench: Bench, tailrace_topics: Topics) -> None:
    """A replaced attempt raises; it never yields records that the other one misses."""
    topic = tailrace_topics()
    bench.fill(topic, 100)
    older = bench.batches(Range(topic, 0, 0, 100), rows=10)
    next(older)
    assert bench.offsets(Range(topic, 0, 0, 100)) == list(range(100))
    with pytest.raises(errors.InputCutOff, match="another task"):
        next(older)


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_range_ends_with_control_records(bench: Bench, tailrace_topics: Topics, end: str) -> None:
    """Aborted records and control records have offsets, but no record arrives for them."""
    topic = tailrace_topics()
    bench.fill(topic, 3)
    bench.transaction(topic, 4, end)
    last = bench.end(topic)
    visible = list(range(7 if end == "commit" else 3))
    assert last == 8
    assert bench.offsets(Range(topic, 0, 0, last)) == visible
    assert bench.offsets(Range(topic, 0, 3, last)) == visible[3:]
    assert bench.offsets(Range(topic, 0, 7, last)) == []
    bench.fill(topic, 2)
    assert bench.offsets(Range(topic, 0, last, last + 2)) == [8, 9]
    assert bench.offsets(Range(topic, 0, 0, last + 2)) == [*visible, 8, 9]


def test_aborted_records_are_visible_to_read_uncommitted(make: Callable[..., Bench], tailrace_topics: Topics) -> None:
    """The control record after them is not."""
    bench, topic = make("read_uncommitted"), tailrace_topics()
    bench.transaction(topic, 4, "abort")
    assert bench.offsets(Range(topic, 0, 0, 5)) == [0, 1, 2, 3]


def test_open_transaction_after_the_range_does_not_block_it(bench: Bench, tailrace_topics: Topics) -> None:
    """The range ends where the transaction begins."""
    topic = tailrace_topics()
    bench.fill(topic, 3)
    bench.transaction(topic, 2, "abort")
    producer = bench.transaction(topic, 5, "leave it open")
    last = bench.end(topic)
    assert last == 6
    assert bench.offsets(Range(topic, 0, 0, last)) == [0, 1, 2]
    producer.commit_transaction(30)
    wait_until(lambda: bench.end(topic) == 12, "the end of the transaction")
    assert bench.offsets(Range(topic, 0, last, 12)) == [6, 7, 8, 9, 10]


def test_compaction_gaps_are_passed_over() -> None:
    """Gaps may be anywhere in a range, or fill it completely."""
    settings = {"log.cleaner.backoff.ms": "100"}
    with EmbeddedKafka(EmbeddedOptions(settings=settings)) as kafka:
        topics = Topics(kafka.bootstrap_servers)
        topic = topics(cleanup_policy="compact", segment_ms=100, min_cleanable_dirty_ratio=0.01)
        bench = Bench(kafka.bootstrap_servers, request_for(kafka.bootstrap_servers))
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
            assert bench.offsets(Range(topic, 0, 0, 1000)) == kept
            assert bench.offsets(Range(topic, 0, 10, 60)) == []
            assert bench.offsets(Range(topic, 0, 60, 104)) == [103]
            assert bench.offsets(Range(topic, 0, 104, 150)) == []
        finally:
            bench.reader.close()


def test_lost_offsets_stop_the_read(bench: Bench, tailrace_topics: Topics) -> None:
    """The message has the planned offsets and those that the topic holds."""
    topic = tailrace_topics()
    bench.fill(topic, 10)
    bench.truncate(topic, 4)
    with pytest.raises(errors.OffsetsOutOfRange, match=rf"{topic}-0: the plan reads 2 to 10, .* holds 4 to 10"):
        bench.read(Range(topic, 0, 2, 10))
    assert bench.offsets(Range(topic, 0, 4, 10)) == [4, 5, 6, 7, 8, 9]


def test_lost_offsets_are_counted_if_the_pipeline_allows_it(
    make: Callable[..., Bench], tailrace_topics: Topics
) -> None:
    """The read continues at the log start; a completely lost range yields nothing."""
    bench, topic, done = make(reset=True), tailrace_topics(), ReadDone()
    bench.fill(topic, 10)
    bench.truncate(topic, 4)
    assert bench.offsets(Range(topic, 0, 2, 10), done=done) == [4, 5, 6, 7, 8, 9]
    assert bench.offsets(Range(topic, 0, 0, 3), done=done) == []
    assert done.lost == (Range(topic, 0, 2, 4), Range(topic, 0, 0, 3))
    assert done.records == 6


def test_records_deleted_during_a_read_are_counted(make: Callable[..., Bench], tailrace_topics: Topics) -> None:
    """Prefetched records are delivered; only the others are lost."""
    bench, topic, done = make(reset=True), tailrace_topics(), ReadDone()
    values = [Record(bytes(100_000), partition=0) for _ in range(400)]
    produce(bench.bootstrap, topic, values)
    batches = bench.batches(Range(topic, 0, 0, 400), rows=5, columns=("offset",), done=done)
    found = next(batches)["offset"].to_pylist()
    bench.truncate(topic, 390)
    found += [offset for each in batches for offset in each["offset"].to_pylist()]
    assert [each for each in found if each >= 390] == list(range(390, 400))
    (lost,) = done.lost
    assert lost.end == 390
    assert found == [*range(lost.start), *range(390, 400)]


def test_range_beyond_the_end_of_the_topic_is_refused(bench: Bench, tailrace_topics: Topics) -> None:
    """A recreated or truncated topic never gets these offsets."""
    topic = tailrace_topics()
    bench.fill(topic, 10)
    with pytest.raises(errors.SourceChanged, match="plan reads 5 to 12, and the topic holds 0 to 10"):
        bench.read(Range(topic, 0, 5, 12))
    with pytest.raises(errors.SourceChanged, match="plan reads 20 to 22, and the topic holds 0 to 10"):
        bench.read(Range(topic, 0, 20, 22))
    assert bench.offsets(Range(topic, 0, 5, 10)) == [5, 6, 7, 8, 9]


@pytest.mark.takes(11)
def test_range_beyond_the_end_is_counted_if_the_pipeline_allows_it(
    make: Callable[..., Bench], tailrace_topics: Topics
) -> None:
    """This is what the refusal advises; it also covers a topic that is deleted in mid-batch."""
    bench, topic, done = make(reset=True, limit=8.0), tailrace_topics(), ReadDone()
    bench.fill(topic, 10)
    assert bench.offsets(Range(topic, 0, 5, 12), done=done) == [5, 6, 7, 8, 9]
    assert bench.offsets(Range(topic, 0, 20, 22), done=done) == []
    assert done.lost == (Range(topic, 0, 10, 12), Range(topic, 0, 20, 22))
    admin = AdminClient({"bootstrap.servers": bench.bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    assert bench.offsets(Range(topic, 0, 3, 10), done=done) == []
    assert done.lost[-1] == Range(topic, 0, 3, 10)


@pytest.mark.takes(8)
def test_topic_that_was_created_again_ends_the_read_of_all_its_ranges_at_once(
    make: Callable[..., Bench], tailrace_topics: Topics
) -> None:
    """Offsets of the older topic are not waited for, partition by partition; by the reader's clock, here."""
    ticks = Ticks()
    bench, topic = make(reset=True, limit=1000.0, now=ticks), tailrace_topics(partitions=3)
    cluster = Cluster(Kafka(bootstrap_servers=bench.bootstrap))
    planned = {topic: topic_ids(cluster.admin, [topic])[topic][0]}
    cluster.admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in cluster.topics(), "the topic to be gone")
    persist(lambda: cluster.admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30), "creating it again", 30)
    wait_until(lambda: topic in cluster.topics(), "the topic to exist again")
    began = ticks.now
    with pytest.raises(errors.PlanOfAnother, match="deleted and created again while a batch was read"):
        bench.read(*(Range(topic, number, 2, 7) for number in range(3)), topics=planned)
    assert ticks.now - began < LOSS


@pytest.mark.takes(8)
def test_deleted_topic_is_waited_for_once(make: Callable[..., Bench], tailrace_topics: Topics) -> None:
    """All its partitions are gone when one has been for long enough; by the reader's clock, here."""
    ticks, done = Ticks(), ReadDone()
    bench, topic = make(reset=True, limit=1000.0, now=ticks), tailrace_topics(partitions=3)
    cluster = Cluster(Kafka(bootstrap_servers=bench.bootstrap))
    cluster.admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in cluster.topics(), "the topic to be gone")
    spans = tuple(Range(topic, number, 2, 7) for number in range(3))
    began = ticks.now
    assert bench.offsets(*spans, done=done) == []
    assert done.lost == spans
    assert LOSS <= ticks.now - began < 2 * LOSS


def test_deleted_topic_is_reported(bench: Bench, tailrace_topics: Topics) -> None:
    """A partition that never existed is reported too."""
    topic = tailrace_topics()
    bench.fill(topic, 10)
    assert bench.offsets(Range(topic, 0, 0, 5)) == [0, 1, 2, 3, 4]
    admin = AdminClient({"bootstrap.servers": bench.bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    with pytest.raises(errors.SourceChanged, match=f"{topic}-0: .* no longer exists"):
        bench.read(Range(topic, 0, 0, 10))
    other = tailrace_topics()
    with pytest.raises(errors.SourceChanged, match=f"{other}-3: .* no longer exists"):
        bench.read(Range(other, 3, 0, 10))


def test_missing_right_is_named(tailrace_secured_kafka: EmbeddedKafka) -> None:
    """The right is Read on the topic; once it is granted, the same reader works."""
    security, name = tailrace_secured_kafka.security, f"r-{random.randrange(1 << 30)}"
    admin, door = security.administrator, security.user(name, "secret")
    topic = Topics(admin.bootstrap_servers, admin.options)()
    produce(admin.bootstrap_servers, topic, [Record(b"x")], options=admin.options)
    options = client_options(Kafka(bootstrap_servers=door.bootstrap_servers, options=dict(door.options)))
    bench = Bench(door.bootstrap_servers, replace(request_for(door.bootstrap_servers), options=options))
    try:
        with pytest.raises(errors.NotAuthorized, match=f"lacking: Read on topic {topic}"):
            bench.read(Range(topic, 0, 0, 1))
        security.allow(f"User:{name}", [on_topic(Operation.READ, topic)])
        assert bench.offsets(Range(topic, 0, 0, 1)) == [0]
    finally:
        bench.reader.close()


def test_wrong_password_is_reported(tailrace_secured_kafka: EmbeddedKafka) -> None:
    """The error has the client's own message, and comes before the deadline for unreachable brokers."""
    security, name = tailrace_secured_kafka.security, f"r-{random.randrange(1 << 30)}"
    door = security.user(name, "secret")
    options = {**door.options, "sasl.password": "wrong"}
    connection = client_options(Kafka(bootstrap_servers=door.bootstrap_servers, options=options))
    asked = replace(request_for(door.bootstrap_servers), options=connection)
    bench = Bench(door.bootstrap_servers, asked, limit=8.0)
    try:
        with pytest.raises(errors.NotAuthenticated):
            bench.read(Range("any", 0, 0, 1))
    finally:
        bench.reader.close()


@pytest.mark.takes(19)
def test_reader_waits_for_unreachable_brokers() -> None:
    """It raises after its deadline, and continues if brokers come back earlier."""
    with EmbeddedKafka() as kafka:
        topic = Topics(kafka.bootstrap_servers)()
        bench = Bench(kafka.bootstrap_servers, request_for(kafka.bootstrap_servers), limit=4.0)
        patient = Bench(kafka.bootstrap_servers, request_for(kafka.bootstrap_servers), limit=60.0)
        bench.fill(topic, 10)
        assert bench.offsets(Range(topic, 0, 0, 5)) == patient.offsets(Range(topic, 0, 0, 5)) == [0, 1, 2, 3, 4]
        kafka.brokers[0].kill()
        with pytest.raises(errors.BrokerUnreachable, match="no progress"):
            bench.read(Range(topic, 0, 0, 8))
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(patient.offsets, Range(topic, 0, 0, 8))
            kafka.brokers[0].start()
            assert reading.result(60) == list(range(8))
        wait_until(lambda: answers(bench, topic), "the impatient reader's connection", limit=60)
        assert bench.offsets(Range(topic, 0, 0, 10)) == list(range(10))
        bench.reader.close()
        patient.reader.close()


def answers(bench: Bench, topic: str) -> bool:
    """Return whether a read succeeds; a client may pause before it connects again for longer than the reader waits."""
    try:
        return bench.offsets(Range(topic, 0, 0, 5)) == list(range(5))
    except errors.BrokerUnreachable:
        return False


@pytest.mark.takes(24)
def test_reader_follows_a_partition_to_its_next_leader() -> None:
    """While brokers are killed one after another, every record arrives once and in order."""
    count, step = 6_000, 50
    with EmbeddedKafka(EmbeddedOptions(brokers=3)) as kafka:
        topic = Topics(kafka.bootstrap_servers)()
        bench = Bench(kafka.bootstrap_servers, request_for(kafka.bootstrap_servers), limit=90.0)
        produce(kafka.bootstrap_servers, topic, [Record(bytes(2_000)) for _ in range(count)])
        found: list[int] = []
        try:
            for broker in kafka.brokers:
                broker.kill()
                for start in range(len(found), len(found) + count // 3, step):
                    found += bench.offsets(Range(topic, 0, start, start + step))
                broker.start()
            assert found == list(range(count))
        finally:
            bench.reader.close()


def test_values_of_any_size_arrive(bench: Bench, tailrace_topics: Topics) -> None:
    """Values of several megabytes, more than a fetch requests, stand between values of one byte."""
    topic = tailrace_topics(max_message_bytes=20_000_000)
    values = [b"a", bytes(8_000_000), b"", b"b" * 5_000_001, b"c", *(b"%d" % n for n in range(50))]
    produce(bench.bootstrap, topic, [Record(each) for each in values])
    assert [row["value"] for row in bench.read(Range(topic, 0, 0, len(values)))] == values


def test_many_threads_read_partitions_of_one_reader(bench: Bench, tailrace_topics: Topics) -> None:
    """Each partition's records are complete and in order."""
    partitions, count = 12, 3_000
    topic = tailrace_topics(partitions=partitions)
    produce(bench.bootstrap, topic, [Record(b"%d" % n, partition=p) for n in range(count) for p in range(partitions)])
    gate = threading.Barrier(partitions)

    def work(partition: int) -> list[bytes]:
        gate.wait(30)
        spans = [Range(topic, partition, start, start + 500) for start in range(0, count, 500)]
        return [row["value"] for span in spans for row in bench.read(span, rows=170)]

    with ThreadPoolExecutor(partitions) as pool:
        for found in [pool.submit(work, partition) for partition in range(partitions)]:
            assert found.result(60) == [b"%d" % number for number in range(count)]
    assert len(bench.starts) == partitions


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_random_ranges_hold_what_a_plain_consumer_reads(
    make: Callable[..., Bench], tailrace_topics: Topics, isolation: str
) -> None:
    """Ranges are read in random order, in parts, abandoned and read again."""
    bench, topic, chance = make(isolation), tailrace_topics(), random.Random(7)
    for _ in range(12):
        how = chance.choice(["plain", "commit", "abort"])
        if how == "plain":
            bench.fill(topic, chance.randrange(1, 200))
        else:
            bench.transaction(topic, chance.randrange(1, 200), how)
    there = [(each.offset, each.value) for each in consume(bench.bootstrap, topic, isolation=isolation)]
    last, at = bench.end(topic), 0
    for _ in range(300):
        if chance.random() < 0.3:
            at = chance.randrange(last)
        end = min(last, at + chance.randrange(60))
        rows = chance.choice([1, 7, 10_000])
        if chance.random() < 0.2:
            next(bench.batches(Range(topic, 0, at, end), rows=rows), None)
        found = [(row["offset"], row["value"]) for row in bench.read(Range(topic, 0, at, end), rows=rows)]
        assert found == [each for each in there if at <= each[0] < end]
        at = end if end < last else 0


def test_unused_partition_is_no_longer_fetched(make: Callable[..., Bench], tailrace_topics: Topics) -> None:
    """Its records are dropped, and the next read seeks."""
    time = [0.0]
    bench, topic = make(now=lambda: time[0]), tailrace_topics(partitions=2)
    for partition in (0, 1):
        bench.fill(topic, 100, partition)
        assert len(bench.read(Range(topic, partition, 0, 10))) == 10
    reading = bench.batches(Range(topic, 1, 10, 100), rows=5)
    next(reading)
    time[0] = 9.9
    bench.reader.listen()
    assert bench.offsets(Range(topic, 0, 10, 20)) == list(range(10, 20))
    time[0] = 20.0
    bench.reader.listen()
    assert sum(each.num_rows for each in reading) == 85
    assert bench.starts == [(topic, 0, 0), (topic, 1, 0)]
    assert bench.offsets(Range(topic, 0, 20, 30)) == list(range(20, 30))
    assert bench.starts == [(topic, 0, 0), (topic, 1, 0), (topic, 0, 20)]


def test_partition_read_to_its_end_is_soon_no_longer_fetched(
    make: Callable[..., Bench], tailrace_topics: Topics
) -> None:
    """Asking brokers for records that nobody waits for costs them; records that were fetched are kept for longer."""
    time = [0.0]
    bench, topic = make(now=lambda: time[0]), tailrace_topics(partitions=2)
    for partition in (0, 1):
        bench.fill(topic, 10, partition)
        assert len(bench.read(Range(topic, partition, 0, 10))) == 10
    bench.fill(topic, 10, 1)
    waiting = bench.reader._consumer.queued
    wait_until(lambda: waiting(topic, 1) >= 10, "the prefetch of the second partition")
    time[0] = CAUGHT_UP
    bench.reader.listen()
    for partition in (0, 1):
        bench.fill(topic, 10, partition)
        assert len(bench.read(Range(topic, partition, 10, 20))) == 10
    assert bench.starts == [(topic, 0, 0), (topic, 1, 0), (topic, 0, 10)]


def test_closed_reader_ends_an_open_read(bench: Bench, tailrace_topics: Topics) -> None:
    """The read ends with an error; closing twice is harmless."""
    topic = tailrace_topics()
    bench.fill(topic, 100)
    assert len(bench.read(Range(topic, 0, 0, 5))) == 5
    assert bench.reader.queued > 0
    batches = bench.batches(Range(topic, 0, 5, 100), rows=10)
    next(batches)
    bench.reader.close()
    bench.reader.close()
    assert bench.reader.queued == 0
    with pytest.raises(errors.InvariantBroken, match="closed"):
        next(batches)


def test_option_that_librdkafka_refuses_is_named(bench: Bench) -> None:
    """Its value is left out if it is a secret."""
    for name, value, shown in (
        ("fetch.min.bytes", "many", "Invalid value"),
        ("no.such.password", "secret", "no.such.password"),
    ):
        with pytest.raises(errors.OptionRefused, match=shown) as refused:
            Reader(replace(bench.request, options={**bench.request.options, name: value}))
        assert "secret" not in str(refused.value)
