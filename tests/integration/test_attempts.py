"""Task attempts that last: their rejected rows are in the transaction, or there is no transaction."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from tailrace import errors
from tailrace.config import Delivery, Kafka
from tailrace.gateway import Assignment, ReadRequest, Written, client
from tailrace.gateway import attempts as module
from tailrace.gateway import message_protocol as wire
from tailrace.gateway.client import Client, Handing
from tailrace.gateway.message_protocol import Judging
from tailrace.gateway.schemas import ROW_SCHEMA
from tailrace.gateway.server import Host
from tailrace.kafka.clients import client_options
from tailrace.kafka.cluster import Cluster
from tailrace.progress.ledger_topic import LEDGER_SETTINGS
from tailrace.progress.plan import BatchId, Range, SinkPartition
from tailrace.testing import Record, Topics, consume, produce, wait_until

pytestmark = pytest.mark.integration


def rows(*records: dict[str, Any]) -> Any:
    """Return rows as the sink sends them; fields that a record does not name are null."""
    return pa.RecordBatch.from_pylist([dict.fromkeys(ROW_SCHEMA.names) | each for each in records], ROW_SCHEMA)


BAD = rows({"value": b"bad", "reason": "wrong"})
GOOD = rows(*({"value": b"%06d" % number} for number in range(50_000)))  # more than the buffers hold


@dataclass
class Attempt:
    """One task attempt, done by this process for both the worker and the gateway."""

    host: Host
    topics: Topics
    source: str
    sink: str
    rejected: str
    pipeline: str
    name: str = field(default_factory=lambda: f"{uuid.uuid4().hex[:8]}/0/7")

    @property
    def options(self) -> dict[str, Any]:
        """Return the connection's options."""
        return client_options(Kafka(bootstrap_servers=self.topics.bootstrap_servers))

    def reject(self, *batches: Any, whole: bool) -> None:
        """Hand rejected rows over, as the gate does (`whole`), or as the reading task does with faulty records."""
        handing = Handing(Judging(self.name, 0, 0, whole))
        for each in batches:
            handing.add(each)
        handing.end()
        handing.close()

    @property
    def request(self) -> ReadRequest:
        """Return the request for the source's only record."""
        part = (Range(self.source, 0, 0, 1),)
        return ReadRequest(self.pipeline, part, "read_committed", reset=False, options=self.options)

    def read(self) -> None:
        """Read the source's only record to its end."""
        assert sum(each.num_rows for each in client.read(self.name, self.request, 0, 0)) == 1, self.source

    def write(self, batches: Iterator[Any]) -> Written:
        """Write the rows, with the attempt's rejected ones."""
        task = Assignment(
            pipeline=self.pipeline,
            batch=BatchId(0),
            partition=SinkPartition(0),
            sinks=1,
            digest="digest",
            delivery=Delivery.EXACTLY_ONCE,
            ledger=f"{self.pipeline}.ledger",
            topic=self.sink,
            rejected=self.rejected,
            run="run",
            attempt=self.name,
            judges=True,
            options=self.options,
        )
        return Client().write(task, batches)

    def values(self, topic: str) -> list[bytes | None]:
        """Return what a read_committed reader finds."""
        return [each.value for each in consume(self.topics.bootstrap_servers, topic)]


@pytest.fixture
def attempt(tailrace_topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attempt]:
    """Serve a gateway in this process, whose clock a test can let run out."""
    name = f"a-{uuid.uuid4().hex[:8]}"
    folder = wire.own(wire.folder_of(psutil.Process()).with_name(name))
    monkeypatch.setenv(wire.ENV, str(folder))
    Cluster(Kafka(bootstrap_servers=tailrace_topics.bootstrap_servers)).ensure(f"{name}.ledger", 4, 1, LEDGER_SETTINGS)
    source = tailrace_topics("in")
    produce(tailrace_topics.bootstrap_servers, source, [Record(b"one")])
    host = Host(folder)
    serving = threading.Thread(target=host.serve, args=[psutil.Process()])
    serving.start()
    wait_until(lambda: (folder / wire.SOCKET).exists(), "the gateway's socket")
    yield Attempt(host, tailrace_topics, source, tailrace_topics("out"), tailrace_topics("rejected"), name)
    host.stop()
    serving.join(30)
    for each in folder.iterdir():
        each.unlink()
    folder.rmdir()


