"""Every refusal has a way out: from the error, by the commands that it prints, to a running pipeline."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
)
from typer.testing import CliRunner

from support.pipelines import Bench, numbered
from support.threads import Line, Torn, first_part_only, nothing, recreated
from support.ways_out import follow
from tailrace import errors
from tailrace.admin.checks import State
from tailrace.admin.progress_checks import progress
from tailrace.cli.main import app
from tailrace.driver.thread_engine import ThreadEngine
from tailrace.gateway import Written
from tailrace.kafka.cluster import Cluster
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import markers_group
from tailrace.progress.plan import Plan, SinkPartition
from tailrace.progress.stream_plan import StreamPlan
from tailrace.testing import Record, consume, produce, wait_until

pytestmark = pytest.mark.integration

MakeLine = Callable[..., Line]
MakeBench = Callable[..., Bench]
Owners = Mapping[SinkPartition, str]


def filled(one: Line, each: int = 20) -> list[bytes]:
    """Put records into every source partition, and return them sorted."""
    for number in range(one.partitions):
        one.send(numbered(number * 1000, number * 1000 + each), partition=number)
    return sorted(b"%06d" % (number * 1000 + value) for number in range(one.partitions) for value in range(each))


def test_fenced_driver_runs_again_when_the_other_is_gone(line: MakeLine) -> None:
    """For TR-301, find the second driver of this name."""
    one = line()
    sent = filled(one)

    def overtaken(engine: ThreadEngine, plan: Plan, owners: Owners, gone: frozenset[str]) -> list[Written]:
        written = ThreadEngine.deliver(engine, plan, owners, gone)
        with Ledger.of(one.pipeline()) as other:
            other.take()
        return written

    with pytest.raises(errors.DriverFenced) as caught:
        one.run(overtaken, batch={"target": 0, "max_records": 10})
    assert "it has the same pipeline name" in caught.value.then
    one.run()
    assert one.values() == sent


@pytest.mark.takes(12)
def test_batch_that_would_be_cut_differently_is_finished_with_its_previous_settings(bench: MakeBench) -> None:
    """For TR-302, start once with the previous settings, then change them."""
    one = bench(partitions=2)
    one.write(
        "faulty.py",
        f"""
        from pathlib import Path
        from pyspark.sql import functions as F

        def faulty(frame):
            def check(value):
                if bytes(value) == b"000003" and not Path({str(one.folder)!r}, "mended").exists():
                    raise ValueError("the fault of the test")
                return bytes(value)
            return frame.select(F.udf(check, "binary")("value").alias("value"))
        """,
    )
    for partition in range(2):
        one.send(numbered(partition * 10, partition * 10 + 10), partition)
    before: dict[str, Any] = {"process": {"function": "faulty.py:faulty", "partitions": 3}}
    with pytest.raises(errors.FunctionFailed):
        one.run(**before)
    one.settle()
    (one.folder / "mended").touch()
    with pytest.raises(errors.CutChanged) as caught:
        one.run(process={"function": "faulty.py:faulty", "partitions": 2})
    assert "finish the batch as it was begun (`tailrace run FILE --batch`), then change" in caught.value.then
    one.run(**before)
    one.run(process={"function": "faulty.py:faulty", "partitions": 2})
    assert one.values() == sorted([*numbered(0, 20)], key=lambda value: value or b"")


@pytest.mark.takes(11)
@pytest.mark.parametrize("done", [True, False])
def test_owner_continues_after_markers_ahead_of_the_ledger(line: MakeLine, done: bool) -> None:
    """For TR-303, a ledger restored from an older copy, the owner checks the output and says where to continue."""
    one = line(1)
    filled(one, 10)
    one.run()
    with Ledger.of(one.pipeline()) as ledger:
        ledger.take()
        old = ledger.latest()
    assert isinstance(old, Plan)
    for start in (10, 20):
        one.send(numbered(start, start + 10), partition=0)
        one.run()
    with Ledger.of(one.pipeline()) as ledger:
        ledger.take()
        ledger.write(replace(old, done=done), {})
    with pytest.raises(errors.MarkerConflict) as caught:
        one.run()
    one.send(numbered(30, 40), partition=0)
    follow(one, caught.value, f"{one.source}:0=30")
    one.run()
    assert one.values() == numbered(0, 40)


def test_commit_in_doubt_is_resolved_by_the_next_start(line: MakeLine) -> None:
    """For TR-304, the sink partition whose commit was in doubt is found delivered, and skipped."""
    one = line()
    sent = filled(one)

    def doubtful(engine: ThreadEngine, plan: Plan, owners: Owners, gone: frozenset[str]) -> list[Written]:
        engine.part(plan, 0, owners, gone)
        raise errors.CommitInDoubt("the commit was not answered")

    with pytest.raises(errors.CommitInDoubt) as caught:
        one.run(doubtful)
    assert "tailrace run FILE" in caught.value.then
    one.run()
    assert one.values() == sent


@pytest.mark.takes(10)
def test_ledger_with_too_few_partitions_gets_more(bench: MakeBench) -> None:
    """For TR-305, it gets the number that the message names."""
    one = bench()
    sent = numbered(0, 10)
    one.send(sent)
    small: dict[str, Any] = {
        "ledger": {"topic": f"{one.name}.ledger", "partitions": 2},
        "process": {"partitions": 4},
    }
    with pytest.raises(errors.LedgerUnusable) as caught:
        one.run(**small)
    found = re.search(r"at least (\d+) partitions", caught.value.then)
    assert found is not None
    admin, topic = AdminClient({"bootstrap.servers": one.kafka}), small["ledger"]["topic"]
    admin.create_partitions([NewPartitions(topic, int(found[1]))])[topic].result(30)
    cluster = Cluster(one.pipeline().kafka)
    wait_until(lambda: cluster.topics().get(topic) == int(found[1]), "the ledger's new partitions", 30)
    one.run(**small)
    assert one.values() == sent


def test_ledger_that_deletes_gets_the_policy_that_the_message_names(line: MakeLine) -> None:
    """For TR-305, the command is kafka-configs.sh; here a client sends the same request."""
    one = line(1)
    sent = filled(one)
    topic = one.topics("ledger", 8, **{"cleanup.policy": "delete"})
    with pytest.raises(errors.LedgerUnusable) as caught:
        one.run(ledger={"topic": topic})
    found = re.search(r"--entity-name (\S+) --add-config (\S+)=(\S+)", caught.value.then)
    assert found is not None
    entry = ConfigEntry(found[2], found[3], incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, found[1], incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": one.kafka})  # kept: its requests end with it
    admin.incremental_alter_configs([resource])[resource].result(30)
    one.run(ledger={"topic": topic})
    assert one.values() == sent


def test_pipeline_whose_markers_were_deleted_continues_where_its_owner_says(line: MakeLine) -> None:
    """For TR-306, half of the batch is delivered; its owner continues at its start or at its end."""
    one = line()
    filled(one)
    one.run()
    for number in range(one.partitions):
        one.send(numbered(number * 1000 + 20, number * 1000 + 30), partition=number)
    with pytest.raises(errors.QueryFailed):
        one.run(first_part_only)
    group = markers_group(one.name)
    admin = AdminClient({"bootstrap.servers": one.kafka})
    admin.delete_consumer_groups([group])[group].result(30)
    with pytest.raises(errors.ProgressMissing) as caught:
        one.run()
    before = one.values()
    follow(one, caught.value, f"{one.source}:0=20 {one.source}:1=20")
    one.run()
    assert sorted(set(one.values())) == sorted({*before, *filled_to(one, 30)})


@pytest.mark.parametrize("longer", [False, True])
def test_pipeline_that_goes_back_to_its_earlier_ledger_continues_where_its_owner_says(
    line: MakeLine, longer: bool
) -> None:
    """For TR-306: another ledger topic was used meanwhile, and what it delivered must not come out again.

    With the longer history, the earlier ledger has the higher batch number.
    """
    one = line(1)
    for start in range(0, 30, 10) if longer else (0,):
        one.send(numbered(start, start + 10), partition=0)
        one.run()
    sent = 30 if longer else 10
    other: dict[str, Any] = {"ledger": {"topic": f"{one.name}.ledger2"}}
    with pytest.raises(errors.ProgressMissing) as caught:
        one.run(**other)
    follow(one, caught.value, f"{one.source}:0={sent}", **other)
    one.send(numbered(sent, sent + 10), partition=0)
    one.run(**other)
    one.send(numbered(sent + 10, sent + 20), partition=0)
    with pytest.raises(errors.ProgressMissing, match="the ledger is behind") as caught:
        one.run()
    assert one.values() == numbered(0, sent + 10)
    follow(one, caught.value, f"{one.source}:0={sent + 10}")
    for start in (sent + 20, sent + 30, sent + 40):  # and once more, with a batch after the command's plan
        one.run()
        one.send(numbered(start, start + 10), partition=0)
    one.run()
    assert one.values() == numbered(0, sent + 50)
    with pytest.raises(errors.ProgressMissing, match="the ledger is behind"):
        one.run(**other)


@pytest.mark.parametrize("killed", [False, True])
def test_ledger_restored_from_an_older_backup_is_refused(line: MakeLine, killed: bool) -> None:
    """For TR-306: the brokers deleted the markers with the topic, and only the pipeline's group knows later batches."""
    one = line(1)
    one.send(numbered(0, 10))
    one.run()
    ledger = f"{one.name}.ledger"
    backup = consume(one.kafka, ledger)
    one.send(numbered(10, 20))
    if killed:
        with pytest.raises(errors.QueryFailed):
            one.run(delivered_unnoted)
    else:
        one.run()
    recreated(one, ledger, 8, **{"cleanup.policy": "compact"})
    produce(one.kafka, ledger, [Record(each.value, each.key, partition=each.partition) for each in backup])
    one.send(numbered(20, 30))
    with pytest.raises(errors.ProgressMissing, match="the ledger is behind") as caught:
        one.run()
    assert one.values() == numbered(0, 20)
    follow(one, caught.value, f"{one.source}:0=20")
    one.run()
    assert one.values() == numbered(0, 30)


