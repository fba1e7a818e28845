"""The ledger lets only one driver write, and notices changes by others."""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewPartitions

from support.pipelines import Bench
from support.plans import plan_of
from support.threads import Line
from tailrace import errors
from tailrace.driver import recovery
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.informed_end import informed_end
from tailrace.progress import fences, ledger
from tailrace.progress.ledger import Ledger
from tailrace.testing import Record, produce, wait_until

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]
MakeLine = Callable[..., Line]


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
    """It is refused before the batch begins: behind a shuffle, the outputs are not chosen by the ledger."""
    one = bench()
    one.send([b"x"])
    with pytest.raises(
        errors.LedgerUnusable, match=r"batch 0 has 3 sink partitions, and the ledger .* has 2 partitions"
    ):
        one.run(process={"partitions": 3}, ledger={"partitions": 2})
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


def test_standby_finds_the_plans_that_a_growing_ledger_has_moved(line: Callable[..., Line]) -> None:
    """It has looked at the ledger long before its turn; the driver that led meanwhile began after the growth."""
    one = line(1)
    while zlib.crc32(one.name.encode()) % 8 == 0:  # its plans would not move
        one = line(1)
    small: dict[str, Any] = {"ledger": {"partitions": 4}}
    one.send([b"a"])
    one.run(**small)
    pipeline, cluster = one.pipeline(**small), Cluster(one.pipeline().kafka)
    name = pipeline.ledger.topic
    with Ledger.of(pipeline) as standby:
        admin = AdminClient({"bootstrap.servers": one.kafka})
        admin.create_partitions([NewPartitions(name, 16)])[name].result(30)
        wait_until(lambda: cluster.topics()[name] == 16, "the ledger to have grown", 30)
        one.send([b"b"])
        one.run(**small)
        recovered, _ = recovery.take(pipeline, standby, cluster)
        assert recovered.plan is not None
        assert recovered.plan.batch == 1
        assert standby.partitions == 16
        standby.write(plan_of(pipeline, 2, 1), {})
    with Ledger.of(pipeline) as next_one:
        assert next_one.latest() == plan_of(pipeline, 2, 1)


def test_ledger_is_created_with_compaction(bench: MakeBench) -> None:
    """So it keeps the last plan of each pipeline for ever, and little else."""
    pipeline = bench().pipeline()
    with Ledger.of(pipeline):
        pass
    admin = AdminClient({"bootstrap.servers": pipeline.kafka.bootstrap_servers})
    resource = ConfigResource(ConfigResource.Type.TOPIC, pipeline.ledger.topic)
    assert admin.describe_configs([resource])[resource].result(timeout=30)["cleanup.policy"].value == "compact"


# -- a sink partition's producer -------------------------------------------------------------------


