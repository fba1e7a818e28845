"""The gateway process: one on each executor, whichever process dies, and what its producers leave behind."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from tailrace import errors
from tailrace.config import Delivery, Kafka
from tailrace.gateway import Assignment, Written, client, watchdog
from tailrace.gateway import message_protocol as wire
from tailrace.gateway.client import Client
from tailrace.gateway.schemas import ROW_SCHEMA
from tailrace.kafka.clients import client_options
from tailrace.kafka.cluster import Cluster
from tailrace.progress.ledger_topic import LEDGER_SETTINGS
from tailrace.progress.plan import BatchId, SinkPartition
from tailrace.testing import Topics, consume, wait_until

pytestmark = pytest.mark.integration


def rows(*records: dict[str, Any]) -> Any:
    """Return an Arrow batch as the sink sends it; fields that a record does not name are null."""
    return pa.RecordBatch.from_pylist([dict.fromkeys(ROW_SCHEMA.names) | each for each in records], ROW_SCHEMA)


def values(start: int, end: int) -> Any:
    """Return distinct plain records."""
    return rows(*({"value": b"%06d" % number} for number in range(start, end)))


@dataclass
class House:
    """A folder with its gateway, and a ledger and topics to write to."""

    folder: Path
    topics: Topics
    pipeline: str
    sink: str
    rejected: str
    ledger: str

    def task(self, batch: int, partition: int = 0, **others: Any) -> Assignment:
        """Return the assignment of a task."""
        task = Assignment(
            pipeline=self.pipeline,
            batch=BatchId(batch),
            partition=SinkPartition(partition),
            sinks=4,
            digest=f"digest of {batch}",
            delivery=Delivery.EXACTLY_ONCE,
            ledger=self.ledger,
            topic=self.sink,
            rejected=self.rejected,
            run="run",
            options=client_options(Kafka(bootstrap_servers=self.topics.bootstrap_servers)),
        )
        return replace(task, **others)

    def write(self, task: Assignment, *batches: Any) -> Written:
        """Write like a worker."""
        return Client().write(task, iter(batches))

    def read(self) -> list[bytes | None]:
        """Return the values that a read_committed reader sees, in order."""
        return [each.value for each in consume(self.topics.bootstrap_servers, self.sink)]

    def pid(self) -> int:
        """Return the process id of the gateway."""
        return int(Client().stats()["pid"])


@pytest.fixture
def house(tailrace_topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """Give each test its own gateway, started by the first process that needs it, and end it afterwards."""
    name = f"w-{uuid.uuid4().hex[:8]}"
    ledger = f"{name}.ledger"
    bootstrap = tailrace_topics.bootstrap_servers
    Cluster(Kafka(bootstrap_servers=bootstrap)).ensure(ledger, 8, 1, LEDGER_SETTINGS)
    folder = wire.folder_of(psutil.Process()).with_name(name)
    monkeypatch.setenv(wire.ENV, str(folder))
    monkeypatch.setattr(wire, "executor", psutil.Process)  # this process is the executor
    yield House(folder, tailrace_topics, name, tailrace_topics("out"), tailrace_topics("rejected"), ledger)

    def ended() -> bool:
        # Repeat for all that were started: a late one takes the place of one that has ended.
        for each in started_in(folder):
            with suppress(psutil.NoSuchProcess):
                each.terminate()
        return not folder.exists() and not started_in(folder)

    wait_until(ended, "the end of the gateway and the removal of its folder", 60)


def started_in(folder: Path) -> list[psutil.Process]:
    """Return the gateways of this folder, and processes about to become one."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if str(folder) in each.cmdline():
                found.append(each)
    return found


