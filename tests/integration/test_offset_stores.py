"""Offset stores: a first start begins at the stored offsets; from then on the ledger decides."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.pipelines import Bench, as_json, events_of, numbered
from support.threads import Line, first_part_only, killed_before_noting
from support.zookeeper import ZooKeeper
from tailrace import errors
from tailrace.kafka import source
from tailrace.progress.stores import open_store

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]
MakeLine = Callable[..., Line]


def said(events: list[dict[str, Any]]) -> list[str]:
    """Return the reports about the store."""
    return [each["what"] for each in events_of(events, "offsets")]


def in_zookeeper(one: Bench, zookeeper: ZooKeeper, **more: Any) -> dict[str, Any]:
    """Return an `offsets` section for ZooKeeper, as older jobs use it."""
    return {"store": "zookeeper", "servers": zookeeper.servers, "path": f"/consumers/{one.name}/{{topic}}", **more}


def node(one: Bench) -> str:
    """Return the node that holds the offsets."""
    return f"/consumers/{one.name}/{one.source}"


def test_job_migrated_from_zookeeper_continues_at_its_offsets(bench: MakeBench, zookeeper: ZooKeeper) -> None:
    """No record before its offsets comes again, none after them is skipped, and the node is kept up to date."""
    one = bench(partitions=2)
    one.send(numbered(0, 10), partition=0)
    one.send(numbered(10, 30), partition=1)
    zookeeper.put(node(one), "0:4,1:15")
    offsets = in_zookeeper(one, zookeeper)
    events = one.run(offsets=offsets)
    assert one.values() == [*numbered(4, 10), *numbered(25, 30)]
    [what] = said(events)
    assert f"{one.source}-0 at 4, {one.source}-1 at 15" in what
    assert zookeeper.get(node(one))[0] == "0:10,1:20"
    one.send(numbered(30, 40), partition=1)
    assert said(one.run(offsets=offsets)) == []
    assert one.values() == [*numbered(4, 10), *numbered(25, 40)]
    assert zookeeper.get(node(one))[0] == "0:10,1:30"


def test_zookeeper_gets_one_write_per_batch_with_its_start(bench: MakeBench, zookeeper: ZooKeeper) -> None:
    """This is how older jobs write it; at the end, the node holds where the next run continues."""
    one = bench()
    one.send(numbered(0, 6))
    zookeeper.put(node(one), "0:0")
    before = zookeeper.get(node(one))[1]
    offsets = in_zookeeper(one, zookeeper)
    seen = []

    def look(event: dict[str, Any]) -> None:
        if event["event"] == "written":
            seen.append(zookeeper.get(node(one)))

    from tailrace.startup.run import run

    run(
        one.pipeline(offsets=offsets, batch={"max_records": 2}),
        one.folder,
        batch=True,
        emit=as_json(look),
        spark=one.spark,
    )
    assert seen == [("0:0", before + 1), ("0:2", before + 2), ("0:4", before + 3)]
    assert zookeeper.get(node(one)) == ("0:6", before + 4)


def test_partition_missing_in_the_store_begins_by_auto_offset_reset(bench: MakeBench, zookeeper: ZooKeeper) -> None:
    """This is reported."""
    one = bench(partitions=2)
    one.send(numbered(0, 5), partition=0)
    one.send(numbered(5, 10), partition=1)
    zookeeper.put(node(one), "1:3")
    events = one.run(offsets=in_zookeeper(one, zookeeper))
    assert one.values() == [*numbered(0, 5), *numbered(8, 10)]
    assert f"by auto.offset.reset: {one.source}-0 at 0" in said(events)[0]


@pytest.mark.takes(22)
def test_stored_offsets_out_of_range_are_refused(bench: MakeBench, zookeeper: ZooKeeper) -> None:
    """The error has their values; with `on_data_loss: reset` the pipeline continues and reports the gap."""
    one = bench()
    one.send(numbered(0, 3))
    zookeeper.put(node(one), "0:999")
    offsets = in_zookeeper(one, zookeeper)
    with pytest.raises(errors.OffsetsOutOfRange, match=r"-0: the next offset to read is 999, .* holds 0 to 3"):
        one.run(offsets=offsets)
    assert one.values() == []
    events = one.run(offsets=offsets, source={"on_data_loss": "reset"})
    assert "999" in events_of(events, "reset")[0]["what"]
    assert one.values() == numbered(0, 3)


@pytest.mark.parametrize(
    ("text", "what"), [("0=4", "is not of the form"), ("0:4,0:5", "twice"), ("0:-1", "is not of the form")]
)
def test_node_with_other_content_is_refused(bench: MakeBench, zookeeper: ZooKeeper, text: str, what: str) -> None:
    """The pipeline does not start on a guess."""
    one = bench()
    one.send(numbered(0, 3))
    zookeeper.put(node(one), text)
    with pytest.raises(errors.OffsetStoreUnusable, match=what):
        one.run(offsets=in_zookeeper(one, zookeeper))
    assert one.values() == []


def test_store_that_does_not_answer_stops_only_a_first_start(
    bench: MakeBench, tmp_path: Path, zookeeper: ZooKeeper
) -> None:
    """A first start needs its offsets; later the ledger has them, and the failure is only reported."""
    one = bench()
    one.send(numbered(0, 3))
    away = {"store": "zookeeper", "servers": "127.0.0.1:1", "options": {"timeout.ms": 500}}
    with pytest.raises(errors.OffsetStoreUnusable, match="does not answer"):
        one.run(offsets=away)
    assert one.values() == []
    one.run(offsets=in_zookeeper(one, zookeeper))
    one.send(numbered(3, 6))
    events = one.run(offsets=away)
    assert one.values() == numbered(0, 6)
    [what] = said(events)
    assert "does not answer" in what
    assert "continues, because" in what


def test_store_that_disagrees_is_reported_and_the_ledger_decides(bench: MakeBench, zookeeper: ZooKeeper) -> None:
    """The report tells a person who sets the node by hand that it has no effect."""
    one = bench()
    one.send(numbered(0, 3))
    offsets = in_zookeeper(one, zookeeper)
    one.run(offsets=offsets)
    zookeeper.put(node(one), "0:1")
    one.send(numbered(3, 6))
    events = one.run(offsets=offsets)
    assert one.values() == numbered(0, 6)
    [what] = said(events)
    assert f"it has {one.source}-0 at 1, which continues at 3" in what
    assert zookeeper.get(node(one))[0] == "0:6"


def test_node_changed_during_a_run_is_reported_and_overwritten(bench: MakeBench, zookeeper: ZooKeeper) -> None:
    """The pipeline continues where it is."""
    one = bench()
    one.send(numbered(0, 6))
    events: list[dict[str, Any]] = []

    def meddle(event: dict[str, Any]) -> None:
        events.append(event)
        if event["event"] == "written" and event["batch"] == 0:
            zookeeper.put(node(one), "0:5")

    from tailrace.startup.run import run

    pipeline = one.pipeline(offsets=in_zookeeper(one, zookeeper), batch={"max_records": 2})
    run(pipeline, one.folder, batch=True, emit=as_json(meddle), spark=one.spark)
    assert one.values() == numbered(0, 6)
    assert any("changed by somebody else" in what for what in said(events))
    assert zookeeper.get(node(one))[0] == "0:6"


def test_pipeline_begins_at_another_groups_offsets(bench: MakeBench) -> None:
    """A job that committed its offsets to Kafka migrates without a replay or a gap."""
    one = bench(partitions=2)
    one.send(numbered(0, 5), partition=0)
    one.send(numbered(5, 10), partition=1)
    one.commit(f"{one.name}-old", {0: 2, 1: 4})
    events = one.run(offsets={"from": f"{one.name}-old"})
    assert one.values() == [*numbered(2, 5), *numbered(9, 10)]
    assert f"starting from {one.name}-old: " in said(events)[0]
    one.commit(f"{one.name}-old", {0: 0, 1: 0})
    assert said(one.run(offsets={"from": f"{one.name}-old"})) == []
    assert len(one.values()) == 4


def test_partition_that_a_broker_does_not_show_yet_is_not_read_anew_after_another_job(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was added a moment ago, the job has read it, and its offset would be forgotten."""
    one = bench(partitions=2)
    one.send(numbered(0, 5), partition=0)
    one.send(numbered(5, 10), partition=1)
    one.commit(f"{one.name}-old", {0: 2, 1: 4})

    with monkeypatch.context() as patched:
        patched.setattr(source, "beginning", lambda pipeline, cluster: {(one.source, 0): 0})
        with pytest.raises(errors.KafkaFailed, match=f"did not show {one.source}-1 yet, of which the group '"):
            one.run(offsets={"from": f"{one.name}-old"})
    one.run(offsets={"from": f"{one.name}-old"})
    assert one.values() == [*numbered(2, 5), *numbered(9, 10)]