def test_positions_of_many_partitions_fit_into_small_requests(line: MakeLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers store each request as one batch of records, whose size `__consumer_offsets` limits."""
    monkeypatch.setattr("tailrace.kafka.clients.OFFSETS_BYTES", 16_384, raising=False)
    one = line(300)
    one.send([b"a"], partition=0)
    one.run()  # creates __consumer_offsets
    with offsets_batches_of(one, 32_768):
        one.send([b"b"], partition=299)
        one.run()
    assert one.values() == [b"a", b"b"]
    with Ledger.of(one.pipeline()) as ledger:
        found = ledger.positions((one.source, number) for number in range(300))
    assert len(found) == 300
    assert (found[one.source, 0], found[one.source, 299]) == (1, 1)


@contextlib.contextmanager
def offsets_batches_of(one: Line, most: int) -> Iterator[None]:
    """Let the brokers store batches of at most this size in `__consumer_offsets` while the block runs."""
    topic = ConfigResource.Type.TOPIC, "__consumer_offsets"
    admin = AdminClient({"bootstrap.servers": one.kafka})

    def change(value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry("max.message.bytes", value, incremental_operation=operation)
        (future,) = admin.incremental_alter_configs([ConfigResource(*topic, incremental_configs=[entry])]).values()
        future.result(30)

    def limit() -> int:
        (future,) = admin.describe_configs([ConfigResource(*topic)]).values()
        return int(future.result(30)["max.message.bytes"].value)

    before = limit()
    change(str(most), AlterConfigOpType.SET)
    wait_until(lambda: limit() == most, "the limit to apply", 30)
    try:
        yield
    finally:
        change(None, AlterConfigOpType.DELETE)
        wait_until(lambda: limit() == before, "the limit to be lifted", 30)


def test_driver_reads_the_ledger_behind_all_that_was_committed_before_it_took_over(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that is cut off from the others tells an end of former times."""
    one = bench().pipeline(ledger={"partitions": 1})
    place = (one.ledger.topic, 0)
    with Ledger.of(one) as first:
        first.take()
        first.write(plan_of(one, 0, 1), {})
        former = Cluster(one.kafka).latest([place])
        first.write(plan_of(one, 1, 1), {})
    written = Cluster(one.kafka).latest([place])
    monkeypatch.setattr(Cluster, "latest", lambda *_: former)
    with Ledger.of(one) as standby, Ledger.of(one) as second:
        assert standby._ends([place]) == former
        second.take()
        assert second.latest() == plan_of(one, 1, 1)
        assert second._ends([place])[place] > written[place]
        second.write(plan_of(one, 2, 1), {})
        again = second._ends([place])[place]
        second.take()  # as a driver does that outlasted its brokers
        assert second._ends([place])[place] > again + 1
        assert second.latest() == plan_of(one, 2, 1)
        assert second.latest("another") is None


def test_driver_that_is_replaced_while_it_takes_over_is_fenced(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its question for the ledger's end needs its transactional id."""
    one = bench().pipeline(ledger={"partitions": 1})
    with Ledger.of(one) as first, Ledger.of(one) as second:
        monkeypatch.setattr(first, "_inform", after(second, first._inform))
        with pytest.raises(errors.DriverFenced, match="asking for the end of the ledger"):
            first.take()
        assert second.latest() is None


def test_driver_that_was_suspended_while_it_took_over_is_not_fenced(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers abort its transaction, and Kafka has one error for both. A start that fails is tried again."""
    one = bench().pipeline(ledger={"partitions": 1})
    with Ledger.of(one) as first, Ledger.of(one) as second:
        monkeypatch.setattr(first, "_inform", after(second, first._inform))
        first.prepare()
        second.prepare()
        monkeypatch.setattr(fences, "TRANSACTION_TIMEOUT", 0.0)  # as if it had passed
        with pytest.raises(errors.KafkaFailed, match="asking for the end of the ledger"):
            first.take()


def test_driver_whose_question_for_the_ledgers_end_took_too_long_can_ask_again(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that outlasts its brokers first asks whether it still leads, with the same producer."""
    one = bench().pipeline(ledger={"partitions": 1})
    with Ledger.of(one) as first:
        first.prepare()
        with monkeypatch.context() as hurry:
            hurry.setattr(ledger, "informed_end", impatiently)
            with pytest.raises(errors.BrokerUnreachable, match="asking for the end of the ledger"):
                first.take()
        assert first._asked is not None
        assert not first.overtaken()
        assert first._asked is None  # its transaction has ended
        first.take()
        first.write(plan_of(one, 0, 1), {})
        assert first.latest() == plan_of(one, 0, 1)


def impatiently(producer: Producer, topic: str, partition: int, _: float) -> int:
    """Ask for the end of a log, and wait for it no longer than a millisecond."""
    return informed_end(producer, topic, partition, 0.001)


def after(other: Ledger, inform: Callable[[Producer], None]) -> Callable[[Producer], None]:
    """Return the question for the ledger's end that is asked after another driver has taken over."""

    def late(producer: Producer) -> None:
        other.take()
        inform(producer)

    return late
