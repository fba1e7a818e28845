"""Only the newest driver and attempt can write: it fences the others, and ends the open transactions of dead ones."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from faults.transactions import ids
from support.pipelines import Bench, events_of
from support.plans import plan_of
from support.threads import Line, Torn, running
from tailrace import errors
from tailrace.config import Pipeline
from tailrace.crash_points import Point
from tailrace.driver.lead import overtaken
from tailrace.driver.thread_engine import ThreadEngine
from tailrace.gateway import Assignment, Written
from tailrace.gateway.librdkafka import messages
from tailrace.gateway.markers import MarkerReader
from tailrace.gateway.producers import SinkProducer
from tailrace.kafka.cluster import Cluster
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import Marker
from tailrace.progress.plan import BatchId, SinkPartition
from tailrace.testing import Record, Topics, produce, wait_until
from tailrace.testing.embedded import EmbeddedKafka, EmbeddedOptions

pytestmark = pytest.mark.integration
MakeBench = Callable[..., Bench]

# Keeps state, and holds each record while the file exists.
HOLD = """
    import time
    from pathlib import Path
    from pyspark.sql import functions as F

    def hold(frame):
        def wait(value):
            until = time.monotonic() + 120
            while Path({held!r}).exists() and time.monotonic() < until:
                time.sleep(0.05)
            Path({held!r} + "-no-more").touch()
            return value
        return frame.dropDuplicates(["value"]).select(F.udf(wait, "binary")("value").alias("value"))
"""


def test_second_driver_fences_the_first(bench: MakeBench) -> None:
    """The first one's next plan fails, and is not in the ledger."""
    one = bench().pipeline()
    with Ledger.of(one) as first, Ledger.of(one) as second:
        first.take()
        first.write(plan_of(one, 0), {})
        second.take()
        with pytest.raises(errors.DriverFenced, match="a newer driver has taken over"):
            first.write(plan_of(one, 1), {})
        assert second.latest() == plan_of(one, 0)
        second.write(plan_of(one, 1), {})
        assert second.latest() == plan_of(one, 1)