@pytest.fixture
def lapse(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that lets the time run out for every attempt that it may run out for."""

    def call() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(module, "FORGET_AFTER", -1.0)
            attempt.host.attempts.sweep()

    return call


def test_rejected_rows_of_an_attempt_that_is_being_written_outlast_any_time(attempt: Attempt, lapse: Any) -> None:
    """They were handed over early, and are in the transaction."""
    attempt.reject(BAD, whole=False)

    def long() -> Iterator[Any]:
        yield GOOD
        wait_until(lambda: Client().stats()["sinks"]["used"] == 1, "the gateway to have begun to write", 30)
        lapse()
        attempt.read()
        attempt.reject(whole=True)
        lapse()
        yield rows({"value": b"last"})

    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(attempt.write, long()).result(60)
    assert (written.out, written.rejected, written.read) == (50_001, 1, 1)
    # A commit is acknowledged a moment before it is visible.
    wait_until(lambda: attempt.values(attempt.rejected) == [b"bad"], "the rejected record to be visible")


def test_rejected_rows_being_handed_over_outlast_any_time(attempt: Attempt, lapse: Any) -> None:
    """The gate's conversation holds them, until the one that writes does."""
    attempt.reject(BAD, whole=False)
    large = [rows({"value": b"%d" % number * 100_000, "reason": "large"}) for number in range(9)]
    handing = Handing(Judging(attempt.name, 0, 0, whole=True))
    for each in large:
        handing.add(each)

    def arrived() -> bool:
        kept = attempt.host.attempts._kept.get(attempt.name)
        return kept is not None and len(kept.aside._batches) > 1

    wait_until(arrived, "the gate's first rows to arrive", 30)
    lapse()
    handing.end()
    attempt.read()
    written = attempt.write(iter([rows({"value": b"good"})]))
    assert written.rejected == 10


def test_forgotten_attempt_does_not_commit(attempt: Attempt, lapse: Any) -> None:
    """It lost rejected rows, so it must not look like one that had none."""
    attempt.reject(BAD, whole=False)
    lapse()
    attempt.read()
    attempt.reject(whole=True)
    with pytest.raises(errors.InputUnread, match="the gateway had forgotten"):
        attempt.write(iter([rows({"value": b"good"})]))
    assert attempt.values(attempt.sink) == []
    assert attempt.values(attempt.rejected) == []


def test_batch_may_be_delivered_again_after_the_rules_of_the_next_one_were_counted(attempt: Attempt) -> None:
    """As if the brokers had gone away then: nothing of the next batch has begun before it is planned."""
    attempt.read()
    attempt.reject(whole=True)
    attempt.write(iter([rows({"value": b"good"})]))
    counted = replace(attempt.request, lane=50_000)
    assert sum(each.num_rows for each in client.read("", counted, 1, 0)) == 1
    again = replace(attempt, name=attempt.name + "1")
    again.read()
    again.reject(whole=True)
    assert again.write(iter([rows({"value": b"good"})])).skipped
    assert attempt.host.attempts._kept == {}


def test_nothing_is_left_of_an_attempt_that_was_written_in_vain(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rejected rows, on disk here, are discarded although the writing ended before its input did."""
    monkeypatch.setattr(module, "IN_MEMORY", 0)
    attempt.reject(BAD, whole=False)
    assert list(attempt.host.folder.glob("aside-*"))

    def failing() -> Iterator[Any]:
        yield GOOD
        raise errors.InputCutOff("the fault of the test")

    with pytest.raises(errors.InputCutOff):
        attempt.write(failing())
    wait_until(lambda: not list(attempt.host.folder.glob("aside-*")), "the rejected rows to be discarded", 30)