def test_one_gateway_starts_for_many_concurrent_requests(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is started; another that starts anyway loses the race for the lock, and ends silently."""
    started: list[Path] = []

    def start(folder: Path, executor: int) -> None:
        started.append(folder)
        true_start(folder, executor)

    true_start = client.start
    monkeypatch.setattr(client, "start", start)
    with ThreadPoolExecutor(8) as pool:
        found = {each.result(60)["pid"] for each in [pool.submit(Client().stats) for _ in range(8)]}
    assert len(found) == 1
    assert len(started) == 1
    true_start(house.folder, os.getpid())
    assert {house.pid()} == found


def test_workers_wait_for_a_gateway_that_is_starting(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon starts it before any worker; workers that connect before it listens do not start another."""
    started: list[Path] = []
    client.start(house.folder, os.getpid())
    monkeypatch.setattr(client, "start", lambda folder, executor: started.append(folder))
    monkeypatch.setattr(client, "_TRY_AGAIN", 60.0)
    with ThreadPoolExecutor(4) as pool:
        found = {each.result(60)["pid"] for each in [pool.submit(Client().stats) for _ in range(4)]}
    assert len(found) == 1
    assert not started


def test_only_its_user_can_reach_the_gateway(house: House) -> None:
    """Messages on the socket may contain passwords."""
    house.pid()
    assert house.folder.stat().st_mode & 0o777 == 0o700
    assert house.folder.parent.stat().st_mode & 0o777 == 0o700
    house.folder.chmod(0o755)
    with pytest.raises(errors.GatewayUnavailable, match="others can read it"):
        wire.own(house.folder)
    house.folder.chmod(0o700)


def test_gateway_ends_with_its_executor(tmp_path: Path) -> None:
    """This holds even if the executor is killed and cannot send a message."""
    executor = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    folder = wire.folder_of(psutil.Process(executor.pid))
    client.start(folder, executor.pid)
    wait_until(lambda: (folder / wire.SOCKET).exists(), "the gateway's socket", 60)
    executor.kill()
    executor.wait(10)
    wait_until(lambda: not folder.exists(), "the gateway's folder to be gone", 30)


def test_gateway_works_with_a_long_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket's path is limited to about a hundred bytes; if TMPDIR is too long, the folder is in /tmp."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 30)))
    folder = wire.folder_of(psutil.Process())
    assert folder.parent.parent == Path("/tmp")
    monkeypatch.setattr(tempfile, "tempdir", "/var/short")
    assert wire.folder_of(psutil.Process()).parent.parent == Path("/var/short")


RECORDS: list[dict[str, Any]] = [
    {"value": b"plain"},
    {"value": None, "key": b"tombstone"},
    {"value": b"", "key": b""},
    {"value": b"\x00\xff", "key": b"k"},
]


@pytest.mark.parametrize(
    "particular", [{}, {"headers": [{"key": "a", "value": b"1"}]}, {"timestamp": 1_700_000_000_000}]
)
def test_rows_of_every_kind_arrive_complete_and_in_order(house: House, particular: dict[str, Any]) -> None:
    """This holds for batches sent as one, and for those sent row by row because of headers or timestamps."""
    records = [*RECORDS[:2], {"value": b"particular", **particular}, *RECORDS[2:]]
    written = house.write(house.task(0), rows(*records))
    got = consume(house.topics.bootstrap_servers, house.sink)
    assert [(each.key, each.value) for each in got] == [(each.get("key"), each["value"]) for each in records]
    assert written.out == len(records)
    assert written.size == sum(len(each["value"] or b"") + len(each.get("key") or b"") for each in records)
    if "timestamp" in particular:
        assert got[2].timestamp == particular["timestamp"]
    assert dict(got[2].headers) == ({"a": b"1"} if "headers" in particular else {})


def test_rejected_rows_and_rows_without_a_topic_do_not_block_the_others(house: House) -> None:
    """They go to the rejected topic with their reason, in the same transaction."""
    other = house.topics("other", 3)
    task = house.task(0, topic=None)
    records: list[dict[str, Any]] = [
        {"value": b"a", "topic": house.sink},
        {"value": b"bad", "reason": "wrong"},
        {"value": b"b", "topic": other, "partition": 2},
        {"value": b"nowhere"},
        {"value": b"c", "topic": house.sink},
        {"value": b"odd", "topic": "no/topic"},
    ]
    written = house.write(task, rows(*records))
    assert (written.out, written.rejected) == (3, 3)
    assert house.read() == [b"a", b"c"]
    assert [(each.value, each.partition) for each in consume(house.topics.bootstrap_servers, other)] == [(b"b", 2)]
    rejected = consume(house.topics.bootstrap_servers, house.rejected)
    assert [each.value for each in rejected] == [b"bad", b"nowhere", b"odd"]


def test_too_large_record_is_named_and_nothing_is_delivered(house: House) -> None:
    """The client's own limit applies before anything is sent."""
    with pytest.raises(errors.RecordTooLarge):
        house.write(house.task(0), rows({"value": b"small"}), rows({"value": b"x" * 2_000_000}))
    assert house.read() == []
    assert house.write(house.task(0), rows({"value": b"small"})).fresh
    assert house.read() == [b"small"]


def test_brokers_limit_is_named_too(house: House) -> None:
    """The broker refused the record that the client sent; the transaction reports why."""
    task = house.task(0, topic=house.topics("narrow", 1, **{"max.message.bytes": "1000"}))
    with pytest.raises(errors.RecordTooLarge):
        house.write(task, rows({"value": os.urandom(5000)}))


@pytest.mark.parametrize("delivery", Delivery)
@pytest.mark.parametrize("headers", [None, [{"key": "a", "value": b"1"}]], ids=["by batch", "one by one"])
def test_record_larger_than_the_producers_queue_is_named(
    house: House, delivery: Delivery, headers: list[dict[str, Any]] | None
) -> None:
    """The queue would refuse it for ever, and has room for what fills it exactly."""
    task = house.task(0, delivery=delivery)
    task = replace(task, options=task.options | {"queue.buffering.max.kbytes": 64})

    def written(*sizes: int) -> Written:
        records = [{"value": b"x" * size, "key": b"k" * 20_000, "headers": headers} for size in sizes]
        pool = ThreadPoolExecutor(1)  # not a context: a task that hangs ends with the gateway
        try:
            return pool.submit(house.write, task, rows(*records)).result(30)
        finally:
            pool.shutdown(wait=False)

    with pytest.raises(errors.RecordTooLarge, match=r"65537 bytes.*\(queue\.buffering\.max\.kbytes=64\)") as refusal:
        written(10, 60_000, 60_000, 65_537)
    assert refusal.value.then == "set sink.options: queue.buffering.max.kbytes to 65 or more, or emit smaller records"
    if delivery is Delivery.EXACTLY_ONCE:
        assert house.read() == []
    assert written(65_536, 65_536, 10).out == 3


DIES = """
    import os, pickle, sys
    sys.path.insert(0, {tests!r})
    from integration.test_gateway import values
    from tailrace.gateway.client import Client

    task = pickle.loads({task!r})

    def batches():
        for number in range(20):
            yield values(number * 1000, number * 1000 + 1000)
        os._exit(1)  # in mid-stream

    Client().write(task, batches())
"""


def test_worker_that_dies_in_mid_stream_leaves_nothing_behind(house: House) -> None:
    """Its transaction is aborted; the next attempt writes everything."""
    house.pid()
    task = house.task(0)
    code = textwrap.dedent(DIES.format(tests=str(Path(__file__).parent.parent), task=pickle.dumps(task)))
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 1
    counts = Client().stats()["sinks"]
    wait_until(lambda: Client().stats()["sinks"]["used"] == 0, "the gateway to notice that the worker is gone", 30)
    assert house.read() == []
    assert house.write(task, values(0, 10)).fresh
    # The brokers acknowledge a commit before they have written that it ends.
    wait_until(lambda: house.read() == [b"%06d" % number for number in range(10)], "the records of the commit", 30)
    assert counts["created"] == 1


def test_truncated_input_is_not_taken_for_complete(house: House) -> None:
    """The rows before the failure have reached the gateway, and are aborted."""

    def failing() -> Iterator[Any]:
        yield values(0, 1000)
        raise errors.InputCutOff("the fault of the test")

    with pytest.raises(errors.InputCutOff):
        Client().write(house.task(0), failing())

    def given_up() -> bool:
        sinks = Client().stats()["sinks"]
        return bool(sinks["created"] == 1 and not sinks["used"])

    wait_until(given_up, "the end of the attempt that failed", 60)  # otherwise it may fence the next one
    assert house.read() == []
    house.write(house.task(0), values(0, 5))
    assert house.read() == [b"%06d" % number for number in range(5)]


def test_killed_gateway_is_replaced_and_the_next_attempt_is_exact(house: House) -> None:
    """It is killed in mid-stream; the task fails and reports that it will be retried."""
    house.write(house.task(0), values(0, 5))
    old = house.pid()

    def killing() -> Iterator[Any]:
        yield values(5, 1000)
        os.kill(old, signal.SIGKILL)
        for number in range(1, 200):
            yield values(number * 1000, number * 1000 + 1000)

    with pytest.raises(errors.GatewayUnavailable, match="ended in mid-task"):
        Client().write(house.task(1), killing())
    written = house.write(house.task(1), values(5, 10))
    assert written.fresh
    assert house.pid() != old
    assert house.read() == [b"%06d" % number for number in range(10)]


def test_batch_committed_before_the_gateway_died_is_skipped(house: House) -> None:
    """The new gateway reads the marker."""
    house.write(house.task(0), values(0, 5))
    old = psutil.Process(house.pid())
    old.kill()
    wait_until(
        lambda: not old.is_running() or old.status() == psutil.STATUS_ZOMBIE, "the killed gateway to be gone", 10
    )
    written = house.write(house.task(0), values(0, 5))
    assert written.skipped
    assert house.read() == [b"%06d" % number for number in range(5)]


def test_attempt_fences_another_that_still_streams(house: House) -> None:
    """Both use the same gateway, as after a task that Spark has given up; the output of one of them is committed."""
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[Any]:
        yield values(0, 50_000)  # more than the buffers hold
        begun.set()
        go_on.wait(60)
        yield values(50_000, 51_000)

    with ThreadPoolExecutor(1) as pool:
        older = pool.submit(Client().write, house.task(0), slow())
        assert begun.wait(60)
        wait_until(lambda: Client().stats()["sinks"]["used"] == 1, "the older attempt to have its producer", 30)
        newer = house.write(house.task(0), values(0, 10))
        go_on.set()
        with pytest.raises(errors.TailraceError):
            older.result(60)
    assert newer.fresh
    assert house.read() == [b"%06d" % number for number in range(10)]


def test_sink_partition_that_another_executor_wrote_takes_a_fresh_producer(house: House) -> None:
    """The warm one has been fenced, so it is not tried."""
    first = house.write(house.task(0), values(0, 5))
    warm = house.write(house.task(1, owner=first.gateway), values(5, 10))
    moved = house.write(house.task(2, owner="another"), values(10, 15))
    assert (first.fresh, warm.fresh, moved.fresh) == (True, False, True)


def test_idle_producer_is_closed(house: House) -> None:
    """Its connections are closed too."""
    house.write(house.task(0, idle=1.0), values(0, 5))
    before = Client().stats()
    assert before["sinks"]["held"] == 1
    wait_until(lambda: Client().stats()["sinks"]["held"] == 0, "the idle producer to be closed", 30)
    wait_until(lambda: Client().stats()["connections"] < before["connections"], "its connections to be closed", 30)
    assert Client().stats()["sinks"]["retired"] == {"idle": 1}


def test_at_least_once_tasks_share_one_producer(house: House) -> None:
    """Their number does not matter."""

    def one(number: int) -> Written:
        task = house.task(0, number, delivery=Delivery.AT_LEAST_ONCE)
        return house.write(task, values(number * 100, number * 100 + 100))

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(one, number) for number in range(8)]:
            each.result(60)
    assert Client().stats()["shared"]["held"] == 1
    assert sorted(house.read(), key=str) == [b"%06d" % number for number in range(800)]


