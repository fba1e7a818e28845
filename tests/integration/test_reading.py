"""Exact reads of offset ranges from a real Kafka: which columns, in which order, and who reads."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.header_names import produce_named
from support.readers import Reading
from tailrace import errors
from tailrace.gateway import ReadDone, columns
from tailrace.gateway.reading import CAUGHT_UP
from tailrace.gateway.schemas import RECORDS
from tailrace.progress.plan import Range
from tailrace.testing import Record, Topics, consume, produce, wait_until

pytestmark = pytest.mark.integration


def test_records_arrive_with_every_column_of_sparks_source(reading: Reading, tailrace_topics: Topics) -> None:
    """Null and empty keys, values and headers differ; times and their types are as in Java."""
    topic = tailrace_topics(partitions=2)
    headers = (("a", b"1"), ("a", None), ("b", b""))
    sent = [
        Record(b"value", b"key", headers, 1, 1_700_000_000_123),
        Record(None, b"", (), 1, 1_700_000_000_124),
        Record(b"", None, (), 1, 1),
        Record(b"x", b"k", (("only", b"\x00\xff"),), 1, 5),
    ]
    produce(reading.bootstrap, topic, sent)
    found = list(reading.batches(Range(topic, 1, 0, 4)))
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
    reading: Reading, tailrace_topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another librdkafka, time and headers are requested for each record."""
    topic = tailrace_topics(message_timestamp_type="LogAppendTime")
    produce(reading.bootstrap, topic, [Record(b"a"), Record(b"b", headers=(("h", b"1"),)), Record(b"c")])
    known = reading.read(Range(topic, 0, 0, 3))
    monkeypatch.setattr(columns, "_PRIVATE_VERSIONS", frozenset())
    assert reading.read(Range(topic, 0, 0, 3)) == known
    assert {row["timestampType"] for row in known} == {1}


