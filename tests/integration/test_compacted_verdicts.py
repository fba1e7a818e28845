"""The verdicts of a repeated read on a compacted source: what Kafka has removed meanwhile has none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailrace import errors
from tailrace.config import Delivery, Kafka
from tailrace.gateway import Assignment, Written
from tailrace.gateway.attempts import Attempts
from tailrace.gateway.schemas import ROW_SCHEMA
from tailrace.gateway.writing import Deliveries
from tailrace.kafka.clients import client_options
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.rejected_headers import HEADER_OFFSET, HEADER_PARTITION, HEADER_TOPIC
from tailrace.progress.ledger_topic import LEDGER_SETTINGS
from tailrace.progress.plan import BatchId, SinkPartition
from tailrace.testing import Record, Topics, consume, produce, wait_until
from tailrace.testing.embedded import EmbeddedKafka, EmbeddedOptions

pytestmark = pytest.mark.integration

COUNT, REMOVED, KEPT, FIRST = 400, 105, 300, 0


@dataclass
class Source:
    """A compacted topic, and a gateway that commits its rejected records."""

    bootstrap: str
    topic: str
    rejected: str

    def compact(self) -> None:
        """Replace the record REMOVED, and wait until Kafka has removed it."""
        produce(self.bootstrap, self.topic, [Record(b"newer", b"%d" % REMOVED)])

        def removed() -> bool:
            produce(self.bootstrap, self.topic, [Record(b"closes the segment", b"x")])
            return REMOVED not in {each.offset for each in consume(self.bootstrap, self.topic)}

        wait_until(removed, "the compaction of the source", 60, every=0.5)

    def reject(self, batch: int, *offsets: int, gateway: Deliveries | None = None, seconds: float = 0.0) -> Written:
        """Commit these rejected records as a reading task does, which takes some time, in a process of its own."""
        named = [
            {HEADER_TOPIC: self.topic.encode(), HEADER_PARTITION: b"0", HEADER_OFFSET: b"%d" % each} for each in offsets
        ]
        fields: dict[str, Any] = dict.fromkeys(ROW_SCHEMA.names)
        rows = [
            fields
            | {"value": b"v", "reason": "bad", "headers": [{"key": name, "value": text} for name, text in each.items()]}
            for each in named
        ]
        task = Assignment(
            pipeline=self.rejected,
            batch=BatchId(batch),
            partition=SinkPartition(1),
            sinks=2,
            digest=f"digest of {batch}",
            delivery=Delivery.EXACTLY_ONCE,
            ledger=f"{self.topic}.ledger",
            topic=None,
            rejected=self.rejected,
            run="run",
            verdicts=True,
            options=client_options(Kafka(bootstrap_servers=self.bootstrap)) | {"acks": "all"},
        )

        def given() -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pylist(rows, ROW_SCHEMA)
            time.sleep(seconds)

        one = gateway or Deliveries("one")
        try:
            return one.write(task, given())
        finally:
            for each in one.caches().values():
                each.close()


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    """Provide a Kafka that compacts soon."""
    with EmbeddedKafka(EmbeddedOptions(settings={"log.cleaner.backoff.ms": "100"})) as kafka:
        yield kafka


@pytest.fixture
def source(kafka: EmbeddedKafka) -> Source:
    """Return a compacted topic with records that all have a key of their own."""
    topics = Topics(kafka.bootstrap_servers)
    topic = topics(cleanup_policy="compact", segment_ms=100, min_cleanable_dirty_ratio=0.01)
    produce(kafka.bootstrap_servers, topic, [Record(b"old", b"%d" % each) for each in range(COUNT)])
    cluster = Cluster(Kafka(bootstrap_servers=kafka.bootstrap_servers))
    cluster.ensure(f"{topic}.ledger", 8, 1, LEDGER_SETTINGS)
    return Source(kafka.bootstrap_servers, topic, topics("rejected"))


@pytest.mark.takes(15)
def test_rejected_record_that_was_compacted_away_has_no_other_verdict(source: Source) -> None:
    """One that is left must have the same, whatever was removed next to it."""
    assert not source.reject(0, REMOVED, KEPT).skipped
    source.compact()
    assert source.reject(0, KEPT).skipped
    with pytest.raises(errors.VerdictChanged, match=f"{source.topic}-0 offset {KEPT} is now accepted"):
        source.reject(0)
    with pytest.raises(errors.VerdictChanged, match=f"{source.topic}-0 offset {FIRST} is now rejected"):
        source.reject(0, FIRST, KEPT)
    assert len(consume(source.bootstrap, source.rejected)) == 2


def test_rejected_record_that_is_left_has_no_other_verdict(source: Source) -> None:
    """It is asked for, and found."""
    source.reject(0, REMOVED, KEPT)
    with pytest.raises(errors.VerdictChanged, match=f"{source.topic}-0 offset {REMOVED} is now accepted"):
        source.reject(0, KEPT)


def test_two_tasks_that_read_a_range_at_the_same_time_do_not_fence_each_other(source: Source, tmp_path: Path) -> None:
    """A function may use the records twice. Each attempt would end the other's, until the job is given up."""
    gateways = [Deliveries(name, attempts=Attempts(tmp_path)) for name in ("one", "two")]
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(source.reject, 0, KEPT, gateway=gateways[0], seconds=2.0)
        second = threads.submit(source.reject, 0, KEPT, gateway=gateways[1], seconds=4.0)
        assert [first.result(60).skipped, second.result(60).skipped] == [False, True]
    assert len(consume(source.bootstrap, source.rejected)) == 1