@pytest.mark.takes(15)
def test_hundreds_of_batches_need_no_more_producers_than_sink_partitions(house: House) -> None:
    """The numbers of threads and connections do not grow either."""
    sinks, batches = 4, 300

    def sink(partition: int) -> None:
        for number in range(begin, end):
            house.write(house.task(number, partition), rows({"value": b"%d-%d" % (partition, number)}))

    def all_sinks() -> dict[str, Any]:
        with ThreadPoolExecutor(sinks) as pool:
            for each in [pool.submit(sink, partition) for partition in range(sinks)]:
                each.result(280)
        return Client().stats()

    begin, end = 0, 60
    early = all_sinks()
    begin, end = 60, batches
    late = all_sinks()
    # A commit that takes over a second on a slow machine is in doubt, and reported as such.
    doubts = sum(late["sinks"]["retired"].values())
    assert late["sinks"]["created"] == sinks + doubts
    assert late["sinks"]["held"] == sinks
    if not doubts:
        assert late["threads"] <= early["threads"] + 2
        assert late["connections"] <= early["connections"]
    assert late["rss"] < early["rss"] * 1.3
    assert len(house.read()) == sinks * batches


@pytest.mark.takes(35)
def test_hanging_gateway_is_killed_and_the_next_attempt_delivers(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs in mid-task, and before a task: neither worker waits for ever."""
    monkeypatch.setattr(watchdog, "ASK_EVERY", 0.5)
    monkeypatch.setattr(watchdog, "ANSWER_LIMIT", 3.0)
    house.write(house.task(0), values(0, 10))
    pid = house.pid()

    def stopped() -> Iterator[Any]:
        yield values(10, 15)
        os.kill(pid, signal.SIGSTOP)
        yield values(15, 20)

    with pytest.raises(errors.GatewayUnavailable, match="ended in mid-task"):
        Client().write(house.task(1), stopped())
    house.write(house.task(1), values(10, 20))
    second = house.pid()
    assert second != pid
    os.kill(second, signal.SIGSTOP)
    house.write(house.task(2), values(20, 30))
    assert house.pid() != second
    assert house.read() == [b"%06d" % number for number in range(30)]
