"""Running a pipeline inside a test, and recording everything it reports."""

from __future__ import annotations

import textwrap
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.sql import SparkSession

from tailrace import errors
from tailrace.config import Pipeline
from tailrace.startup.run import Stop, run
from tailrace.status.events import Emit, Event
from tailrace.testing import Record, Topics, consume, produce, wait_until

QUIET = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # runs are short, so start-up time counts
    "spark.master": "local[2,2]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}


@dataclass
class Bench:
    """One pipeline of one test: its topics, its folder, its events."""

    topics: Topics
    spark: SparkSession
    folder: Path
    name: str
    source: str
    sink: str
    partitions: int = 1
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def kafka(self) -> str:
        """Return the broker's address."""
        return self.topics.bootstrap_servers

    def write(self, file: str, text: str) -> None:
        """Write a file next to the pipeline."""
        (self.folder / file).write_text(textwrap.dedent(text))

    def pipeline(self, **sections: Any) -> Pipeline:
        """Return a raw pipeline from source to sink, with these sections merged in."""
        if "function" in sections.get("process", {}):
            sections["process"] = sections["process"] | {"function": self._alone(sections["process"]["function"])}
        base: dict[str, Any] = {
            "pipeline": self.name,
            "kafka": {"bootstrap.servers": self.kafka},
            # One sink partition per source partition, however small a batch is.
            "source": {"topics": [self.source], "partitions": self.partitions},
            "sink": {"topic": self.sink, "format": "raw"},
            "ledger": {"topic": f"{self.name}.ledger", "partitions": 8},
            "batch": {"target": 0},  # a test's batches are as large as it says
            "metrics": {"enabled": False},
            "spark": QUIET,
        }
        for name, value in sections.items():
            base[name] = {**base[name], **value} if isinstance(base.get(name), dict) else value
        return Pipeline.model_validate(base)

    def _alone(self, function: str) -> str:
        """Copy the function to a file with a unique name, because Spark's workers keep what they have imported."""
        file, _, name = function.partition(":")
        if not (self.folder / file).is_file():
            return function
        alone = f"{Path(file).stem}_{uuid.uuid4().hex[:8]}.py"
        (self.folder / alone).write_text((self.folder / file).read_text())
        return f"{alone}:{name}"

    def run(self, pipeline: Pipeline | None = None, **sections: Any) -> list[dict[str, Any]]:
        """Read what the source contains, then end; return the events of this run."""
        events: list[dict[str, Any]] = []
        try:
            run(
                pipeline or self.pipeline(**sections),
                self.folder,
                batch=True,
                emit=as_json(events.append),
                spark=self.spark,
            )
        finally:
            self.events += events
        return events

    def run_until(self, pipeline: Pipeline, enough: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """Stream until the events are enough, and return them."""
        events: list[dict[str, Any]] = []
        stop = Stop()

        def emit(event: Event) -> None:
            events.append(event.as_dict())
            if enough(events):
                stop("enough")

        limit = threading.Timer(120, lambda: stop("the time limit of the test"))
        limit.daemon = True
        limit.start()
        try:
            run(pipeline, self.folder, emit=emit, stop=stop, spark=self.spark)
        finally:
            limit.cancel()
            self.events += events
        if stop.reason != "enough":
            raise TimeoutError(f"the pipeline did not report enough; its last events are {events[-5:]}")
        return events

    def fail_in_part(self, **sections: Any) -> None:
        """Run until a part of the batch is delivered; the function fails while the file `broken` exists."""
        broken = self.folder / "broken"
        broken.touch()
        with pytest.raises(errors.FunctionFailed, match="the fault of the test"):
            self.run(**sections)
        self.settle()
        broken.unlink()

    def grow(self, partitions: int) -> None:
        """Let the source have so many partitions, and wait until a broker says so."""
        admin = AdminClient({"bootstrap.servers": self.kafka})
        admin.create_partitions([NewPartitions(self.source, partitions)])[self.source].result(30)

        def grown() -> bool:
            there: int = len(admin.list_topics(self.source, timeout=10).topics[self.source].partitions)
            return there == partitions

        wait_until(grown, "the source to have grown", 30)

    def settle(self) -> None:
        """Wait for the tasks of a failed batch: Spark lets them continue, and one may still commit."""
        store = self.spark._jsc.sc().statusStore()

        def idle() -> bool:
            executors = store.executorList(True)
            return all(executors.apply(number).activeTasks() == 0 for number in range(executors.size()))

        wait_until(idle, "the tasks of the failed batch to end", 60)

    def send(self, values: list[bytes | None], partition: int | None = None, key: bytes | None = None) -> None:
        """Write records to the source topic."""
        produce(self.kafka, self.source, [Record(value, key=key, partition=partition) for value in values])

    def commit(self, group: str, offsets: dict[int, int]) -> None:
        """Set a group's offsets of the source, as another job or tool does."""
        consumer = Consumer({"bootstrap.servers": self.kafka, "group.id": group, "enable.auto.commit": False})
        consumer.commit(
            offsets=[TopicPartition(self.source, number, at) for number, at in offsets.items()], asynchronous=False
        )
        consumer.close()

    def abort(self, value: bytes, partition: int) -> None:
        """Write a record to the source topic in a transaction that is aborted."""
        producer = Producer({"bootstrap.servers": self.kafka, "transactional.id": f"{self.name}.aborted"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(self.source, value, partition=partition)
        producer.flush(30)
        producer.abort_transaction(30)

    def values(self, topic: str | None = None) -> list[bytes | None]:
        """Return what a read_committed consumer finds in the sink topic, sorted."""
        found = [each.value for each in consume(self.kafka, topic or self.sink)]
        return sorted(found, key=lambda value: value or b"")

    def rejected(self) -> list[tuple[bytes | None, dict[str, bytes | None]]]:
        """Return the values and headers of the rejected records."""
        return [(each.value, dict(each.headers)) for each in consume(self.kafka, f"{self.name}.rejected")]


def as_json(take: Callable[[dict[str, Any]], object]) -> Emit:
    """Return what hands events on in their JSON form."""

    def emit(event: Event) -> None:
        take(event.as_dict())

    return emit


def events_of(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return the events of one kind."""
    return [each for each in events if each["event"] == kind]


def numbered(start: int, end: int) -> list[bytes | None]:
    """Return distinct values that sort by their numbers."""
    return [b"%06d" % number for number in range(start, end)]
