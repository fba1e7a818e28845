"""`tailrace offsets` shows where a pipeline continues, and moves it through the ledger while it is stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from support.pipelines import QUIET, Bench, events_of, numbered
from support.zookeeper import ZooKeeper
from tailrace import errors
from tailrace.cli.offsets import app
from tailrace.kafka.cluster import Cluster
from tailrace.progress.lease import running
from tailrace.progress.marker import drivers_group
from tailrace.testing import Record, produce, wait_until

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]
FAILS = "def bad(frame):\n    return frame.selectExpr('CAST(raise_error(\\'x\\') AS STRING) AS value')\n"


def file_of(one: Bench, **sections: Any) -> Path:
    """Write the pipeline's configuration to a file."""
    file = one.folder / f"{one.name}.yaml"
    data = one.pipeline(**sections).model_dump(mode="json", by_alias=True, exclude_defaults=True)
    file.write_text(json.dumps(data | {"spark": QUIET}))
    return file


def call(*arguments: object) -> str:
    """Return what a command prints; it must succeed."""
    done = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def answer(*arguments: object) -> Any:
    """Return the JSON that a command prints."""
    return json.loads(call(*arguments, "--output", "json").strip().splitlines()[-1])


def shown(file: Path) -> dict[int, tuple[int | None, int | None, int | None]]:
    """Return for each partition where it continues, what is stored, and the lag."""
    return {each["partition"]: (each["next"], each["stored"], each["lag"]) for each in answer("show", file)["offsets"]}


@pytest.fixture(params=["kafka", "zookeeper", "file"])
def store(request: pytest.FixtureRequest, zookeeper: ZooKeeper) -> dict[str, str]:
    """Return the section of each store."""
    return {
        "kafka": {"store": "kafka"},
        "zookeeper": {"store": "zookeeper", "servers": zookeeper.servers},
        "file": {"store": "file", "path": "kept/offsets.json"},
    }[request.param]


def test_next_start_reads_from_the_set_offsets(bench: MakeBench, store: dict[str, str]) -> None:
    """This holds in every store, before and after the first start, and markers stay valid."""
    one = bench(partitions=2)
    file = file_of(one, offsets=store)
    one.send(numbered(0, 5), partition=0)
    one.send(numbered(5, 10), partition=1)
    assert shown(file) == {0: (0, None, 5), 1: (0, None, 5)}
    printed = call("set", file, f"{one.source}:0=3", "--yes")
    assert "skips 3" in printed
    assert "changed: 1 offsets" in printed
    assert shown(file) == {0: (3, 3, 2), 1: (0, 0, 5)}
    one.run(offsets=store)
    assert one.values() == numbered(3, 10)
    assert shown(file) == {0: (5, 5, 0), 1: (5, 5, 0)}
    call("set", file, f"{one.source}:1=4", "--yes")
    assert shown(file) == {0: (5, 5, 0), 1: (4, 4, 1)}
    events = one.run(offsets=store)
    assert events_of(events, "offsets") == []
    assert one.values() == [*numbered(3, 10), b"000009"]
    one.send(numbered(10, 12), partition=0)
    one.run(offsets=store)
    assert len(one.values()) == 10


def test_offsets_are_exported_and_imported(bench: MakeBench, store: dict[str, str]) -> None:
    """An import restores the offsets of the export."""
    one = bench()
    file, document = file_of(one, offsets=store), one.folder / "document.json"
    one.send(numbered(0, 3))
    one.run(offsets=store)
    assert "exported: 1 partitions" in call("export", file, document)
    one.send(numbered(3, 5))
    one.run(offsets=store)
    assert answer("import", file, document, "--dry-run")["changed"] is False
    assert shown(file) == {0: (5, 5, 0)}
    assert answer("import", file, document, "--yes")["moves"] == [
        {"topic": one.source, "partition": 0, "from": 5, "to": 3}
    ]
    one.run(offsets=store)
    assert one.values() == [*numbered(0, 3), *numbered(3, 4) * 2, *numbered(4, 5) * 2]
    assert "unchanged" in call("set", file, f"{one.source}:0=5", "--yes")