def test_group_without_offsets_is_refused_as_a_start(bench: MakeBench) -> None:
    """A typo must not lead to a replay of the topic."""
    one = bench()
    one.send(numbered(0, 3))
    with pytest.raises(errors.OffsetStoreUnusable, match="has no offsets of the source topics"):
        one.run(offsets={"from": f"{one.name}-olt"})
    assert one.values() == []


def test_reset_of_the_pipelines_group_by_a_tool_is_reported(bench: MakeBench) -> None:
    """kafka-consumer-groups --reset-offsets has no effect on a pipeline, and is not undone silently."""
    one = bench()
    one.send(numbered(0, 3))
    one.run()
    one.commit(f"tailrace.{one.name}", {0: 0})
    one.send(numbered(3, 5))
    events = one.run()
    assert one.values() == numbered(0, 5)
    assert f"it has {one.source}-0 at 0, which continues at 3" in said(events)[0]


def test_offsets_are_kept_in_a_file(bench: MakeBench, tmp_path: Path) -> None:
    """The file says where to begin, and later where the pipeline is."""
    one = bench()
    one.send(numbered(0, 6))
    file = one.folder / "offsets.json"
    file.write_text(json.dumps({"version": 1, "offsets": {one.source: {"0": 2}}}))
    one.run(offsets={"store": "file", "path": "offsets.json"})
    assert one.values() == numbered(2, 6)
    assert json.loads(file.read_text()) == {"version": 1, "pipeline": one.name, "offsets": {one.source: {"0": 6}}}
    assert [each.name for each in one.folder.glob("*offsets.json*")] == ["offsets.json"]