def test_expired_transaction_is_not_taken_for_a_newer_driver(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers report both with the same error, but a supervisor must restart only the expired driver."""
    one = bench().pipeline()
    topic = one.ledger.topic
    monkeypatch.setattr("tailrace.progress.fences.TRANSACTION_TIMEOUT", 1.0)
    with Ledger.of(one) as ledger:
        ledger.take()
        places = [(topic, number) for number in range(ledger.partitions)]

        def end() -> int:
            return sum(Cluster(one.kafka).latest(places).values())

        def ended_by_the_brokers(point: Point, batch: int, *, first: Callable[[], object] = lambda: None) -> None:
            if point is Point.PLAN_OPEN:
                first()
                wait_until(lambda: end() >= begun + 2, "the plan, and the brokers' marker that ends it", limit=60)

        begun = end()
        monkeypatch.setattr("tailrace.crash_points.at", ended_by_the_brokers)
        with pytest.raises(errors.KafkaFailed, match="the brokers abort a transaction after 1 s") as caught:
            ledger.write(plan_of(one, 0), {})
    assert caught.value.code == "TR-207"
    assert not isinstance(caught.value, errors.DriverFenced)
    with Ledger.of(one) as again:
        again.take()
        assert again.latest() is None


def test_second_driver_stops_the_running_one(bench: MakeBench) -> None:
    """The older driver ends with its own error, and everything is delivered once."""
    one = bench()
    one.send([b"a"])
    pipeline = one.pipeline()

    def take_over(events: list[dict[str, object]]) -> bool:
        if events[-1]["event"] == "written":
            with Ledger.of(pipeline) as newer:
                newer.take()
            one.send([b"b"])
        return False

    with pytest.raises(errors.DriverFenced) as caught:
        one.run_until(pipeline, take_over)
    assert caught.value.exit_code == 7
    one.run()
    assert one.values() == [b"a", b"b"]


def test_idle_driver_keeps_its_transactional_id(tmp_path: Path) -> None:
    """Brokers forget one that is not used; the first record after that would end the driver."""
    settings = {
        "transactional.id.expiration.ms": "4000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    }
    with EmbeddedKafka(EmbeddedOptions(settings=settings)) as kafka:
        bootstrap = kafka.bootstrap_servers
        topics = Topics(bootstrap)
        one = Line(topics, tmp_path, "idle", topics("in"), topics("out"), 1)
        unused = f"tailrace.{one.name}.unused"
        with running(one, renew_every=0.5, sink={"idle": 1}) as driver:
            one.send([b"1"], partition=0)
            wait_until(lambda: one.values() == [b"1"], "the first record", 30)
            wait_until(lambda: bool(events_of(driver.events, "idle")), "the driver to be idle", 30)
            # Begun after the driver's last transaction: when the brokers have forgotten it, the driver's is due, too.
            Producer({"bootstrap.servers": bootstrap, "transactional.id": unused}).init_transactions(30)
            wait_until(lambda: unused not in ids(bootstrap, one.name), "an unused id to expire", 60)
            one.send([b"2"], partition=0)
            wait_until(lambda: one.values() == [b"1", b"2"], "the second record", 30)


def test_idle_driver_that_was_replaced_ends(line: Callable[..., Line]) -> None:
    """It plans nothing that would tell it."""
    one = line(1)
    with pytest.raises(errors.DriverFenced):
        replaced(one)


def replaced(one: Line) -> None:
    """Let another driver take over from one that waits for records; raise the error with which it ends."""
    with running(one, renew_every=0.2) as driver, Ledger.of(one.pipeline()) as newer:
        wait_until(lambda: bool(events_of(driver.events, "idle")), "the driver to be idle", 30)
        newer.take()
        wait_until(lambda: driver.ended, "the driver to end", 30)


def task_of(one: Bench, batch: int, run: str = "r") -> Assignment:
    """Return the assignment of sink partition 0 of a batch."""
    pipeline = one.pipeline()
    plan = plan_of(pipeline, batch)
    from tailrace.spark_stream.sink import BatchWrite

    write = BatchWrite.of(pipeline, plan, (SinkPartition(0), SinkPartition(1)), run, {})
    return write.task(0)


def test_outputs_and_marker_are_visible_together_or_not_at_all(bench: MakeBench) -> None:
    """An uncommitted transaction leaves neither."""
    one = bench()
    with Ledger.of(one.pipeline()) as ledger:
        task = task_of(one, 0)
        sink = SinkProducer(task, MarkerReader(task))
        sink.fence()
        assert sink.marker() is None
        sink.begin()
        sink.send(topic=one.sink, value=b"once")
        sink.seal(Marker.of(task.batch, task.digest, 2))
        assert one.values() == []
        sink.commit(task.batch)
        assert one.values() == [b"once"]
        assert ledger.markers() == {SinkPartition(0): Marker.of(task.batch, task.digest, 2)}
        sink.close()


def test_newer_owner_fences_an_attempt_that_continues(bench: MakeBench) -> None:
    """The older attempt's records never become visible, and its commit is reported as in doubt."""
    one = bench()
    with Ledger.of(one.pipeline()):
        task = task_of(one, 0)
        older = SinkProducer(task, MarkerReader(task))
        older.fence()
        older.marker()
        older.begin()
        older.send(topic=one.sink, value=b"zombie")
        older.producer.flush(10)
        newer = SinkProducer(task, MarkerReader(task))
        newer.fence()
        newer.marker()
        newer.begin()
        newer.send(topic=one.sink, value=b"newer")
        newer.seal(Marker.of(task.batch, task.digest, 2))
        newer.commit(task.batch)
        with pytest.raises(errors.TailraceError) as caught:
            older.seal(Marker.of(task.batch, task.digest, 2))
        assert isinstance(caught.value, errors.CommitInDoubt)
        assert older.doubt
        older.close()
        newer.close()
    assert one.values() == [b"newer"]


class CatchesAll:
    """A logger that catches everything, as the handlers of `logging` do: also what another callback raised."""

    def log(self, *_: object) -> None:
        """Swallow an error that is set already."""
        try:
            re.match("a", "a")
        except SystemError:
            return


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "in batches"])
@pytest.mark.parametrize(
    "options", [{}, {"logger": CatchesAll(), "debug": "all"}], ids=["plain", "a handler catches all"]
)
def test_fenced_producer_is_in_doubt_and_not_a_failure_of_kafka(
    bench: MakeBench, together: bool, options: dict[str, Any]
) -> None:
    """So its driver can tell that another has taken over, however its records are handed over."""
    one = bench()
    with Ledger.of(one.pipeline()):
        task = task_of(one, 0)
        task = replace(task, options=task.options | options)
        older, newer = (SinkProducer(task, MarkerReader(task)) for _ in range(2))
        older.fence()
        older.marker()
        older.begin()
        newer.fence()

        columns = pa.array([None], pa.binary()), pa.array([b"zombie"], pa.binary())  # outlive the messages

        def send() -> bool:
            if together:
                older.offer(one.sink, messages(*columns))
            else:
                older.send(topic=one.sink, value=b"zombie")
            older.flush(1)
            return False

        with pytest.raises(errors.Contested, match="another attempt has taken the transactional id"):
            wait_until(send, "the older producer to be fenced", 30)
        assert older.doubt
        older.close()
        newer.close()
    assert one.values() == []