def test_reset_goes_to_an_end_and_rewind_goes_back_to_a_time(bench: MakeBench) -> None:
    """A rewind never goes forward, which would skip records."""
    one = bench()
    file = file_of(one)
    at = [1_700_000_000_000 + number * 60_000 for number in range(5)]
    produce(one.kafka, one.source, [Record(b"%d" % number, timestamp=moment) for number, moment in enumerate(at)])
    assert answer("reset", file, "--to", "latest", "--yes")["moves"][0]["to"] == 5
    assert answer("rewind", file, "--to-time", "2023-11-14T22:15:20+00:00", "--yes")["moves"][0]["to"] == 2
    assert answer("rewind", file, "--to-time", "2023-11-14T22:16:20Z", "--yes")["moves"] == []
    one.run()
    assert one.values() == [b"2", b"3", b"4"]
    assert answer("reset", file, "--yes")["moves"] == [{"topic": one.source, "partition": 0, "from": 5, "to": 0}]
    one.run()
    assert len(one.values()) == 8


@pytest.mark.parametrize("change", [("reset", "--to", "latest"), ("rewind", "--to-time", "2023-11-14T22:15:20Z")])
def test_end_that_a_former_leader_tells_moves_no_offset(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch, change: tuple[str, ...]
) -> None:
    """It lies before what was delivered, which would come out again."""
    one = bench()
    file = file_of(one)
    one.send(numbered(0, 5))
    one.run()
    real = Cluster.agreed_latest
    monkeypatch.setattr(Cluster, "agreed_latest", lambda *given: {each: at + 9 for each, at in real(*given).items()})
    done = CliRunner().invoke(app, [change[0], str(file), *change[1:], "--yes"])
    assert isinstance(done.exception, errors.KafkaFailed)
    assert f"{one.source}-0 at 5" in done.exception.what


