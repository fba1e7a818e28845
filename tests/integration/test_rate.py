"""The limit of a batch on a real Kafka: it takes effect from one batch to the next, and loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from support.pipelines import Bench, events_of, numbered
from tailrace.config import Kafka
from tailrace.driver.rate import BLIND, FIRST
from tailrace.driver.record_size import weight
from tailrace.spark_stream import rate_control
from tailrace.testing import Record as Sent
from tailrace.testing import Topics, produce

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]

BACKLOG = 300_000


def written(events: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Return the records and the limit of each batch."""
    return [(each["in"], each["limit"]) for each in events_of(events, "written")]


def all_read(count: int) -> Callable[[list[dict[str, Any]]], bool]:
    """Return a check that this number of records is delivered."""
    return lambda events: sum(each["in"] for each in events_of(events, "written")) >= count


@pytest.mark.parametrize("available_now", [False, True], ids=["stream", "batch"])
def test_backlog_is_read_in_growing_batches(bench: MakeBench, available_now: bool) -> None:
    """The first batch is small, none exceeds its limit, the limit changes during the query, and all comes once."""
    one = bench(partitions=4)
    for number in range(4):
        part = BACKLOG // 4
        one.send(numbered(number * part, (number + 1) * part), partition=number)
    pipeline = one.pipeline(batch={"target": "30s"})
    events = one.run(pipeline) if available_now else one.run_until(pipeline, all_read(BACKLOG))
    batches = written(events)
    assert batches[0] == (FIRST, FIRST)
    assert all(records <= limit <= 200_000 for records, limit in batches)
    assert max(records for records, _ in batches) > 10 * FIRST
    assert events_of(events, "warning") == []
    assert one.values() == numbered(0, BACKLOG)


SLOW = """
import time


def slow(frame):
    def each(batches):
        for batch in batches:
            time.sleep(0.006 * batch.num_rows)
            yield batch

    return frame.select("value").mapInArrow(each, "value binary")
"""


@pytest.mark.takes(21)
def test_slow_function_lowers_the_limit_to_fit_the_target(bench: MakeBench) -> None:
    """At 6 ms per record, 3 s fit at most 500: the limit falls from 1,000 to about that, and stays."""
    one = bench()
    one.write("slow.py", SLOW)
    one.send(numbered(0, 3600))
    batches = written(one.run(process={"function": "slow.py:slow"}, batch={"target": "3s"}))
    assert batches[:2] == [(FIRST, FIRST)] * 2
    assert all(50 <= limit <= 600 for _, limit in batches[3:])
    assert len(batches) >= 5
    assert one.values() == numbered(0, 3600)


def test_max_bytes_bounds_batches_of_large_records(bench: MakeBench) -> None:
    """With 200 records of 1 MB, no batch is larger than max_bytes, not even the first."""
    one = bench(partitions=2)
    for number in range(2):
        values: list[bytes | None] = [b"%02d%04d" % (number, each) + bytes(900_000) for each in range(100)]
        one.send(values, partition=number)
    events = one.run(batch={"target": "60s", "max_bytes": "20MB"})
    batches = written(events)
    assert all(records <= limit for records, limit in batches)
    assert max(records for records, _ in batches) * 900_006 <= 20_000_000
    assert max(records for records, _ in batches) >= 20
    found = [(value or b"")[:6] for value in one.values()]
    assert found == [b"%02d%04d" % (number, each) for number in range(2) for each in range(100)]


def test_growing_records_lower_the_limit(bench: MakeBench) -> None:
    """The bytes of each batch are counted, for decoded and raw formats; the next batch adapts to them."""
    one = bench()
    small: bytes | None = b'{"text": "a"}'
    large: bytes | None = b'{"text": "' + b"a" * 100_000 + b'"}'
    one.send([small] * 200 + [large] * 150)
    events = one.run(
        source={"format": "json", "schema": "text STRING"},
        sink={"format": "json"},
        batch={"target": 60, "max_records": 100, "max_bytes": 1_000_000},
    )
    batches = written(events)
    assert batches[:5] == [(100, 100), (100, 100), (100, 100), (9, 9), (9, 9)]
    assert sum(records for records, _ in batches) == 350