def test_headers_of_any_form_are_those_that_librdkafka_parses(
    reading: Reading, tailrace_topics: Topics, monkeypatch: pytest.MonkeyPatch
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
    produce(reading.bootstrap, topic, records)
    gathered = reading.read(Range(topic, 0, 0, 60), rows=20)
    assert [[(each["key"], each["value"]) for each in row["headers"] or ()] for row in gathered] == [
        list(each.headers) for each in records
    ]
    monkeypatch.setattr(columns, "parsed", lambda *_: None)
    assert reading.read(Range(topic, 0, 0, 60)) == gathered


@pytest.mark.parametrize("before", [0, 1])
def test_header_with_nul_in_its_name_is_read_whole_wherever_its_record_is(
    reading: Reading, tailrace_topics: Topics, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """The name was cut in the first and last record of a batch, and then in all of them."""
    topic, count = tailrace_topics(), 2 * before + 1
    sent = [("a", b"0")] * before
    produce(reading.bootstrap, topic, [Record(b"v", headers=(each,)) for each in sent])
    produce_named(reading.bootstrap, topic, b"v", ((b"a\0b", b"1"), (b"a\0", None), (b"", b"")))
    produce(reading.bootstrap, topic, [Record(b"v", headers=(each,)) for each in sent])
    rows = reading.read(Range(topic, 0, 0, count))
    assert [(each["key"], each["value"]) for each in rows[before]["headers"]] == [
        ("a\0b", b"1"),
        ("a\0", None),
        ("", b""),
    ]
    monkeypatch.setattr(columns, "parsed", lambda *_: None)
    assert reading.read(Range(topic, 0, 0, count)) == rows


def test_wrong_layout_is_noticed(reading: Reading, tailrace_topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data read at the wrong place differs from librdkafka's answer, which is used instead."""
    topic = tailrace_topics()
    reading.fill(topic, 5)
    known = reading.read(Range(topic, 0, 0, 5))
    monkeypatch.setattr(columns, "_PRIVATE", columns._PRIVATE - 1)
    assert reading.read(Range(topic, 0, 0, 5)) == known


def test_reader_yields_only_the_columns_asked_for(reading: Reading, tailrace_topics: Topics) -> None:
    """They come in the order of the request, in batches of at most its number of rows."""
    topic = tailrace_topics()
    reading.fill(topic, 10)
    found = list(reading.batches(Range(topic, 0, 0, 10), columns=("offset", "value"), rows=4))
    assert all(each.schema.names == ["offset", "value"] and each.num_rows <= 4 for each in found)
    assert [row["value"] for each in found for row in each.to_pylist()] == [b"%d" % number for number in range(10)]


def test_done_counts_records_and_bytes(reading: Reading, tailrace_topics: Topics) -> None:
    """It counts over all ranges of a request."""
    topic, done = tailrace_topics(partitions=2), ReadDone()
    produce(reading.bootstrap, topic, [Record(b"12345", b"k", partition=number) for number in (0, 1)])
    reading.read(Range(topic, 0, 0, 1), Range(topic, 1, 0, 1), done=done)
    assert done == ReadDone(2, 12, ())


def test_reader_resumes_without_seeking_where_the_last_range_ended(reading: Reading, tailrace_topics: Topics) -> None:
    """Prefetched records are used, and those that are skipped are dropped."""
    topic = tailrace_topics()
    reading.fill(topic, 100)
    found = reading.offsets(Range(topic, 0, 0, 10)) + reading.offsets(Range(topic, 0, 10, 50), Range(topic, 0, 50, 60))
    reading.fill(topic, 5)
    found += reading.offsets(Range(topic, 0, 60, 105))
    assert found == list(range(105))
    assert reading.starts == [(topic, 0, 0)]


def test_reader_seeks_to_a_range_read_again_and_to_one_ahead(reading: Reading, tailrace_topics: Topics) -> None:
    """Ranges may come in any order."""
    topic = tailrace_topics()
    reading.fill(topic, 100)
    for start, end in ((20, 30), (20, 30), (0, 5), (90, 100), (5, 6), (95, 95), (0, 100)):
        assert reading.offsets(Range(topic, 0, start, end)) == list(range(start, end))


def test_empty_range_yields_nothing_and_sends_no_request(reading: Reading, tailrace_topics: Topics) -> None:
    """It does not even check whether the topic exists."""
    assert reading.offsets(Range("nowhere", 0, 7, 7)) == []
    assert reading.starts == []


def test_read_that_is_abandoned_leaves_the_reader_usable(reading: Reading, tailrace_topics: Topics) -> None:
    """The next read gets every record, before and after the point where the first one stopped."""
    topic = tailrace_topics()
    reading.fill(topic, 100)
    batches = reading.batches(Range(topic, 0, 0, 100), rows=10)
    assert next(batches).num_rows == 10
    batches.close()  # type: ignore[attr-defined]
    assert reading.offsets(Range(topic, 0, 0, 100)) == list(range(100))


def test_later_read_takes_a_partition_over(reading: Reading, tailrace_topics: Topics) -> None:
    """A replaced attempt raises; it never yields records that the other one misses."""
    topic = tailrace_topics()
    reading.fill(topic, 100)
    older = reading.batches(Range(topic, 0, 0, 100), rows=10)
    next(older)
    assert reading.offsets(Range(topic, 0, 0, 100)) == list(range(100))
    with pytest.raises(errors.InputCutOff, match="another task"):
        next(older)


def test_values_of_any_size_arrive(reading: Reading, tailrace_topics: Topics) -> None:
    """Values of several megabytes, more than a fetch requests, stand between values of one byte."""
    topic = tailrace_topics(max_message_bytes=20_000_000)
    values = [b"a", bytes(8_000_000), b"", b"b" * 5_000_001, b"c", *(b"%d" % n for n in range(50))]
    produce(reading.bootstrap, topic, [Record(each) for each in values])
    assert [row["value"] for row in reading.read(Range(topic, 0, 0, len(values)))] == values


def test_batch_is_cut_by_the_size_of_its_headers(
    reading: Reading, tailrace_topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand records with 220 kB of headers each do not fit into one Arrow array."""
    monkeypatch.setattr("tailrace.gateway.prefetch._BATCH_BYTES", 100_000)
    monkeypatch.setattr(columns, "_SMALL_BYTES", 100_000)
    topic = tailrace_topics()
    sent = [Record(b"%d" % number, headers=(("h", bytes([number]) * 20_000),)) for number in range(50)]
    produce(reading.bootstrap, topic, sent)
    found = list(reading.batches(Range(topic, 0, 0, 50)))
    assert max(each.num_rows for each in found) < 5
    rows = [row for each in found for row in each.to_pylist()]
    assert [row["value"] for row in rows] == [each.value for each in sent]
    assert [[(one["key"], one["value"]) for one in row["headers"]] for row in rows] == [
        [*each.headers] for each in sent
    ]


def test_many_threads_read_partitions_of_one_reader(reading: Reading, tailrace_topics: Topics) -> None:
    """Each partition's records are complete and in order."""
    partitions, count = 12, 3_000
    topic = tailrace_topics(partitions=partitions)
    produce(reading.bootstrap, topic, [Record(b"%d" % n, partition=p) for n in range(count) for p in range(partitions)])
    gate = threading.Barrier(partitions)

    def work(partition: int) -> list[bytes]:
        gate.wait(30)
        spans = [Range(topic, partition, start, start + 500) for start in range(0, count, 500)]
        return [row["value"] for span in spans for row in reading.read(span, rows=170)]

    with ThreadPoolExecutor(partitions) as pool:
        for found in [pool.submit(work, partition) for partition in range(partitions)]:
            assert found.result(60) == [b"%d" % number for number in range(count)]
    assert len(reading.starts) == partitions


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_random_ranges_hold_what_a_plain_consumer_reads(
    make_reading: Callable[..., Reading], tailrace_topics: Topics, isolation: str
) -> None:
    """Ranges are read in random order, in parts, abandoned and read again."""
    reading, topic, chance = make_reading(isolation), tailrace_topics(), random.Random(7)
    for _ in range(12):
        how = chance.choice(["plain", "commit", "abort"])
        if how == "plain":
            reading.fill(topic, chance.randrange(1, 200))
        else:
            reading.transaction(topic, chance.randrange(1, 200), how)
    there = [(each.offset, each.value) for each in consume(reading.bootstrap, topic, isolation=isolation)]
    last, at = reading.end(topic), 0
    for _ in range(300):
        if chance.random() < 0.3:
            at = chance.randrange(last)
        end = min(last, at + chance.randrange(60))
        rows = chance.choice([1, 7, 10_000])
        if chance.random() < 0.2:
            next(reading.batches(Range(topic, 0, at, end), rows=rows), None)
        found = [(row["offset"], row["value"]) for row in reading.read(Range(topic, 0, at, end), rows=rows)]
        assert found == [each for each in there if at <= each[0] < end]
        at = end if end < last else 0


def test_unused_partition_is_no_longer_fetched(make_reading: Callable[..., Reading], tailrace_topics: Topics) -> None:
    """Its records are dropped, and the next read seeks."""
    time = [0.0]
    reading, topic = make_reading(now=lambda: time[0]), tailrace_topics(partitions=2)
    for partition in (0, 1):
        reading.fill(topic, 100, partition)
        assert len(reading.read(Range(topic, partition, 0, 10))) == 10
    rest = reading.batches(Range(topic, 1, 10, 100), rows=5)
    next(rest)
    time[0] = 9.9
    reading.reader.listen()
    assert reading.offsets(Range(topic, 0, 10, 20)) == list(range(10, 20))
    time[0] = 20.0
    reading.reader.listen()
    assert sum(each.num_rows for each in rest) == 85
    assert reading.starts == [(topic, 0, 0), (topic, 1, 0)]
    assert reading.offsets(Range(topic, 0, 20, 30)) == list(range(20, 30))
    assert reading.starts == [(topic, 0, 0), (topic, 1, 0), (topic, 0, 20)]


def test_partition_read_to_its_end_is_soon_no_longer_fetched(
    make_reading: Callable[..., Reading], tailrace_topics: Topics
) -> None:
    """Asking brokers for records that nobody waits for costs them; records that were fetched are kept for longer."""
    time = [0.0]
    reading, topic = make_reading(now=lambda: time[0]), tailrace_topics(partitions=2)
    for partition in (0, 1):
        reading.fill(topic, 10, partition)
        assert len(reading.read(Range(topic, partition, 0, 10))) == 10
    reading.fill(topic, 10, 1)
    waiting = reading.reader._consumer.queued
    wait_until(lambda: waiting(topic, 1) >= 10, "the prefetch of the second partition")
    time[0] = CAUGHT_UP
    reading.reader.listen()
    for partition in (0, 1):
        reading.fill(topic, 10, partition)
        assert len(reading.read(Range(topic, partition, 10, 20))) == 10
    assert reading.starts == [(topic, 0, 0), (topic, 1, 0), (topic, 0, 10)]


def test_closed_reader_ends_an_open_read(reading: Reading, tailrace_topics: Topics) -> None:
    """The read ends with an error; closing twice is harmless."""
    topic = tailrace_topics()
    reading.fill(topic, 100)
    assert len(reading.read(Range(topic, 0, 0, 5))) == 5
    assert reading.reader.queued > 0
    batches = reading.batches(Range(topic, 0, 5, 100), rows=10)
    next(batches)
    reading.reader.close()
    reading.reader.close()
    assert reading.reader.queued == 0
    with pytest.raises(errors.InvariantBroken, match="closed"):
        next(batches)


def test_timestamps_that_cannot_be_held_are_null(
    reading: Reading, tailrace_topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nanoseconds in the field, and none at all; microseconds there are a time beyond the year 50000."""
    topic = tailrace_topics(message_timestamp_after_max_ms=2**63 - 1)
    micro = 1_700_000_000_000_000
    sent = [Record(b"%d" % number, timestamp=number) for number in (1_700_000_000_123, micro, micro * 1000, -1)]
    produce(reading.bootstrap, topic, sent)
    expected = [1_700_000_000_123_000, micro * 1000, None, None]

    def times() -> list[int | None]:
        (batch,) = reading.batches(Range(topic, 0, 0, 4))
        return [None if each is None else int(each) for each in batch.column("timestamp").view("int64").to_pylist()]

    assert times() == expected
    monkeypatch.setattr(columns, "_PRIVATE_VERSIONS", frozenset())
    assert times() == expected


def test_few_records_of_many_partitions_come_in_one_batch(reading: Reading, tailrace_topics: Topics) -> None:
    """A batch of each costs the stages as much as several hundred records: such pipelines came to a crawl."""
    topic = tailrace_topics(partitions=40)
    produce(reading.bootstrap, topic, [Record(b"v", partition=number) for number in range(40) for _ in range(3)])
    [found] = reading.batches(*(Range(topic, number, 0, 2) for number in range(40)))
    assert list(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True)) == [
        (number, offset) for number in range(40) for offset in range(2)
    ]