def test_driver_that_is_overtaken_in_mid_batch_knows_it_before_the_newer_one_has_planned(bench: MakeBench) -> None:
    """Its transactions are fenced while the newer driver still finishes the batch; asking leaves no trace."""
    one = bench()
    pipeline, place = one.pipeline(), (one.source, 0)
    doubt = errors.CommitInDoubt("fenced", kept="")
    with Ledger.of(pipeline) as older, Ledger.of(pipeline) as newer:
        older.take()
        older.write(plan_of(pipeline, 0), {})
        failed = errors.QueryFailed("[CONCURRENT_STREAM_LOG_UPDATE] the checkpoint of both")
        assert overtaken(doubt, older, pipeline, 0, "r") is doubt
        assert overtaken(failed, older, pipeline, 0, "r") is failed
        other = errors.MarkerConflict("batch 0 is already written, by another plan")
        assert overtaken(other, older, pipeline, 0, "r") is other
        newer.take()
        assert isinstance(overtaken(doubt, older, pipeline, 0, "r"), errors.DriverFenced)
        assert isinstance(overtaken(failed, older, pipeline, 0, "r"), errors.DriverFenced)
        assert isinstance(overtaken(other, older, pipeline, 0, "r"), errors.DriverFenced)
        assert overtaken(doubt, newer, pipeline, 0, "r") is doubt
        newer.write(plan_of(pipeline, 1), {place: 1})
        assert newer.positions({place: 0, (pipeline.ledger.topic, 0): 0}) == {place: 1}


def plan_next(pipeline: Pipeline) -> None:
    """Let a newer driver take over and plan the next batch."""
    with Ledger.of(pipeline) as newer:
        newer.take()
        last = newer.latest()
        if last is None:
            raise LookupError("the older driver has planned nothing")
        newer.write(replace(last, batch=BatchId(last.batch + 1), run="newer"), {})


def finish_this(pipeline: Pipeline) -> None:
    """Let a newer driver take over and note the open batch as done; an idle source gives it no other."""
    with Ledger.of(pipeline) as newer:
        newer.take()
        newer.settle(newer.latest(), {})


SUCCESSORS = [
    pytest.param(plan_next, "has reached batch 1", id="plans the next"),
    pytest.param(finish_this, "has finished it", id="finishes this one"),
]


@pytest.mark.parametrize(("succeed", "words"), SUCCESSORS)
def test_driver_whose_batch_does_not_end_ends_when_a_newer_one_leads(
    succeed: Callable[[Pipeline], None], words: str, line: Callable[..., Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its executors may be lost, and then it has no next plan that would tell; the batch is given up."""
    monkeypatch.setattr("tailrace.driver.brokers._EVERY", 0.2)
    one, given_up = line(), threading.Event()
    one.send([b"a"])

    def never(engine: ThreadEngine, *_: object) -> list[Written]:
        succeed(one.pipeline())
        wait_until(lambda: engine._cancelled, "the batch to be given up", 60)
        given_up.set()
        raise Torn

    with pytest.raises(errors.DriverFenced, match=f"a newer driver has taken over and {words}"):
        one.run(never)
    assert given_up.wait(10)


@pytest.mark.parametrize(("succeed", "words"), SUCCESSORS)
def test_stateful_driver_whose_batch_does_not_end_ends_when_a_newer_one_leads(
    succeed: Callable[[Pipeline], None], words: str, bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait as long as a stop would let the batch take."""
    monkeypatch.setattr("tailrace.driver.brokers._EVERY", 0.2)
    one = bench()
    held = one.folder / "held"
    held.touch()
    one.send([b"a"])
    one.write("hold.py", HOLD.format(held=str(held)))
    pipeline = one.pipeline(
        process={"function": "hold.py:hold"}, checkpoint=str(one.folder / "state"), batch={"drain": 600}
    )

    def overtake(events: list[dict[str, Any]]) -> bool:
        if events[-1]["event"] == "planned":
            succeed(pipeline)
        return False

    try:
        with pytest.raises(errors.DriverFenced, match=f"a newer driver has taken over and {words}"):
            one.run_until(pipeline, overtake)
        assert not held.with_name("held-no-more").exists()
    finally:
        held.unlink()


def test_driver_ends_the_open_transactions_of_a_dead_run(bench: MakeBench) -> None:
    """Otherwise a read_committed reader would wait for the transaction's timeout."""
    one = bench()
    with Ledger.of(one.pipeline()) as ledger:
        task = task_of(one, 0)
        dead = SinkProducer(task, MarkerReader(task))
        dead.fence()
        dead.marker()
        dead.begin()
        dead.send(topic=one.sink, value=b"never")
        dead.producer.flush(10)
        produce(one.kafka, one.sink, [Record(b"after")])
        ledger.take()
        ledger.fence(2)
        assert one.values() == [b"after"]
        dead.close()


def test_pipeline_uses_one_transactional_id_for_each_sink_partition(bench: MakeBench) -> None:
    """The ids stay the same over several runs."""
    one = bench(partitions=2)
    for value in (b"a", b"b", b"c"):
        one.send([value], partition=0)
        one.send([value], partition=1)
        one.run()
    admin = AdminClient({"bootstrap.servers": one.kafka})
    groups = {each.group_id for each in admin.list_consumer_groups(request_timeout=10).result().valid}
    mine = {each for each in groups if one.name in each}
    assert mine == {f"tailrace.{one.name}{end}" for end in ("", ".markers", ".drivers")}
    assert len(events_of(one.events, "written")) == 3