def test_first_batch_that_a_restored_ledger_has_open_is_not_delivered_again(line: MakeLine) -> None:
    """No marker was committed before it, so their absence says nothing; the group was written when it was done."""
    one = line(1)
    one.send(numbered(0, 10))
    with pytest.raises(errors.QueryFailed):
        one.run(delivered_unnoted)
    ledger = f"{one.name}.ledger"
    backup = consume(one.kafka, ledger)
    one.run()
    recreated(one, ledger, 8, **{"cleanup.policy": "compact"})
    produce(one.kafka, ledger, [Record(each.value, each.key, partition=each.partition) for each in backup])
    with pytest.raises(errors.ProgressMissing, match="the ledger is behind") as caught:
        one.run()
    follow(one, caught.value, f"{one.source}:0=10")
    one.run()
    assert one.values() == numbered(0, 10)


def delivered_unnoted(engine: ThreadEngine, plan: Plan, owners: Owners, gone: frozenset[str]) -> list[Written]:
    """Deliver the batch, then fail, as a driver that is killed before it has noted that."""
    ThreadEngine.deliver(engine, plan, owners, gone)
    raise Torn


def filled_to(one: Line, each: int) -> list[bytes]:
    """Return the records of every source partition."""
    return [b"%06d" % (number * 1000 + value) for number in range(one.partitions) for value in range(each)]


