"""A topic that the configuration reads since a restart: it is new to a pipeline that has positions of others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from support.pipelines import events_of
from support.threads import Line
from tailrace.cli.main import app
from tailrace.kafka.cluster import Cluster
from tailrace.testing import Record, produce

pytestmark = pytest.mark.integration

MakeLine = Callable[..., Line]


def test_topic_that_is_added_at_a_restart_is_noted_and_read_from_its_beginning(line: MakeLine) -> None:
    """With `latest`, a person expects none of its history; the note comes once, and none for other topics."""
    one = line(1)
    added = one.topics("added", 2)
    one.send([b"a1"])
    produce(one.kafka, added, [Record(each, partition=0) for each in (b"x1", b"x2")])
    admin = AdminClient({"bootstrap.servers": one.kafka})
    [future] = admin.delete_records([TopicPartition(added, 0, 1)]).values()
    future.result(30)
    latest: dict[str, Any] = {"auto.offset.reset": "latest"}
    assert events_of(one.run(source=latest), "note") == []
    one.send([b"a2"])
    assert events_of(one.run(source=latest), "note") == []
    both: dict[str, Any] = {**latest, "topics": [one.source, added]}
    [note] = events_of(one.run(source=both), "note")
    assert f"the topic {added!r} is new to this pipeline" in note["what"]
    assert f"from its beginning ({added}-0 at 1, {added}-1 at 0)" in note["what"]
    assert one.values() == [b"a2", b"x2"]
    one.send([b"a3"])
    assert events_of(one.run(source=both), "note") == []
    assert one.values() == [b"a2", b"a3", b"x2"]


def test_topic_that_is_added_continues_at_its_end_if_its_offsets_are_set_before_the_start(line: MakeLine) -> None:
    """This is the way around its history, which the documentation names."""
    one = line(1)
    added = one.topics("added", 1)
    one.send([b"a1"])
    produce(one.kafka, added, [Record(b"x1")])
    one.run()
    both: dict[str, Any] = {"topics": [one.source, added]}
    file = one.folder / "pipeline.yaml"
    file.write_text(one.pipeline(source=both).model_dump_json(by_alias=True, exclude_unset=True))
    words = ["offsets", "reset", str(file), "--to", "latest", "--topic", added, "--yes"]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    produce(one.kafka, added, [Record(b"x2")])
    assert events_of(one.run(source=both), "note") == []
    assert one.values() == [b"a1", b"x2"]


@pytest.mark.parametrize("words", [["set", "{}:0=2"], ["reset", "--to", "latest"]])
def test_partition_that_a_broker_does_not_show_yet_keeps_its_offset_when_others_are_set(
    line: MakeLine, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """It was added a moment ago, and the broker that is asked lags. Without its offset it would be read again."""
    one = line(2)
    for partition in range(2):
        one.send([b"%d-%d" % (partition, number) for number in range(3)], partition)
    one.run()
    file = one.folder / "pipeline.yaml"
    file.write_text(one.pipeline().model_dump_json(by_alias=True, exclude_unset=True))
    real, began = Cluster.topics, list[float]()

    def lagging(cluster: Cluster) -> dict[str, int]:
        began.append(time.monotonic())
        late = began[-1] - began[0] < 3.0
        return {**real(cluster), one.source: 1} if late else real(cluster)

    with monkeypatch.context() as patch:
        patch.setattr(Cluster, "topics", lagging)
        command, *more = words
        more = [each.format(one.source) for each in more]
        done = CliRunner().invoke(app, ["offsets", command, str(file), *more, "--yes"])
    assert done.exit_code == 0, done.output
    one.run()
    again = [b"0-2"] if command == "set" else []
    assert one.values() == sorted([b"0-0", b"0-1", b"0-2", *again, b"1-0", b"1-1", b"1-2"])
