"""The loop and the protocol without Spark, against a real Kafka: only the engine differs from a run with Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from support.expiry import expire
from support.pipelines import events_of
from support.threads import Line, first_part_only, nothing, recreated, run_in_threads, running
from tailrace import errors
from tailrace.config import Delivery
from tailrace.driver.thread_engine import ThreadEngine
from tailrace.gateway import Written
from tailrace.kafka.cluster import Cluster
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import Marker
from tailrace.progress.plan import BatchId, Plan, Range, SinkPartition
from tailrace.progress.stream_plan import BEFORE, Slice, StreamPlan, offsets_json
from tailrace.testing import Record, consume, produce, wait_until

pytestmark = pytest.mark.integration

MakeLine = Callable[..., Line]
HEAD = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n'


def numbers(start: int, end: int) -> list[bytes]:
    """Return distinct values that sort in their order."""
    return [b"%05d" % number for number in range(start, end)]


def filled(one: Line, each: int = 50) -> list[bytes]:
    """Put records into every source partition, and return them sorted."""
    for number in range(one.partitions):
        one.send(list(numbers(number * 1000, number * 1000 + each)), partition=number)
    return sorted(value for number in range(one.partitions) for value in numbers(number * 1000, number * 1000 + each))


def test_records_are_delivered_once_and_in_order(line: MakeLine) -> None:
    """This holds over several batches, and again after new records have arrived."""
    one = line()
    sent = filled(one, 300)
    events = one.run(batch={"max_records": 100})
    assert len(events_of(events, "written")) == 6
    one.send([b"99999"], partition=0)
    one.run()
    assert one.values() == [*sent, b"99999"]
    got = [each.value or b"" for each in consume(one.kafka, one.sink)]
    for number in range(2):
        mine = [value for value in got if value.startswith(b"%02d" % number)]
        assert mine == sorted(mine)


@pytest.mark.parametrize("how", [nothing, first_part_only])
def test_open_batch_is_finished_from_its_plan(line: MakeLine, how: Any) -> None:
    """It does not matter how much of it was delivered, or that more records have arrived meanwhile."""
    one = line(3)
    sent = filled(one)
    with pytest.raises(errors.QueryFailed):
        one.run(how)
    one.send([b"99999"], partition=0)
    events = one.run()
    planned, written = events_of(events, "planned"), events_of(events, "written")
    assert [(each["batch"], each["replay"], each["sinks"]) for each in planned] == [(0, True, 3), (1, False, 1)]
    assert written[0]["skipped"] == (1 if how is first_part_only else 0)
    assert one.values() == [*sent, b"99999"]


@pytest.mark.takes(14)
def test_open_batch_of_a_thousand_ranges_is_finished_from_its_plan(line: MakeLine) -> None:
    """Each sink partition reads five hundred ranges, and nothing is read twice."""
    one = line(1000)
    source: dict[str, Any] = {"source": {"partitions": 2}}
    produce(one.kafka, one.source, [Record(value, partition=number) for number, value in enumerate(numbers(0, 1000))])
    with pytest.raises(errors.QueryFailed):
        one.run(first_part_only, **source)
    (written,) = events_of(one.run(**source), "written")
    assert (written["in"], written["sinks"], written["skipped"]) == (500, 2, 1)
    assert one.values() == numbers(0, 1000)


def test_replay_keeps_its_sink_partitions_whatever_the_settings(line: MakeLine) -> None:
    """The plan says what each sink partition reads, not the configuration of the run that finishes it."""
    one = line(4)
    sent = filled(one)
    with pytest.raises(errors.QueryFailed):
        one.run(first_part_only, sink={"partitions": 2})
    one.run(sink={"partitions": 1})
    assert one.values() == sent


@pytest.mark.parametrize("left", ["done", "untouched", "in part", "all written"])
def test_plan_of_version_0_1_is_finished(line: MakeLine, left: str) -> None:
    """The batch in a ledger of version 0.1 is done or gets finished, and no record comes twice."""
    one = line()
    sent = filled(one)
    plan = old_plan(one, done=left == "done")
    with Ledger.of(one.pipeline()) as ledger:
        ledger.take()
        ledger.write(plan, {(one.source, 0): 0, (one.source, 1): 0})
    if left in {"in part", "all written"}:
        for part in range(1 if left == "in part" else 2):
            write_by_hand(one, plan, part)
    one.run()
    expected = [each for each in sent if left != "done" or int(each) % 1000 >= 20]
    assert one.values() == expected
    with Ledger.of(one.pipeline()) as ledger:
        last = ledger.latest()
        assert last is not None
        assert last.ends == {(one.source, 0): 50, (one.source, 1): 50}


def test_plan_of_version_0_1_that_cannot_be_repeated_is_refused(line: MakeLine) -> None:
    """Its good and rejected records had separate sink partitions; the message names the way out."""
    one = line()
    filled(one)
    slices = tuple(Slice(f"{one.source}-{number}:0-20") for number in (0, 1, 0, 1))
    plan = old_plan(one, slices=slices)
    with Ledger.of(one.pipeline()) as ledger:
        ledger.take()
        ledger.write(plan, {})
    write_by_hand(one, plan, 0)
    with pytest.raises(errors.CutChanged, match=r"begun by version 0\.1") as caught:
        one.run()
    assert "finish the batch with version 0.1" in caught.value.then


def old_plan(one: Line, done: bool = False, slices: tuple[Slice, ...] = ()) -> StreamPlan:
    """Return a plan as version 0.1 wrote it: the first 20 records of two partitions."""
    ends = {(one.source, number): 20 for number in range(2)}
    return StreamPlan(
        one.name,
        "query",
        BatchId(0),
        tuple(Range(one.source, number, 0, 20) for number in range(2)),
        slices or tuple(Slice(f"{one.source}-{number}:0-20") for number in range(2)),
        HEAD + offsets_json(ends),
        at=time.time(),
        done=done,
        version=BEFORE,
    )


def write_by_hand(one: Line, plan: StreamPlan, part: int) -> None:
    """Write one sink partition of an old plan, as version 0.1 did."""
    pipeline = one.pipeline()
    producer = Producer(
        {"bootstrap.servers": one.kafka, "transactional.id": f"tailrace.{one.name}.{part}", "linger.ms": 0}
    )
    consumer = Consumer({"bootstrap.servers": one.kafka, "group.id": f"tailrace.{one.name}.markers"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in numbers(part * 1000, part * 1000 + 20):
        producer.produce(one.sink, value)
    marker = Marker.of(plan.batch, plan.digest, plan.sinks)
    place = TopicPartition(pipeline.ledger.topic, part, marker.next, marker.metadata)
    producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), 30)
    producer.commit_transaction(30)
    consumer.close()


def test_plan_of_another_sink_is_refused_and_accepted_on_demand(line: MakeLine) -> None:
    """Of two pipelines with one name, the second does not deliver the first one's open batch into its own sink."""
    one = line()
    sent = filled(one)
    with pytest.raises(errors.QueryFailed):
        one.run(first_part_only)
    other = one.topics("other")
    with pytest.raises(errors.PlanOfAnother, match="planned for the sink") as caught:
        one.run(sink={"topic": other})
    assert "tailrace offsets accept FILE" in caught.value.then
    assert one.values(other) == []
    one.run()
    assert one.values() == sent