@pytest.mark.takes(11)
def test_pipeline_continues_with_its_previous_checkpoint_folder(bench: MakeBench) -> None:
    """For TR-307, point to the folder that the pipeline used before."""
    one = bench()
    one.write("first.py", "def first(frame):\n    return frame.dropDuplicates(['value']).select('value')\n")
    sections: dict[str, Any] = {"process": {"function": "first.py:first"}}
    one.send([b"a", b"b", b"a"])
    one.run(checkpoint=str(one.folder / "state"), **sections)
    one.send([b"b", b"c"])
    with pytest.raises(errors.CheckpointMismatch) as caught:
        one.run(checkpoint=str(one.folder / "elsewhere"), **sections)
    assert "point `checkpoint` to the folder that this pipeline used before" in caught.value.then
    one.run(checkpoint=str(one.folder / "state"), **sections)
    assert one.values() == [b"a", b"b", b"c"]


@pytest.mark.takes(20)
def test_pipeline_with_the_checkpoint_folder_of_another_is_refused(bench: MakeBench) -> None:
    """The folder ends with the same batch number, and with other offsets: the records in between would be lost."""
    one = bench()
    one.write("first.py", "def first(frame):\n    return frame.dropDuplicates(['value']).select('value')\n")
    sections: dict[str, Any] = {"process": {"function": "first.py:first"}}
    own, others = str(one.folder / "state"), str(one.folder / "other")
    one.send([b"a"])
    one.run(checkpoint=own, **sections)
    one.send([b"b"])
    one.run(one.pipeline(pipeline=f"{one.name}-2", sink={"topic": one.topics("out")}, checkpoint=others, **sections))
    one.send([b"c"])
    with pytest.raises(errors.CheckpointMismatch, match=r"the checkpoint \S+ belongs to the query") as caught:
        one.run(checkpoint=others, **sections)
    assert "point `checkpoint` to the folder that this pipeline used before" in caught.value.then
    assert one.values() == [b"a"]
    one.run(checkpoint=own, **sections)
    assert one.values() == [b"a", b"b", b"c"]


@pytest.mark.takes(20)
@pytest.mark.parametrize("lost", ["plan", "folder"])
def test_pipeline_continues_if_its_plan_or_its_folder_names_no_query(bench: MakeBench, lost: str) -> None:
    """Spark gives a folder without an id a new one, which the start after that must not take for another query's."""
    one = bench()
    one.write("first.py", "def first(frame):\n    return frame.dropDuplicates(['value']).select('value')\n")
    sections: dict[str, Any] = {"process": {"function": "first.py:first"}, "checkpoint": str(one.folder / "state")}
    one.send([b"a"])
    one.run(**sections)
    if lost == "folder":
        (one.folder / "state" / "metadata").unlink()
        (one.folder / "state" / ".metadata.crc").unlink()
    else:
        with Ledger.of(one.pipeline(**sections)) as ledger:
            ledger.take()
            plan = ledger.latest()
            assert isinstance(plan, StreamPlan)
            ledger.write(replace(plan, query=""), {})
    one.run(**sections)
    one.send([b"a", b"b"])
    one.run(**sections)
    assert one.values() == [b"a", b"b"]


