"""A pipeline's lag: exactly 0 if a reader would get nothing more, and the age of the oldest unread record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from tailrace.config import Pipeline
from tailrace.kafka.clients import TopicPartitions
from tailrace.status.lag import Lags
from tailrace.status.snapshots import LagSeen
from tailrace.testing import Record, Topics, produce, wait_until

pytestmark = pytest.mark.integration

HOUR = 3600


def transaction(kafka: str, topic: str, values: int, commit: bool) -> None:
    """Write records in one transaction, whose end leaves a marker in the topic."""
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": f"{topic}.{commit}"})
    producer.init_transactions(60)
    producer.begin_transaction()
    for _ in range(values):
        producer.produce(topic, b"x")
    producer.flush(30)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


@contextmanager
def looked_at(
    topics: Topics, topic: str, position: Callable[[], TopicPartitions]
) -> Iterator[Callable[[Callable[[LagSeen], bool], str], LagSeen]]:
    """Measure the lag from these positions; yield a function that waits for an expected one."""
    pipeline = Pipeline.model_validate(
        {
            "pipeline": "lag",
            "kafka": {"bootstrap.servers": topics.bootstrap_servers},
            "source": {"topics": [topic]},
            "sink": {"topic": "out", "format": "raw"},
        }
    )
    seen: list[LagSeen] = []
    kept: list[float] = []
    lags = Lags(pipeline, seen.append, kept.append)
    lags.start(position)

    def wait(enough: Callable[[LagSeen], bool], what: str) -> LagSeen:
        return wait_until(lambda: seen[-1] if seen and enough(seen[-1]) else None, what, 60) or seen[-1]

    try:
        yield wait
        assert kept == [7 * 24 * HOUR]  # Kafka's own default
    finally:
        lags.stop()


def test_markers_and_aborted_records_are_no_lag(tailrace_topics: Topics) -> None:
    """Offsets after the last readable record do not count."""
    topic = tailrace_topics("in")
    place = (topic, 0)
    transaction(tailrace_topics.bootstrap_servers, topic, 3, commit=True)
    transaction(tailrace_topics.bootstrap_servers, topic, 2, commit=False)
    position = {place: 0}
    with looked_at(tailrace_topics, topic, lambda: position) as wait:
        full = wait(lambda seen: seen.records > 0 and seen.oldest is not None, "the lag")
        assert (full.records, full.ends[place]) == (7, 7)  # three records, two aborted, two markers
        position = {place: 3}
        drained = wait(lambda seen: seen.positions == position and seen.records == 0, "a lag of 0")
        assert drained.seconds == 0
        transaction(tailrace_topics.bootstrap_servers, topic, 1, commit=True)
        wait(lambda seen: seen.records > 0, "the lag of the new record")


def test_hanging_transaction_shows_although_the_lag_is_zero(tailrace_topics: Topics) -> None:
    """Nothing after it can be read, not even another producer's committed records, until it ends."""
    topic = tailrace_topics("in")
    place = (topic, 0)
    transaction(tailrace_topics.bootstrap_servers, topic, 3, commit=True)
    hanging = Producer({"bootstrap.servers": tailrace_topics.bootstrap_servers, "transactional.id": f"{topic}.hangs"})
    hanging.init_transactions(60)
    hanging.begin_transaction()
    hanging.produce(topic, b"x")
    hanging.flush(30)
    transaction(tailrace_topics.bootstrap_servers, topic, 2, commit=True)
    with looked_at(tailrace_topics, topic, lambda: {place: 4}) as wait:
        seen = wait(lambda seen: seen.unstable_seconds > 0, "the hanging transaction")
        assert (seen.records, seen.ends[place], seen.beyond(place), seen.unstable) == (0, 4, 4, 4)
        hanging.abort_transaction(30)
        freed = wait(lambda seen: seen.unstable == 0, "its end")
        assert (freed.ends[place], freed.unstable_seconds) == (9, 0)


def test_age_is_known_while_the_pipeline_moves_on(tailrace_topics: Topics) -> None:
    """It was 0 between two questions, so one that falls behind by an hour had caught up two seconds of three."""
    topic = tailrace_topics("in")
    old = (int(time.time()) - HOUR) * 1000
    produce(tailrace_topics.bootstrap_servers, topic, [Record(b"%d" % each, timestamp=old) for each in range(500)])
    offsets, seen = iter(range(500)), list[LagSeen]()

    def aged(each: LagSeen) -> bool:
        if (seen or each.oldest is not None) and each not in seen:
            seen.append(each)
        return len(seen) == 6

    with looked_at(tailrace_topics, topic, lambda: {(topic, 0): next(offsets)}) as wait:
        wait(aged, "six looks after the first age")
    assert all(each.records > 0 for each in seen)
    assert [each for each in seen if each.seconds < HOUR] == []


def test_age_is_that_of_the_oldest_record(tailrace_topics: Topics) -> None:
    """All source partitions count, whatever their lag."""
    topic = tailrace_topics("in", 2)
    now = int(time.time())
    old = Record(b"old", partition=1, timestamp=(now - 2 * HOUR) * 1000)
    new = [Record(b"new", partition=0, timestamp=now * 1000) for _ in range(20)]
    produce(tailrace_topics.bootstrap_servers, topic, [*new, old])
    position = {(topic, 0): 0, (topic, 1): 0}
    with looked_at(tailrace_topics, topic, lambda: position) as wait:
        seen = wait(lambda seen: seen.oldest == now - 2 * HOUR, "the age")
        assert seen.records == 21
        assert 2 * HOUR <= seen.seconds < 3 * HOUR
        position = {(topic, 0): 0, (topic, 1): 1}
        seen = wait(lambda seen: seen.oldest == now, "the age of the others")
        assert seen.records == 20