def test_reset_to_the_latest_records_goes_back_behind_no_open_transaction(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that read uncommitted records is behind it. What it has delivered would come out again."""
    one = bench()
    file = file_of(one)
    producer = Producer({"bootstrap.servers": one.kafka, "transactional.id": f"open-{one.source}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(one.source, b"open", partition=0)
    producer.flush(30)
    one.send(numbered(0, 2))
    one.run(source={"isolation": "read_uncommitted"})
    assert answer("reset", file, "--to", "latest", "--yes")["moves"] == []
    with monkeypatch.context() as another:  # in which the offset means nothing
        another.setattr(
            "tailrace.admin.offsets.topic_ids", lambda *given: {one.source: ("another-topic-of-its-name", 1)}
        )
        assert answer("reset", file, "--to", "latest", "--dry-run")["moves"][0]["to"] == 0
    producer.commit_transaction(30)
    one.run()
    assert set(one.values()) == {b"open", *numbered(0, 2)}
    assert len(one.values()) == 3


def test_running_pipeline_can_be_shown_but_not_changed(bench: MakeBench) -> None:
    """The error names the member of the drivers' group."""
    one = bench()
    file = file_of(one)
    one.send(numbered(0, 2))
    one.run()
    cluster = Cluster(one.pipeline().kafka)
    assert running(cluster, one.name) == []
    driver = Consumer(
        {
            "bootstrap.servers": one.kafka,
            "group.id": drivers_group(one.name),
            "client.id": "1700000000000.abc123.leading",
        }
    )
    try:
        driver.subscribe([one.source])
        wait_until(lambda: driver.poll(0.1) or running(cluster, one.name), "the member of the drivers' group")
        [holder] = running(cluster, one.name)
        assert (holder.run, holder.since) == ("abc123", 1_700_000_000.0)
        for line in (
            ["set", file, f"{one.source}:0=0"],
            ["reset", file],
            ["rewind", file, "--to-time", "2020-01-01T00:00:00Z"],
        ):
            with pytest.raises(errors.PipelineRunning, match="run abc123 on"):
                call(*line, "--yes")
        assert answer("show", file)["state"] == "running"
    finally:
        driver.close()
    wait_until(lambda: not running(cluster, one.name), "the end of the member")
    call("set", file, f"{one.source}:0=0", "--yes")


def test_open_batch_is_refused_until_it_is_finished_or_given_up(bench: MakeBench) -> None:
    """Its records may be lost or come twice only if its owner accepts that."""
    one = bench()
    file = file_of(one)
    one.write("bad.py", FAILS)
    one.send(numbered(0, 2))
    one.run()
    one.send(numbered(2, 4))
    with pytest.raises(errors.FunctionFailed):
        one.run(process={"function": "bad.py:bad"})
    one.settle()
    with pytest.raises(errors.BatchOpen, match=r"batch 1 of .* is open: 1 of its 1") as caught:
        call("set", file, f"{one.source}:0=0", "--yes")
    assert f"tailrace run {file} --batch" in caught.value.then
    shown = answer("show", file)
    assert shown["state"] == "open"
    assert [(each["begins"], each["next"]) for each in shown["offsets"]] == [(2, 4)]
    assert answer("set", file, f"{one.source}:0=3", "--yes", "--give-up")["changed"] is True
    one.run()
    assert one.values() == [*numbered(0, 2), *numbered(3, 4)]


def test_stateful_pipeline_is_refused(bench: MakeBench) -> None:
    """Its checkpoint folder decides, and its state fits no other offsets."""
    one = bench()
    file = file_of(one, checkpoint="state/")
    for line in (["set", file, f"{one.source}:0=0"], ["reset", file]):
        with pytest.raises(errors.ConfigInvalid, match="is stateful"):
            call(*line, "--yes")


@pytest.mark.parametrize(
    ("place", "kind", "what"),
    [
        ("{source}:0=9", errors.OffsetsOutOfRange, "9 was requested, but the topic holds 0 to 2"),
        ("{source}:7=0", errors.ConfigInvalid, "does not read .*-7"),
        ("nosuch:0=0", errors.ConfigInvalid, "does not read nosuch-0"),
        ("{source}=0", errors.OptionRefused, "not of the form"),
    ],
)
def test_invalid_offset_is_refused(bench: MakeBench, place: str, kind: type[errors.TailraceError], what: str) -> None:
    """The error has the valid ones."""
    one = bench()
    file = file_of(one)
    one.send(numbered(0, 2))
    with pytest.raises(kind, match=what):
        call("set", file, place.format(source=one.source), "--yes")
    assert answer("show", file)["state"] == "new"


def test_change_without_a_terminal_needs_yes(bench: MakeBench) -> None:
    """A script must confirm the change explicitly."""
    with pytest.raises(errors.OptionRefused, match="no terminal to ask on"):
        call("reset", file_of(bench()))


def test_lost_ledger_is_repaired_by_its_owner(bench: MakeBench) -> None:
    """The change is refused without --give-up; then batch numbers continue after those in the markers."""
    one = bench()
    file = file_of(one)
    one.send(numbered(0, 3))
    one.run()
    admin = AdminClient({"bootstrap.servers": one.kafka})
    ledger = one.pipeline().ledger.topic
    admin.delete_topics([ledger])[ledger].result(timeout=30)
    wait_until(lambda: ledger not in admin.list_topics(timeout=10).topics, "the deletion of the ledger")
    one.send(numbered(3, 5))
    with pytest.raises(errors.ProgressMissing):
        one.run()
    with pytest.raises(errors.ProgressMissing, match="but no plan: what was"):
        call("set", file, f"{one.source}:0=3", "--yes")
    assert answer("show", file)["state"] == "lost"
    call("set", file, f"{one.source}:0=3", "--yes", "--give-up")
    one.run()
    assert one.values() == numbered(0, 5)