def test_recreated_topic_is_refused_or_read_from_its_beginning(line: MakeLine) -> None:
    """It has grown past the stored offsets, so its first records would otherwise be skipped silently."""
    one = line(1)
    filled(one, 10)
    one.run()
    recreated(one)
    one.send(list(numbers(500, 530)), partition=0)
    with pytest.raises(errors.PlanOfAnother, match="deleted and created again") as caught:
        one.run()
    assert "on_data_loss: reset" in caught.value.then
    events = one.run(source={"on_data_loss": "reset"})
    assert "created again" in events_of(events, "reset")[0]["what"]
    assert one.values() == [*numbers(0, 10), *numbers(500, 530)]
    assert events_of(one.run(source={"on_data_loss": "reset"}), "reset") == []


@pytest.mark.parametrize("delivery", list(Delivery))
def test_batch_that_ends_at_the_offset_of_the_one_before_is_noted_as_done(line: MakeLine, delivery: Delivery) -> None:
    """The topic was created again meanwhile, and has been filled to the same offset."""
    one = line(1)
    sections: dict[str, Any] = {"source": {"on_data_loss": "reset"}, "sink": {"delivery": delivery.value}}
    with running(one, **sections) as driver:
        one.send(list(numbers(0, 5)), partition=0)
        wait_until(lambda: len(events_of(driver.events, "idle")) == 1, "the first batch to be noted", 60)
        recreated(one)
        one.send(list(numbers(5, 10)), partition=0)
        wait_until(lambda: len(one.values()) == 10, "the second batch", 60)
        wait_until(lambda: len(events_of(driver.events, "idle")) >= 2, "the second batch to be noted", 20)
    with Ledger.of(one.pipeline()) as ledger:
        plan = ledger.latest()
        assert plan is not None
        assert plan.done
    one.run(**sections)
    assert one.values() == list(numbers(0, 10))


