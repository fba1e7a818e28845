"""A pipeline that begins where another one of Tailrace's is, with `offsets.from`, while that one may still run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from support.pipelines import events_of, numbered
from support.threads import Deliver, Line, first_part_only, killed_before_noting, nothing, recreated
from support.threads import running as running_in_a_thread
from tailrace import errors
from tailrace.cli.offsets import app
from tailrace.kafka.cluster import Cluster
from tailrace.progress import predecessor
from tailrace.progress.expiry import Retention
from tailrace.progress.lease import Lease, Phase, running
from tailrace.progress.marker import markers_group, offsets_group
from tailrace.progress.positions import Place
from tailrace.progress.stores import KafkaStore
from tailrace.testing import Record, produce, wait_until

pytestmark = pytest.mark.integration

MakeLine = Callable[..., Line]


def renamed(one: Line) -> Line:
    """Return a pipeline with a new name that begins where this one is; both use one ledger."""
    return Line(one.topics, one.folder, f"{one.name}-2", one.source, one.sink, one.partitions)


def following(old: Line) -> dict[str, Any]:
    """Return the sections of a pipeline that begins where this one is."""
    return {"ledger": {"topic": f"{old.name}.ledger"}, "offsets": {"from": f"tailrace.{old.name}"}}


def begin(new: Line, old: Line) -> None:
    """Start the pipeline with the new name."""
    new.run(**following(old))


def set_offset(new: Line, old: Line, offset: int) -> None:
    """Set the new pipeline's offset, as a person does."""
    file = new.folder / "new.yaml"
    file.write_text(
        json.dumps(new.pipeline(**following(old)).model_dump(mode="json", by_alias=True, exclude_defaults=True))
    )
    done = CliRunner().invoke(app, ["set", str(file), f"{old.source}:0={offset}", "--yes"], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def left_open(one: Line, how: Deliver) -> list[bytes | None]:
    """Write ten records to each partition and let a driver end in its batch; return the records."""
    for number in range(one.partitions):
        one.send(numbered(number * 10, number * 10 + 10), partition=number)
    with pytest.raises(errors.QueryFailed):
        one.run(how)
    return numbered(0, one.partitions * 10)


def test_new_name_waits_until_the_earlier_pipeline_has_ended(line: MakeLine) -> None:
    """Its driver may be finishing a batch, which its group does not have the end of."""
    one = line()
    expected, new = left_open(one, first_part_only), renamed(one)
    cluster, pipeline = Cluster(one.pipeline().kafka), one.pipeline()
    with Lease(pipeline, "0dd") as lease:
        lease.hold(Phase.LEADING)
        wait_until(lambda: running(cluster, one.name), "the membership of the earlier driver")
        with pytest.raises(errors.PipelineRunning, match=f"{one.name!r} is running .run 0dd on") as caught:
            begin(new, one)
        assert "then start this pipeline" in caught.value.then
        one.run()
    wait_until(lambda: not running(cluster, one.name), "the end of the earlier driver's membership")
    begin(new, one)
    assert one.values() == expected


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("question", [1, 2])
def test_new_name_repeats_no_batch_that_the_earlier_pipeline_finishes_meanwhile(
    line: MakeLine, monkeypatch: pytest.MonkeyPatch, question: int, more: bool
) -> None:
    """A driver that is not listed as running notes its batch, or plans another one, between two questions."""
    one = line(1)
    expected, new = left_open(one, killed_before_noting), renamed(one)
    ask, asked = KafkaStore._committed, list[str]()

    def continues_meanwhile(store: KafkaStore, group: str, places: Sequence[Place]) -> dict[Place, TopicPartition]:
        found = ask(store, group, places)
        asked.append(group)
        if len(asked) == question:
            if more:
                one.send(numbered(10, 20), partition=0)
            one.run()
        return found

    monkeypatch.setattr(KafkaStore, "_committed", continues_meanwhile)
    with contextlib.suppress(errors.PipelineRunning):
        begin(new, one)
    begin(new, one)
    assert asked[question - 1] == f"tailrace.{one.name}"
    assert one.values() == (numbered(0, 20) if more else expected)


def test_new_name_does_not_wait_if_the_earlier_pipeline_reads_other_topics(line: MakeLine) -> None:
    """A topic is taken out and continues under a new name, while its pipeline runs on with the other one."""
    one = line(1)
    other = one.topics("out-of-it", 1)
    one.send(numbered(0, 5))
    produce(one.kafka, other, [Record(each) for each in numbered(5, 10)])
    one.run(source={"topics": [one.source, other]})
    one.run()
    produce(one.kafka, other, [Record(each) for each in numbered(10, 15)])
    one.send(numbered(15, 20))
    with pytest.raises(errors.QueryFailed):
        one.run(nothing)  # its batch is open
    new = replace(renamed(one), source=other)
    cluster, pipeline = Cluster(one.pipeline().kafka), one.pipeline()
    with Lease(pipeline, "0dd") as lease:
        lease.hold(Phase.LEADING)
        wait_until(lambda: running(cluster, one.name), "the membership of the earlier driver")
        begin(new, one)
    assert one.values() == numbered(0, 15)


def test_beginning_from_another_group_is_kept_when_the_configuration_no_longer_names_it(line: MakeLine) -> None:
    """The section is taken out after the rename, and no record has come since: all would be delivered again."""
    one = line()
    for number in range(one.partitions):
        one.send(numbered(number * 10, number * 10 + 10), partition=number)
    one.run()
    new, ledger = renamed(one), {"topic": f"{one.name}.ledger"}
    begin(new, one)
    new.run(ledger=ledger)
    assert one.values() == numbered(0, 10 * one.partitions)
    one.send(numbered(90, 95))
    new.run(ledger=ledger)
    assert one.values() == numbered(0, 10 * one.partitions) + numbered(90, 95)


def test_beginning_from_another_group_is_kept_when_the_group_has_expired(line: MakeLine) -> None:
    """Brokers delete the offsets of a group without members, and a pipeline may be idle for longer."""
    one = line()
    one.send(numbered(0, 10))
    one.run()
    new = renamed(one)
    begin(new, one)
    admin, group = AdminClient({"bootstrap.servers": one.kafka}), f"tailrace.{one.name}"
    admin.delete_consumer_groups([group])[group].result(30)
    begin(new, one)
    one.send(numbered(10, 15))
    begin(new, one)
    assert one.values() == numbered(0, 15)


@pytest.mark.parametrize("open_", [False, True])
def test_new_name_begins_where_the_ledger_says_if_the_group_has_expired(line: MakeLine, open_: bool) -> None:
    """Without the group it was refused, with the advice to begin by auto.offset.reset: all would come again."""
    one = line(1)
    one.send(numbered(0, 10))
    if open_:
        with pytest.raises(errors.QueryFailed):
            one.run(killed_before_noting)
    else:
        one.run()
    admin, group = AdminClient({"bootstrap.servers": one.kafka}), f"tailrace.{one.name}"
    wait_until(lambda: not running(Cluster(one.pipeline().kafka), one.name), "the driver to have left")
    admin.delete_consumer_groups([group])[group].result(30)
    begin(renamed(one), one)
    one.send(numbered(10, 15))
    begin(renamed(one), one)
    assert one.values() == numbered(0, 15)


def forget(one: Line, monkeypatch: pytest.MonkeyPatch, *groups: str) -> None:
    """Delete groups of a pipeline, as brokers do if nobody uses them for longer than they keep them."""
    wait_until(lambda: not running(Cluster(one.pipeline().kafka), one.name), "the driver to have left")
    admin = AdminClient({"bootstrap.servers": one.kafka})
    for group in groups:
        admin.delete_consumer_groups([group])[group].result(30)
    monkeypatch.setattr("tailrace.progress.expiry.retention", lambda admin: Retention(0.0))


@pytest.mark.parametrize("both", [False, True])
def test_new_name_stays_where_it_began_when_nobody_knows_of_the_last_batch_any_more(
    line: MakeLine, monkeypatch: pytest.MonkeyPatch, *, both: bool
) -> None:
    """It began at the end of a batch that was not noted as done, and nobody knows any more that it is delivered."""
    one = line(1)
    one.send(numbered(0, 10))
    with pytest.raises(errors.QueryFailed):
        one.run(killed_before_noting)
    wait_until(lambda: not running(Cluster(one.pipeline().kafka), one.name), "the driver to have left")
    begin(renamed(one), one)
    forget(one, monkeypatch, markers_group(one.name), *([offsets_group(one.name)] if both else []))
    one.send(numbered(10, 15))
    begin(renamed(one), one)
    assert one.values() == numbered(0, 15)


@pytest.mark.parametrize("deleted", ["markers", "offsets", "nothing"])
def test_new_name_does_not_begin_where_nobody_knows_of_the_last_batch(
    line: MakeLine, monkeypatch: pytest.MonkeyPatch, deleted: str
) -> None:
    """The beginning of that batch would deliver a part again, and its end might leave one out."""
    one = line()
    sent = left_open(one, first_part_only)
    before = one.values()
    groups = {"markers": [markers_group(one.name)], "offsets": [markers_group(one.name), offsets_group(one.name)]}
    forget(one, monkeypatch, *groups.get(deleted, []))
    with pytest.raises(errors.OffsetStoreUnusable, match="nobody knows what of it is delivered") as caught:
        begin(renamed(one), one)
    assert "check the output" in caught.value.then
    assert one.values() == before
    consumer = Consumer({"bootstrap.servers": one.kafka, "group.id": offsets_group(one.name)})
    consumer.commit(offsets=[TopicPartition(one.source, 0, 10), TopicPartition(one.source, 1, 0)], asynchronous=False)
    consumer.close()
    begin(renamed(one), one)  # a person has moved it after the check
    assert one.values() == sent


def test_beginning_from_a_file_is_kept_when_the_file_is_gone(line: MakeLine) -> None:
    """The store is where others may write, until the ledger has a place of its own."""
    one = line(1)
    one.send(numbered(0, 10))
    file = one.folder / "offsets.json"
    file.write_text(json.dumps({"version": 1, "offsets": {one.source: {"0": 10}}}))
    one.run(offsets={"store": "file", "path": "offsets.json"})
    file.unlink()
    one.run()
    one.send(numbered(10, 15))
    one.run()
    assert one.values() == numbered(10, 15)


def test_new_name_that_was_taken_back_before_its_first_batch_repeats_nothing(line: MakeLine) -> None:
    """The earlier pipeline runs again meanwhile, so the new one begins where that is now, and not while it runs."""
    one = line(1)
    one.send(numbered(0, 5))
    one.run()
    new, cluster, pipeline = renamed(one), Cluster(one.pipeline().kafka), one.pipeline()
    begin(new, one)
    one.send(numbered(5, 10))
    with Lease(pipeline, "0dd") as lease:
        lease.hold(Phase.LEADING)
        wait_until(lambda: running(cluster, one.name), "the membership of the earlier driver")
        with pytest.raises(errors.PipelineRunning):
            begin(new, one)
        one.run()
    wait_until(lambda: not running(cluster, one.name), "the end of the earlier driver's membership")
    begin(new, one)
    assert one.values() == numbered(0, 10)
    one.send(numbered(10, 15))
    new.run(ledger={"topic": f"{one.name}.ledger"})
    assert one.values() == numbered(0, 15)


@pytest.mark.parametrize("lasting", [False, True])
def test_new_name_does_not_begin_where_a_broker_says_that_has_lost_the_group(
    line: MakeLine, monkeypatch: pytest.MonkeyPatch, lasting: bool
) -> None:
    """Its offsets are older than the plan that is done. It may be asked for some seconds, or for longer."""
    one = line(1)
    one.send(numbered(0, 5))
    one.run()
    new, ask, asked = renamed(one), KafkaStore._committed, list[str]()
    former = ask(KafkaStore(one.pipeline()), f"tailrace.{one.name}", [(one.source, 0)])
    one.send(numbered(5, 10))
    one.run()

    def answered(store: KafkaStore, group: str, places: Sequence[Place]) -> dict[Place, TopicPartition]:
        asked.append(group)
        return former if lasting or len(asked) < 5 else ask(store, group, places)

    monkeypatch.setattr(KafkaStore, "_committed", answered)
    monkeypatch.setattr(predecessor, "CERTAIN_AFTER", 2.0)
    refusal = pytest.raises(errors.KafkaFailed, match=f"{one.source}-0 at 5, of batch 0, .* batch 1 is done")
    with refusal if lasting else contextlib.nullcontext():
        begin(new, one)
    assert one.values() == numbered(0, 10)


def test_new_name_whose_group_was_lost_continues_as_its_refusal_advises(
    line: MakeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of the old configuration commits its offsets again."""
    monkeypatch.setattr(predecessor, "CERTAIN_AFTER", 0.0)
    one = line(1)
    one.send(numbered(0, 5))
    one.run()
    new, group = renamed(one), f"tailrace.{one.name}"
    [lost] = KafkaStore(one.pipeline())._committed(group, [(one.source, 0)]).values()
    one.send(numbered(5, 10))
    one.run()
    consumer = Consumer({"bootstrap.servers": one.kafka, "group.id": group})
    consumer.commit(offsets=[TopicPartition(one.source, 0, lost.offset, lost.metadata)], asynchronous=False)
    consumer.close()
    with pytest.raises(errors.KafkaFailed) as caught:
        begin(new, one)
    assert f"run the configuration of {one.name!r} once with --batch" in caught.value.then
    one.run()
    new.send(numbered(10, 12))
    begin(new, one)
    assert one.values() == numbered(0, 12)


def test_new_name_begins_where_a_person_has_moved_the_group(line: MakeLine) -> None:
    """Kafka's own tools leave no note next to an offset, and Tailrace's leave that of the plan that they write."""
    one = line(1)
    one.send(numbered(0, 5))
    one.run()
    file, new = one.folder / "old.yaml", renamed(one)
    file.write_text(json.dumps(one.pipeline().model_dump(mode="json", by_alias=True, exclude_defaults=True)))
    done = CliRunner().invoke(app, ["set", str(file), f"{one.source}:0=4", "--yes"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    begin(new, one)
    assert one.values() == [*numbered(0, 5), *numbered(4, 5)]
    moved = ConsumerGroupTopicPartitions(f"tailrace.{one.name}", [TopicPartition(one.source, 0, 3)])
    admin = AdminClient({"bootstrap.servers": one.kafka})
    admin.alter_consumer_group_offsets([moved])[moved.group_id].result(30)
    begin(renamed(new), one)
    assert one.values() == [*numbered(0, 4), *numbered(3, 5), *numbered(4, 5), *numbered(4, 5)]


def test_offsets_that_a_person_has_set_before_the_first_batch_are_kept(line: MakeLine) -> None:
    """They say where to begin, and the group that the configuration names does not."""
    one = line(1)
    one.send(numbered(0, 5))
    one.run()
    new = renamed(one)
    begin(new, one)
    set_offset(new, one, 3)
    begin(new, one)
    assert one.values() == [*numbered(0, 4), *numbered(3, 5), *numbered(4, 5)]


def test_new_name_does_not_begin_in_the_middle_of_a_topic_that_was_created_again(line: MakeLine) -> None:
    """The last batch of the earlier name was delivered, and not noted; its ends are of the topic that was deleted."""
    one = line(1)
    other = one.topics("kept", 1)
    both = {"topics": [one.source, other]}
    one.send(numbered(0, 5))
    produce(one.kafka, other, [Record(each) for each in numbered(5, 10)])
    with pytest.raises(errors.QueryFailed):
        one.run(killed_before_noting, source=both)
    recreated(one)
    one.send(numbered(10, 20))
    new, ledger, begins = renamed(one), {"topic": f"{one.name}.ledger"}, {"from": f"tailrace.{one.name}"}
    with pytest.raises(errors.PlanOfAnother, match=f"{one.source} was deleted and created again since batch 0") as told:
        new.run(ledger=ledger, offsets=begins, source=both)
    assert "source.on_data_loss: reset and --batch" in told.value.then
    one.run(source={**both, "on_data_loss": "reset"})
    new.run(ledger=ledger, offsets=begins, source=both)
    assert one.values() == numbered(0, 20)


@pytest.mark.parametrize("first", ["start", "set", "set again"])
def test_driver_of_the_earlier_name_that_lost_its_lease_delivers_nothing_more(line: MakeLine, first: str) -> None:
    """It was suspended, or cut off from the brokers for long enough: nothing lists it, and then it goes on."""
    one = line(1)
    one.send(numbered(0, 5))
    new = renamed(one)

    if first == "set again":
        one.run()
        begin(new, one)

    def run_both() -> None:
        with running_in_a_thread(one) as live:
            wait_until(lambda: events_of(live.events, "idle"), "the driver to be idle", 60)
            if first != "start":
                set_offset(new, one, 4)
            else:
                begin(new, one)
            one.send(numbered(5, 10))
            wait_until(lambda: live.ended, "the end of the driver", 60)

    with pytest.raises(errors.DriverFenced):
        run_both()
    begin(new, one)
    again = [] if first == "start" else numbered(4, 5)
    assert one.values() == sorted([*numbered(0, 10), *again], key=lambda value: value or b"")
