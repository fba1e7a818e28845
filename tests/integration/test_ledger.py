"""The ledger lets only one driver write, and notices changes by others."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource  # type: ignore[attr-defined]

from support.pipelines import Bench, events_of
from tailrace import errors
from tailrace.config import Pipeline
from tailrace.crash_points import Point
from tailrace.driver.spark_errors import overtaken
from tailrace.gateway import Assignment
from tailrace.gateway.librdkafka import messages
from tailrace.gateway.markers import MarkerReader
from tailrace.gateway.producers import SinkProducer
from tailrace.kafka.cluster import Cluster
from tailrace.progress import last_error
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import Marker
from tailrace.progress.plan import BatchId, Range, SinkPartition
from tailrace.progress.stream_plan import Slice, StreamPlan
from tailrace.testing import Record, produce, wait_until

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]


def plan_of(pipeline: Pipeline, batch: int, sinks: int = 2) -> StreamPlan:
    """Return a plan of a batch with this number of sink partitions."""
    slices = tuple(Slice(f"in-{number}:0-{batch + 1}") for number in range(sinks))
    return StreamPlan(pipeline.pipeline, "q", BatchId(batch), (Range("in", 0, 0, batch + 1),), slices, "v1\n{}\n{}")


def test_last_plan_is_found_among_many_others(bench: MakeBench) -> None:
    """The search goes backwards, past the plans of other pipelines in the same ledger."""
    one = bench().pipeline(ledger={"partitions": 1})
    other = one.model_copy(update={"pipeline": "other"})
    with Ledger.of(one) as ledger, Ledger.of(other) as others:
        ledger.take()
        others.take()
        assert ledger.latest() is None
        ledger.write(plan_of(one, 0, 1), {})
        ledger.write(plan_of(one, 1, 1), {(one.source.topics[0], 0): 1})
        for batch in range(300):
            others.write(plan_of(other, batch, 1), {})
        assert ledger.latest() == plan_of(one, 1, 1)
        assert others.latest() == plan_of(other, 299, 1)


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
    monkeypatch.setattr("tailrace.progress.ledger._TRANSACTION_TIMEOUT", 1.0)
    with Ledger.of(one) as ledger:
        ledger.take()
        places = [(topic, number) for number in range(ledger.partitions)]

        def end() -> int:
            return sum(Cluster(one.kafka).latest(places).values())

        def ended_by_the_brokers(point: Point, batch: int, *, first: Callable[[], object] = lambda: None) -> None:
            if point is Point.PLAN_OPEN:
                first()
                sent = end()
                wait_until(lambda: end() > sent, "the brokers' marker that ends the transaction", limit=60)

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


def test_pipelines_group_shows_its_progress(bench: MakeBench) -> None:
    """After a clean end, Kafka's own tools see a lag of 0."""
    one = bench(partitions=2)
    one.send([b"a", b"b"], partition=0)
    one.send([b"c"], partition=1)
    one.run()
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": one.kafka, "group.id": f"tailrace.{one.name}"})
    places = consumer.committed([TopicPartition(one.source, number) for number in range(2)], timeout=10)
    consumer.close()
    assert [each.offset for each in places] == [2, 1]


def test_ledger_written_by_something_else_is_refused(bench: MakeBench) -> None:
    """The error names the place; nothing is read or written."""
    one = bench()
    one.send([b"a"])
    one.run(ledger={"partitions": 1})
    produce(one.kafka, f"{one.name}.ledger", [Record(b'{"version": 1}', key=one.name.encode())])
    one.send([b"b"])
    with pytest.raises(errors.LedgerUnusable, match=rf"{one.name}\.ledger-0 offset \d+ was changed by somebody else"):
        one.run(ledger={"partitions": 1})
    assert one.values() == [b"a"]


def test_small_ledger_is_refused_with_the_number_of_partitions_it_needs(bench: MakeBench) -> None:
    """It is refused before the batch begins."""
    one = bench(partitions=3)
    for number in range(3):
        one.send([b"x"], partition=number)
    with pytest.raises(
        errors.LedgerUnusable, match=r"batch 0 has 3 sink partitions, and the ledger .* has 2 partitions"
    ):
        one.run(ledger={"partitions": 2})
    assert one.values() == []