def test_batch_whose_input_was_truncated_is_delivered_by_the_next_start(line: MakeLine) -> None:
    """For TR-308, nothing of the attempt is visible."""
    one = line()
    sent = filled(one)

    def cut(engine: ThreadEngine, plan: Plan, owners: Owners, gone: frozenset[str]) -> list[Written]:
        raise errors.InputCutOff("the input ended before its end")

    with pytest.raises(errors.InputCutOff) as caught:
        one.run(cut)
    assert "tailrace run FILE" in caught.value.then
    assert one.values() == []
    one.run()
    assert one.values() == sent


def test_batch_that_was_not_read_to_its_end_is_delivered_by_a_function_that_reads(line: MakeLine) -> None:
    """For TR-309, the attempt was aborted; the batch is delivered once the function reads to the end."""
    one = line()
    sent = filled(one)

    def unread(engine: ThreadEngine, plan: Plan, owners: Owners, gone: frozenset[str]) -> list[Written]:
        engine.part(plan, 0, owners, gone)
        raise errors.InputUnread("the function stopped", then="let the function read its input to the end")

    with pytest.raises(errors.InputUnread) as caught:
        one.run(unread)
    assert "read its input to the end" in caught.value.then
    one.run()
    assert one.values() == sent


@pytest.mark.takes(12)
def test_pipeline_continues_with_another_sink_when_its_owner_accepts_that(line: MakeLine) -> None:
    """For TR-310, the old configuration finishes its batch, then the new one is accepted."""
    one = line()
    sent = filled(one)
    with pytest.raises(errors.QueryFailed):
        one.run(nothing)
    other = one.topics("other")
    with pytest.raises(errors.PlanOfAnother) as caught:
        one.run(sink={"topic": other})
    assert "run the old configuration with --batch" in caught.value.then
    one.run()
    follow(one, caught.value, sink={"topic": other})
    one.send([b"999999"], partition=0)
    one.run(sink={"topic": other})
    assert one.values() == sent
    assert one.values(other) == [b"999999"]


def test_doctor_names_a_changed_sink_before_a_start_does(line: MakeLine) -> None:
    """It was green, and the start refused; once the last batch is done, the command that accepts it is enough."""
    one = line(1)
    filled(one, 10)
    one.run()
    changed = one.pipeline(sink={"topic": one.topics("other")})
    found = [each for each in progress(changed, one.folder, one.folder / "f.yaml") if each.name == "last plan"]
    assert [each.state for each in found] == [State.FAIL]
    assert found[0].hint.endswith("if you changed the sink: tailrace offsets accept FILE")
    same = [each for each in progress(one.pipeline(), one.folder, one.folder / "f.yaml") if each.name == "last plan"]
    assert [each.state for each in same] == [State.OK]


@pytest.mark.parametrize("output", [(), ("--output", "json")])
def test_sink_of_the_last_plan_needs_no_acceptance(line: MakeLine, output: tuple[str, ...]) -> None:
    """With the former configuration the command said that it had changed the plan, and the next start was refused."""
    one = line(1)
    filled(one, 10)
    one.run()
    file = one.folder / "former.yaml"
    file.write_text(one.pipeline().model_dump_json(by_alias=True, exclude_defaults=True))
    with Ledger.of(one.pipeline()) as ledger:
        before = ledger.latest()
        for dry in ((), ("--dry-run",)):
            done = CliRunner().invoke(app, ["offsets", "accept", str(file), "--yes", *dry, *output])
            assert done.exit_code == 0, done.output
            if output:
                assert json.loads(done.stdout)["changed"] is False
            else:
                assert f"unchanged: the last plan of {one.name} has the sink {one.sink!r}" in done.output
                assert "set sink.topic" in done.output
        assert ledger.latest() == before


def test_pipeline_whose_source_was_recreated_continues_at_its_beginning(line: MakeLine) -> None:
    """For TR-310, run the command that the message names."""
    one = line(1)
    filled(one, 10)
    one.run()
    recreated(one)
    one.send(numbered(500, 530), partition=0)
    with pytest.raises(errors.PlanOfAnother) as caught:
        one.run()
    follow(one, caught.value)
    one.run()
    assert one.values() == [*numbered(0, 10), *numbered(500, 530)]
