"""The fault campaign's observers: what its readers and its check of open transactions see on a real Kafka."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from faults.checker import check
from faults.reading import differences, read_heads, watching
from faults.records import BAD_EVERY, Fed, feed, key, values
from faults.transactions import beyond, ids, open_after, transactions
from support.reassign import reassign
from tailrace.testing import Topics

pytestmark = pytest.mark.integration


def producer(topics: Topics, name: str) -> Producer:
    """Return a transactional producer that is ready to begin."""
    made = Producer({"bootstrap.servers": topics.bootstrap_servers, "transactional.id": name})
    made.init_transactions(60)
    return made


def put(one: Producer, topic: str, start: int, end: int) -> None:
    """Write records of source partition 0 to the topic."""
    for number, value in enumerate(values(0, start, end, bad_every=0), start):
        one.produce(topic, value.tobytes(), key(number))


def test_open_transaction_is_seen_until_it_ends(tailrace_topics: Topics) -> None:
    """It is seen by its id and state in the coordinator's log; so are ids that a pipeline does not need."""
    topic, bootstrap = tailrace_topics("out"), tailrace_topics.bootstrap_servers
    pipeline = f"p-{topic}"
    one = producer(tailrace_topics, f"tailrace.{pipeline}.0")
    assert open_after(bootstrap, pipeline, 0) == []
    one.begin_transaction()
    put(one, topic, 0, 10)
    one.flush(30)
    assert open_after(bootstrap, pipeline, 0) == [f"tailrace.{pipeline}.0"]
    one.abort_transaction(30)
    assert open_after(bootstrap, pipeline, 10) == []
    [found] = transactions(bootstrap, f"tailrace.{pipeline}.").values()
    assert (found.state, found.open) == ("CompleteAbort", False)
    producer(tailrace_topics, f"tailrace.{pipeline}.odd")
    assert len(ids(bootstrap, pipeline)) == 2
    assert beyond(bootstrap, pipeline, 1) == [f"tailrace.{pipeline}.odd"]


def test_readers_see_committed_records_and_agree(tailrace_topics: Topics) -> None:
    """One reads continuously, one at the end; neither sees aborted records."""
    topic, bootstrap = tailrace_topics("out", 3), tailrace_topics.bootstrap_servers
    one = producer(tailrace_topics, f"t-{topic}")
    with watching(bootstrap, topic) as watch:
        for start, good in ((0, True), (500, False), (500, True)):
            one.begin_transaction()
            put(one, topic, start, start + 500)
            if good:
                one.commit_transaction(30)
            else:
                one.flush(30)
                one.abort_transaction(30)
        seen, last = watch.finish(), read_heads(bootstrap, topic)
    assert differences(seen, last) == 0
    assert check(Fed({0: 1000}, bad_every=0), last, {}).all().wrong == 0
    uncommitted = read_heads(bootstrap, topic, "read_uncommitted")
    assert check(Fed({0: 1000}, bad_every=0), uncommitted, {}).all().duplicated == 500


def test_fed_records_stand_at_the_offset_of_their_number(tailrace_topics: Topics) -> None:
    """So a plan's ranges are numbers of records; a later feed continues where the previous one ended."""
    topic, bootstrap = tailrace_topics("in", 2), tailrace_topics.bootstrap_servers
    fed = feed(bootstrap, topic, 1500, 2)
    fed = fed.more(feed(bootstrap, topic, 500, 2, start=1500))
    assert (fed.counts, fed.total) == ({0: 2000, 1: 2000}, 4000)
    found = read_heads(bootstrap, topic)
    for partition, heads in found.items():
        assert heads["number"].tolist() == list(range(2000))
        assert set(heads["partition"].tolist()) == {partition}
        assert heads["bad"].sum() == 2000 // BAD_EVERY


def test_replicas_are_moved_or_the_refusal_is_told(tailrace_topics: Topics) -> None:
    """A worlds' strike that moved nothing would prove nothing."""
    topic, bootstrap = tailrace_topics("out", partitions=3), tailrace_topics.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [broker] = admin.list_topics(topic, timeout=20).brokers
    reassign(bootstrap, {topic: {number: [broker] for number in range(3)}})
    with pytest.raises(RuntimeError, match=r"\[39, 39\]"):  # INVALID_REPLICA_ASSIGNMENT
        reassign(bootstrap, {topic: {0: [broker + 7], 2: [broker + 8]}})