def test_deleted_ledger_is_refused_while_its_markers_exist(bench: MakeBench) -> None:
    """A new, empty ledger with old markers must not lead to a replay of the topic."""
    one = bench()
    one.send([b"a"])
    one.run()
    pipeline = one.pipeline()
    admin = AdminClient({"bootstrap.servers": one.kafka})
    with Ledger.of(pipeline) as ledger:
        ledger.take()
        partition = ledger._partition

    def keep_plans_as(policy: str) -> None:
        resource = ConfigResource(ConfigResource.Type.TOPIC, pipeline.ledger.topic)
        entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        resource.add_incremental_config(entry)
        admin.incremental_alter_configs([resource])[resource].result(timeout=30)

    def deleted() -> bool:
        place = TopicPartition(pipeline.ledger.topic, partition, -1)
        try:
            admin.delete_records([place])[place].result(timeout=30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.POLICY_VIOLATION:
                raise
            return False
        return True

    keep_plans_as("delete")  # records of a compacted topic cannot be deleted
    wait_until(deleted, "the broker to apply the topic's new policy", 30)
    keep_plans_as("compact")
    with pytest.raises(errors.ProgressMissing, match=r"has 1 markers of .*, and there is no plan"):
        one.run()
    assert one.values() == [b"a"]


def test_driver_waits_for_a_plan_behind_another_pipelines_open_transaction(bench: MakeBench) -> None:
    """The last visible plan may not be the last one."""
    one = bench().pipeline(ledger={"partitions": 1})
    with Ledger.of(one) as ledger:
        ledger.take()
        ledger.write(plan_of(one, 0, 1), {})
        other = Producer(
            {"bootstrap.servers": one.kafka.bootstrap_servers, "transactional.id": f"{one.pipeline}.foreign"}
        )
        other.init_transactions(30)
        other.begin_transaction()
        other.produce(one.ledger.topic, b"{}", key=b"foreign", partition=0)
        other.flush(10)
        ledger.write(plan_of(one, 1, 1), {})
        timer = threading.Timer(2.0, other.abort_transaction)
        timer.start()
        assert ledger.latest() == plan_of(one, 1, 1)
        timer.join(30)


def test_markers_ahead_of_the_last_plan_are_refused(bench: MakeBench) -> None:
    """A ledger restored from an older copy must not lead to a second delivery."""
    one = bench()
    one.send([b"a"])
    one.run()
    pipeline = one.pipeline()
    with Ledger.of(pipeline) as ledger:
        ledger.take()
        old = ledger.latest()
        assert old is not None
    one.send([b"b"])
    one.run()
    with Ledger.of(pipeline) as ledger:
        ledger.take()
        ledger.write(old, {})
    with pytest.raises(
        errors.MarkerConflict, match=r"has written batch \d+, and the last plan in the ledger is of batch"
    ):
        one.run()
    assert one.values() == [b"a", b"b"]


def test_recreated_ledger_topic_is_refused(bench: MakeBench) -> None:
    """Its markers are gone too; the stored input offsets still show that the pipeline has run."""
    one = bench()
    one.send([b"a"])
    one.run()
    admin = AdminClient({"bootstrap.servers": one.kafka})
    ledger = one.pipeline().ledger.topic
    admin.delete_topics([ledger])[ledger].result(timeout=30)
    wait_until(lambda: ledger not in admin.list_topics(timeout=10).topics, "the deletion of the ledger")
    with pytest.raises(errors.ProgressMissing, match="has offsets of 1 partitions, and there is no plan"):
        one.run()
    assert one.values() == [b"a"]


def test_pipeline_killed_in_its_first_real_batch_continues(bench: MakeBench) -> None:
    """An empty batch 0 leaves no marker; its absence is no reason to refuse batch 1."""
    one = bench()
    one.run()
    one.write(
        "bad.py", "def bad(frame):\n    return frame.selectExpr('CAST(raise_error(\\'x\\') AS STRING) AS value')\n"
    )
    one.send([b"a"])
    with pytest.raises(errors.FunctionFailed):
        one.run(process={"function": "bad.py:bad"})
    one.run()
    assert one.values() == [b"a"]


def test_ledger_is_created_with_compaction(bench: MakeBench) -> None:
    """So it keeps the last plan of each pipeline for ever, and little else."""
    pipeline = bench().pipeline()
    with Ledger.of(pipeline):
        pass
    admin = AdminClient({"bootstrap.servers": pipeline.kafka.bootstrap_servers})
    resource = ConfigResource(ConfigResource.Type.TOPIC, pipeline.ledger.topic)
    assert admin.describe_configs([resource])[resource].result(timeout=30)["cleanup.policy"].value == "compact"


# -- a sink partition's producer -------------------------------------------------------------------


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

        with pytest.raises(errors.CommitInDoubt, match="another attempt has taken the transactional id"):
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
        newer.take()
        assert isinstance(overtaken(doubt, older, pipeline, 0, "r"), errors.DriverFenced)
        assert isinstance(overtaken(failed, older, pipeline, 0, "r"), errors.DriverFenced)
        assert overtaken(doubt, newer, pipeline, 0, "r") is doubt
        newer.write(plan_of(pipeline, 1), {place: 1})
        assert newer.positions({place: 0, (pipeline.ledger.topic, 0): 0}) == {place: 1}


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


def failing(what: str) -> errors.TailraceError:
    """Return the error of a function."""
    return errors.FunctionFailed(what, kept="the rest", then="look")


def test_last_error_outlives_its_driver_and_is_no_plan(bench: MakeBench) -> None:
    """The next driver reads it; what reads plans, markers and positions sees the same as before."""
    pipeline = bench().pipeline(ledger={"partitions": 1})
    place = (pipeline.source.topics[0], 0)
    assert last_error.read(pipeline) is None
    with Ledger.of(pipeline) as ledger:
        ledger.take()
        ledger.write(plan_of(pipeline, 0, 1), {place: 1})
        last_error.write(ledger, pipeline, failing("ValueError: 1"), "ab", 5.0, [(1.0, "note", "line")])
        ledger.write(plan_of(pipeline, 1, 1), {place: 2})
        last_error.write(ledger, pipeline, failing("ValueError: 2"), "ab", 6.0, [(1.0, "note", "line")])
    found = last_error.read(pipeline)
    assert found == failing("ValueError: 2").as_dict() | {"run": "ab", "at": 6.0, "log": [(1.0, "note", "line")]}
    with Ledger.of(pipeline) as ledger:
        assert ledger.latest() == plan_of(pipeline, 1, 1)
        assert ledger.positions({place: 0}) == {place: 2}
        assert ledger.markers() == {}


def test_fenced_driver_does_not_write_its_error(bench: MakeBench) -> None:
    """The newer driver's word stands, even if the older one ends later."""
    pipeline = bench().pipeline(ledger={"partitions": 1})
    with Ledger.of(pipeline) as old, Ledger.of(pipeline) as new:
        old.take()
        new.take()
        last_error.write(new, pipeline, failing("ValueError: 1"), "new", 5.0, [(1.0, "note", "line")])
        with pytest.raises(errors.KafkaError):
            last_error.write(old, pipeline, failing("ValueError: 2"), "old", 6.0, [(1.0, "note", "line")])
        found = last_error.read(pipeline)
        assert found is not None
        assert found["run"] == "new"
        new.write(plan_of(pipeline, 0, 1), {})  # the newer driver goes on
        assert new.latest() == plan_of(pipeline, 0, 1)


def test_driver_that_never_led_writes_no_error(bench: MakeBench) -> None:
    """It has no right to: another one may lead."""
    pipeline = bench().pipeline(ledger={"partitions": 1})
    with Ledger.of(pipeline) as ledger:
        last_error.write(ledger, pipeline, failing("ValueError: 1"), "ab", 5.0, [(1.0, "note", "line")])
    assert last_error.read(pipeline) is None