@pytest.mark.parametrize("loss", ["stop", "reset"])
def test_topic_created_again_while_a_batch_is_read_is_not_taken_for_the_old_one(line: MakeLine, loss: str) -> None:
    """The plan's offsets mean other records in the new topic, which would come out twice."""
    one = line(1)
    filled(one, 20)

    def between(
        engine: ThreadEngine, plan: Plan, owners: Mapping[SinkPartition, str], gone: frozenset[str]
    ) -> list[Written]:
        recreated(one)
        one.send(list(numbers(500, 530)), partition=0)
        return ThreadEngine.deliver(engine, plan, owners, gone)

    with pytest.raises(errors.PlanOfAnother, match="created again") as caught:
        one.run(between, source={"on_data_loss": loss})
    assert ("on_data_loss: reset" in caught.value.then) is (loss == "stop")
    assert one.values() == []
    one.run(source={"on_data_loss": "reset"})
    assert one.values() == [*numbers(500, 530)]


def test_planned_records_that_expire_are_counted_as_lost(line: MakeLine) -> None:
    """With `reset`, an event reports the records of an open batch that the brokers have deleted."""
    one = line(1)
    sent = filled(one, 40)
    with pytest.raises(errors.QueryFailed):
        one.run(nothing)
    expire(one.kafka, one.source, 15)
    with pytest.raises(errors.OffsetsOutOfRange):
        one.run()
    events = one.run(source={"on_data_loss": "reset"})
    assert "15 planned offsets, 0 to 14, no longer exist" in events_of(events, "reset")[0]["what"]
    assert one.values() == sent[15:]


@pytest.mark.parametrize("before", [1, 4, 8])
def test_ledger_that_gets_more_partitions_keeps_its_plans(line: MakeLine, before: int) -> None:
    """As TR-305 advises, the pipeline continues where it was, although its group's offsets were lost."""
    one = line(1)
    sent = filled(one, 20)
    sections: dict[str, Any] = {"ledger": {"topic": f"{one.name}.ledger", "partitions": before}}
    one.run(**sections)
    admin = AdminClient({"bootstrap.servers": one.kafka})
    topic = sections["ledger"]["topic"]
    admin.create_partitions([NewPartitions(topic, 32)])[topic].result(30)
    cluster = Cluster(one.pipeline().kafka)
    wait_until(lambda: cluster.topics().get(topic) == 32, "32 partitions of the ledger", 30)
    one.send([b"99999"], partition=0)
    one.run(**sections)
    assert one.values() == [*sent, b"99999"]


def test_ledger_whose_plans_would_be_deleted_is_refused(line: MakeLine) -> None:
    """The message has the command that fixes it."""
    one = line(1)
    topic = one.topics("ledger", 8, **{"cleanup.policy": "delete"})
    with pytest.raises(errors.LedgerUnusable, match=r"cleanup\.policy=delete") as caught:
        one.run(ledger={"topic": topic})
    assert "--add-config cleanup.policy=compact" in caught.value.then


def test_rejected_records_after_a_function_stops_early_are_not_lost(line: MakeLine) -> None:
    """The function takes only the first batch; every record that could not be decoded still comes out."""
    one = line(1)
    (one.folder / "first.py").write_text("def first(batches):\n    yield next(batches).select(['id'])\n")
    values = [b"broken %05d" % number if number % 2 else b'{"id": %d}' % number for number in range(25_000)]
    one.send(list(values), partition=0)
    one.run(
        source={"format": "json", "schema": "id long"},
        process={"arrow": "first.py:first"},
        sink={"format": "json"},
    )
    assert one.rejected() == sorted(value for value in values if value.startswith(b"broken"))
    assert 0 < len(one.values()) < 12_500


def test_record_comes_out_once_although_a_replay_decides_differently(line: MakeLine) -> None:
    """The schema has changed since the batch began; each record is either accepted or rejected."""
    one = line(2)
    for number in range(2):
        one.send([b'{"id": "%d"}' % each for each in range(10)], partition=number)
    sections: dict[str, Any] = {"process": {"arrow": "keep.py:keep"}, "sink": {"format": "json"}}
    (one.folder / "keep.py").write_text(
        "def keep(batches):\n    for batch in batches:\n        yield batch.select(['id'])\n"
    )
    with pytest.raises(errors.QueryFailed):
        one.run(first_part_only, source={"format": "json", "schema": "id long"}, **sections)
    one.run(source={"format": "json", "schema": "id string"}, **sections)
    assert len(one.rejected()) == 10
    assert len(one.values()) == 10


def test_change_from_at_least_once_to_exactly_once_loses_nothing(line: MakeLine) -> None:
    """An open batch is finished as it began; the next ones have markers."""
    one = line(2)
    sent = filled(one)
    with pytest.raises(errors.QueryFailed):
        one.run(nothing, sink={"delivery": Delivery.AT_LEAST_ONCE.value})
    one.run()
    one.send([b"99999"], partition=0)
    one.run()
    assert one.values() == [*sent, b"99999"]
    with Ledger.of(one.pipeline()) as ledger:
        assert set(ledger.markers()) == {SinkPartition(0)}