def test_split_read_obeys_the_limit(bench: MakeBench) -> None:
    """source.partitions splits what the limit allows, and reads no more."""
    one = bench()
    one.send(numbered(0, 5000))
    events = one.run(source={"partitions": 4}, batch={"max_records": 1200})
    assert all(records <= limit <= 1200 for records, limit in written(events))
    assert {each["sinks"] for each in events_of(events, "written")} == {4}
    assert one.values() == numbered(0, 5000)


def test_each_batch_takes_max_records_without_a_target(bench: MakeBench) -> None:
    """With target 0, the limit is fixed."""
    one = bench()
    one.send(numbered(0, 5000))
    assert written(one.run(batch={"target": 0, "max_records": 2000})) == [(2000, 2000), (2000, 2000), (1000, 2000)]


def test_stateful_pipeline_on_another_spark_warns_once_and_continues(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Spark keeps the limit elsewhere, each batch takes max_records, and one warning reports it."""
    monkeypatch.setattr(rate_control, "_NEEDED", {"uniqueSources", "renamed"})
    one = bench()
    one.send(numbered(0, 5000))
    events = one.run(batch={"max_records": 2000}, checkpoint=str(one.folder / "state"))
    assert written(events) == [(2000, 2000), (2000, 2000), (1000, 2000)]
    (warning,) = events_of(events, "warning")
    assert "has no renamed" in warning["what"]
    assert "at most 2,000 records" in warning["what"]
    assert one.values() == numbered(0, 5000)


def test_stateful_pipeline_continues_if_spark_later_refuses_a_limit(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches keep their previous limit, with one warning."""

    def refuse(spark: SparkSession, query: object, limit: int) -> None:
        raise TypeError("the map has another type")

    monkeypatch.setattr(rate_control, "_tell", refuse)
    one = bench()
    one.send(numbered(0, 5000))
    events = one.run(batch={"target": 60}, checkpoint=str(one.folder / "state"))
    assert [limit for _, limit in written(events)] == [FIRST] * 5
    (warning,) = events_of(events, "warning")
    assert "TypeError: the map has another type" in warning["what"]
    assert one.values() == numbered(0, 5000)


def test_restart_begins_slowly_again(bench: MakeBench) -> None:
    """A run forgets what the previous one learned, because its executors are cold."""
    one = bench()
    one.send(numbered(0, 8000))
    assert written(one.run(batch={"target": 60}))[-1][1] > FIRST
    one.send(numbered(8000, 16000))
    assert written(one.run(batch={"target": 60}))[0] == (FIRST, FIRST)
    assert one.values() == numbered(0, 16000)


def test_size_of_records_is_sampled_from_the_topic(tailrace_topics: Topics) -> None:
    """It samples keys and values of the next records; there is no result at the topic's end."""
    kafka, topic = Kafka(bootstrap_servers=tailrace_topics.bootstrap_servers), tailrace_topics("in", 2)
    produce(kafka.bootstrap_servers, topic, [Sent(bytes(90), key=bytes(10), partition=0)] * 20)
    produce(kafka.bootstrap_servers, topic, [Sent(None, partition=1)] * 20)
    assert weight(kafka, {(topic, 0): 0, (topic, 1): 0}) == 50
    assert weight(kafka, {(topic, 0): 10}) == 100
    assert weight(kafka, {(topic, 0): 20, (topic, 1): 20}) is None
    assert weight(kafka, {(topic, 0): 7_000}) is None
    assert weight(kafka, {}) is None


def test_size_of_records_stays_unknown_if_no_broker_answers_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch does not wait for it."""
    monkeypatch.setattr("tailrace.driver.record_size._PROBE_LIMIT", 0.2)
    assert weight(Kafka(bootstrap_servers="127.0.0.1:1"), {("in", 0): 0}) is None


def test_topic_that_is_empty_at_the_start_begins_with_few_records(bench: MakeBench) -> None:
    """The size of the records is still unknown."""
    one = bench()

    def enough(events: list[dict[str, Any]]) -> bool:
        # Whether Spark's empty first batch comes before or after depends on its start.
        if events[-1]["event"] == "idle" and len(events_of(events, "idle")) == 1:
            one.send(numbered(0, 2000))
        return all_read(2000)(events)

    pipeline = one.pipeline(batch={"target": 60})
    one.run_until(pipeline, enough)
    assert next(each for each in written(one.events) if each[0]) == (BLIND, BLIND)
    assert one.values() == numbered(0, 2000)
