"""A topic that the configuration reads since a restart: it is new to a pipeline that has positions of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from support.pipelines import events_of
from support.threads import Line
from tailrace.cli.main import app
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