def test_first_batch_after_a_change_to_exactly_once_is_finished_after_a_crash(line: MakeLine) -> None:
    """The batches before it have no markers, and that is no sign that markers were deleted."""
    one = line(2)
    sent = filled(one)
    events = one.run(sink={"delivery": Delivery.AT_LEAST_ONCE.value}, batch={"max_records": 40})
    assert len(events_of(events, "written")) > 1
    one.send([b"99999"], partition=0)
    with pytest.raises(errors.QueryFailed):
        one.run(nothing)
    one.run()
    assert one.values() == [*sent, b"99999"]


@pytest.mark.parametrize(
    "options",
    [
        {"acks": "1", "retries": "0", "max.in.flight.requests.per.connection": "10"},
        {"enable.idempotence": "false", "delivery.timeout.ms": "300000"},
    ],
)
def test_exactly_once_batch_is_finished_with_options_that_exclude_transactions(
    line: MakeLine, options: dict[str, str]
) -> None:
    """They belong to the deliveries at least once that follow it."""
    one = line(2)
    one.send([b"%05d" % number for number in range(50)], partition=0)
    one.send([b"%05d" % number for number in range(50, 100)], partition=1)
    with pytest.raises(errors.QueryFailed):
        one.run(first_part_only)
    at_least_once = {"delivery": "at-least-once", "options": options}
    one.run(sink=at_least_once)
    assert one.values() == [b"%05d" % number for number in range(100)]
    one.send([b"%05d" % number for number in range(100, 120)])
    one.run(sink=at_least_once)
    assert one.values() == [b"%05d" % number for number in range(120)]


def test_records_before_the_first_batch_of_a_pipeline_at_latest_are_read(line: MakeLine) -> None:
    """A restart before the first batch begins where the first start did, not at the end of its own day."""
    one = line(2)
    at_latest = {"auto.offset.reset": "latest"}
    filled(one)
    one.run(source=at_latest)
    one.send([b"99998", b"99999"], partition=0)
    events = one.run(source=at_latest)
    assert one.values() == [b"99998", b"99999"]
    assert [each["batch"] for each in events_of(events, "planned")] == [0]


def test_new_partition_is_read_from_its_beginning(line: MakeLine) -> None:
    """The partition appears between two runs."""
    one = line(1)
    sent = filled(one)
    one.run()
    admin = AdminClient({"bootstrap.servers": one.kafka})
    admin.create_partitions([NewPartitions(one.source, 2)])[one.source].result(30)
    cluster = Cluster(one.pipeline().kafka)
    wait_until(lambda: cluster.topics().get(one.source) == 2, "the second partition", 30)
    # A producer that has not seen the topic with one partition.
    produce(one.kafka, one.source, [Record(b"99999", partition=1)], options={"client.id": "fresh"})
    one.run()
    assert one.values() == [*sent, b"99999"]


def test_producers_stay_warm_over_batches(line: MakeLine) -> None:
    """Each sink partition needs one producer, whatever the number of batches."""
    one = line(2)
    filled(one, 200)
    events = one.run(batch={"max_records": 40})
    assert sum(each["producers"] for each in events_of(events, "written")) == 2
    assert isinstance(one.finished[-1].seconds, float)


def test_one_source_partition_can_be_read_by_several_tasks_at_once(line: MakeLine) -> None:
    """With `source.partitions`, each task has its own consumer, and every record comes once."""
    one = line(1)
    sent = filled(one, 4000)
    events = one.run(source={"partitions": 4}, batch={"max_records": 1000})
    assert {each["sinks"] for each in events_of(events, "written")} == {4}
    assert one.values() == sent


def test_batch_is_no_wider_than_the_ledger_though_there_are_more_slots(line: MakeLine) -> None:
    """A sink partition needs a partition of the ledger, which has 8 here."""
    one = line(16)
    produce(one.kafka, one.source, [Record(b"%05d" % number, partition=number % 16) for number in range(80_000)])
    pipeline, events = one.pipeline(source={"partitions": None}), list[dict[str, Any]]()
    run_in_threads(
        pipeline,
        one.folder,
        "wide",
        lambda: ThreadEngine(pipeline, one.folder, "wide", slots=16),
        lambda event: events.append(event.as_dict()),
        until_read=True,
    )
    assert {each["sinks"] for each in events_of(events, "planned")} == {8}
    assert one.values() == [b"%05d" % number for number in range(80_000)]