@pytest.fixture
def debug(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Capture the log at debug."""
    with caplog.at_level(logging.DEBUG, "tailrace"):
        yield caplog


def test_each_batch_is_logged_with_its_ranges_and_the_time_to_store_them(
    bench: MakeBench, zookeeper: ZooKeeper, debug: pytest.LogCaptureFixture
) -> None:
    """The debug log has both places that were written."""
    one = bench()
    one.send(numbered(0, 3))
    one.run(offsets=in_zookeeper(one, zookeeper))
    [line] = [each.getMessage() for each in debug.records if each.getMessage().startswith("batch 0 reads")]
    assert f"batch 0 reads {one.source}-0:0-3; stored in the ledger in " in line
    assert "ms, in zookeeper " in line


def test_nodes_created_with_a_login_are_readable_by_all_and_writable_by_their_owner(
    bench: MakeBench, zookeeper: ZooKeeper
) -> None:
    """No message contains the password."""
    one = bench()
    login = {"digest.username": "tailrace", "digest.password": "hush-hush"}
    pipeline = one.pipeline(offsets=in_zookeeper(one, zookeeper, options=login))
    with contextlib.closing(open_store(pipeline, one.folder)) as store:
        store.save({(one.source, 0): 7})
        assert store.load([(one.source, 0)]) == {(one.source, 0): 7}
        assert "hush" not in store.where
    stranger = one.pipeline(offsets=in_zookeeper(one, zookeeper))
    with contextlib.closing(open_store(stranger, one.folder)) as store:
        assert store.load([(one.source, 0)]) == {(one.source, 0): 7}
        with pytest.raises(errors.OffsetStoreUnusable, match="cannot be written"):
            store.save({(one.source, 0): 8})


def filled(one: Line) -> list[bytes | None]:
    """Write ten records to each source partition; return them all."""
    for number in range(one.partitions):
        one.send(numbered(number * 10, number * 10 + 10), partition=number)
    return numbered(0, one.partitions * 10)


def successor(one: Line) -> dict[str, Any]:
    """Return the sections of a pipeline with a new name that begins where this one is."""
    return {"pipeline": f"{one.name}-2", "offsets": {"from": f"tailrace.{one.name}"}}


def test_delivered_batch_of_the_earlier_pipeline_does_not_come_again_under_a_new_name(line: MakeLine) -> None:
    """Its driver was killed before it recorded the batch as done, so its group is at the beginning of the batch."""
    one = line()
    new, expected = successor(one), filled(one)
    with pytest.raises(errors.QueryFailed):
        one.run(killed_before_noting)
    one.send(numbered(90, 95), partition=0)
    one.run(**new)
    assert one.values() == [*expected, *numbered(90, 95)]


def test_new_name_waits_until_the_earlier_pipeline_has_finished_its_batch(line: MakeLine) -> None:
    """A part of it is delivered, and its own configuration delivers the rest of it once."""
    one = line()
    new, expected = successor(one), filled(one)
    with pytest.raises(errors.QueryFailed):
        one.run(first_part_only)
    with pytest.raises(errors.BatchOpen, match=f"batch 0 of '{one.name}'") as caught:
        one.run(**new)
    assert "run the configuration of" in caught.value.then
    one.run()
    one.send(numbered(90, 95), partition=0)
    one.run(**new)
    assert one.values() == [*expected, *numbered(90, 95)]
