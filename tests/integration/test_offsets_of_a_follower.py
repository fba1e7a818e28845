"""`tailrace offsets` on a pipeline that has read nothing yet, and begins where another job's group is."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, TopicPartition
from typer.testing import CliRunner

from integration.test_new_name import following, renamed
from support.pipelines import numbered
from support.threads import Line
from tailrace.cli.offsets import app

pytestmark = pytest.mark.integration

MakeLine = Callable[..., Line]


@pytest.mark.parametrize("trial", [False, True], ids=["new", "tried"])
def test_offsets_that_are_not_set_are_those_of_the_group_by_then(line: MakeLine, trial: bool) -> None:
    """A pipeline that has read nothing yet follows the group, and a person who sets one offset means it for one."""
    one, group = line(2), f"old-{uuid.uuid4().hex[:8]}"
    new = renamed(one)
    sections = {**following(one), "offsets": {"from": group}}
    for number in (0, 1):
        one.send(numbered(10 * number, 10 * number + 3), partition=number)
    commit(one, group, 3, 3)
    if trial:
        new.run(**sections)
    for number in (0, 1):
        one.send(numbered(10 * number + 3, 10 * number + 6), partition=number)
    commit(one, group, 6, 5)
    file = new.folder / "new.yaml"
    file.write_text(json.dumps(new.pipeline(**sections).model_dump(mode="json", by_alias=True, exclude_defaults=True)))
    shown = CliRunner().invoke(app, ["show", str(file), "--output", "json"], catch_exceptions=False)
    assert [each["next"] for each in json.loads(shown.stdout)["offsets"]] == [6, 5]
    done = CliRunner().invoke(app, ["set", str(file), f"{one.source}:0=4", "--yes"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    new.run(**sections)
    assert one.values() == [*numbered(4, 6), *numbered(15, 16)]


def test_offsets_that_the_topic_does_not_have_are_not_followed(line: MakeLine) -> None:
    """A start does not follow them either: it begins where the first one has recorded."""
    one, group = line(2), f"old-{uuid.uuid4().hex[:8]}"
    new = renamed(one)
    sections = {**following(one), "offsets": {"from": group}, "source": {"on_data_loss": "reset"}}
    file = new.folder / "new.yaml"
    file.write_text(json.dumps(new.pipeline(**sections).model_dump(mode="json", by_alias=True, exclude_defaults=True)))
    commit(one, group, 0, 0)
    new.run(**sections)
    one.send(numbered(0, 3), partition=0)
    commit(one, group, 5000, 0)
    shown = CliRunner().invoke(app, ["show", str(file), "--output", "json"], catch_exceptions=False)
    assert [each["next"] for each in json.loads(shown.stdout)["offsets"]] == [0, 0]


def commit(one: Line, group: str, *offsets: int) -> None:
    """Commit a group's offsets, as a job does that is not Tailrace's."""
    consumer = Consumer({"bootstrap.servers": one.kafka, "group.id": group})
    places = [TopicPartition(one.source, number, offset) for number, offset in enumerate(offsets)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()
