"""A topic that the configuration no longer reads: its offsets are kept, and the others continue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from support.pipelines import events_of
from support.threads import Line, first_part_only, killed_before_noting, nothing, recreated
from support.two_topics import Two
from support.ways_out import follow, obey
from tailrace import errors
from tailrace.admin.offsets import apply, base, look, movable
from tailrace.admin.targets import left_out, targets
from tailrace.kafka import source
from tailrace.kafka.cluster import Cluster
from tailrace.progress.ledger import Ledger
from tailrace.progress.stores import open_store

pytestmark = pytest.mark.integration

MakeLine = Callable[..., Line]


@pytest.fixture
def two(line: MakeLine) -> Two:
    """Return a pipeline that has read a record of each topic."""
    found = line(1)
    made = Two(found, found.topics("in2", 1))
    found.send([b"a1"])
    made.send_other(b"x1")
    found.run(**made.both)
    return made


def test_topic_that_is_taken_out_and_put_back_continues_where_it_was(two: Two) -> None:
    """It is noted once, the other topic is read on, and nothing is lost or comes twice."""
    one = two.line
    one.send([b"a2"])
    two.send_other(b"x2")
    [note] = two.noted(one.run())
    assert "the configuration no longer reads the topic" in note
    assert one.values() == [b"a1", b"a2", b"x1"]
    one.send([b"a3"])
    assert two.noted(one.run()) == []
    [back] = two.noted(one.run(**two.both))
    assert "is seen again" in back
    assert one.values() == [b"a1", b"a2", b"a3", b"x1", b"x2"]


def test_topic_that_was_deleted_may_be_taken_out(two: Two) -> None:
    """This is what TR-206 advises."""
    one = two.line
    two.delete_other()
    with pytest.raises(errors.TopicUnknown):
        one.run(**two.both)
    one.send([b"a2"])
    for _ in range(2):
        one.run()
    assert one.values() == [b"a1", b"a2", b"x1"]


def test_topic_that_was_deleted_and_matches_no_pattern_any_more_may_be_taken_out(two: Two) -> None:
    """With a pattern, the deleted topic itself is refused until the pattern leaves it out."""
    one = two.line
    both: dict[str, Any] = {"source": {"topics": [], "pattern": f"{one.source}|{two.other}"}}
    only: dict[str, Any] = {"source": {"topics": [], "pattern": one.source}}
    one.run(**both)
    two.delete_other()
    one.send([b"a2"])
    one.run(**only)
    one.send([b"a3"])
    one.run(**only)
    assert one.values() == [b"a1", b"a2", b"a3", b"x1"]


def test_open_batch_is_finished_with_the_topic_that_is_taken_out(two: Two) -> None:
    """Its plan says what it reads; the configuration of the next start matters only after it."""
    one = two.line
    one.send([b"a2"])
    two.send_other(b"x2")
    with pytest.raises(errors.QueryFailed):
        one.run(first_part_only, **two.both)
    one.run()
    assert one.values() == [b"a1", b"a2", b"x1", b"x2"]
    two.send_other(b"x3")
    one.run(**two.both)
    assert one.values() == [b"a1", b"a2", b"x1", b"x2", b"x3"]


@pytest.fixture
def open_batch(two: Two) -> Two:
    """Return a pipeline with an open batch that reads both topics, of which nothing is delivered."""
    two.line.send([b"a2"])
    two.send_other(b"x2")
    with pytest.raises(errors.QueryFailed):
        two.line.run(nothing, **two.both)
    return two


RESET: dict[str, Any] = {"source": {"on_data_loss": "reset"}}


def test_open_batch_is_finished_without_a_topic_that_was_created_again_and_is_taken_out(open_batch: Two) -> None:
    """Its planned records are gone and count as lost; those of the new topic were never asked for."""
    one = open_batch.line
    recreated(one, open_batch.other)
    open_batch.send_other(b"y1", b"y2", b"y3")
    with pytest.raises(errors.PlanOfAnother, match="batch 1, which is open") as caught:
        one.run()
    assert "source.on_data_loss: reset" in caught.value.then
    [lost] = events_of(one.run(**RESET), "reset")
    assert f"{open_batch.other}-0: 1 planned offsets, 1 to 1, are gone" in lost["what"]
    one.send([b"a3"])
    one.run()
    assert one.values() == [b"a1", b"a2", b"a3", b"x1"]


def test_open_batch_is_given_up_if_a_topic_of_it_was_created_again_and_is_taken_out(open_batch: Two) -> None:
    """This is the other way out that the refusal names."""
    one = open_batch.line
    recreated(one, open_batch.other)
    with pytest.raises(errors.PlanOfAnother) as caught:
        one.run()
    follow(one, caught.value, f"{one.source}:0=1")
    one.run()
    assert one.values() == [b"a1", b"a2", b"x1"]


def test_delivered_batch_does_not_miss_a_topic_that_was_created_again_and_is_taken_out(two: Two) -> None:
    """Only the note that it is done is missing: nothing of the topic is read any more."""
    one = two.line
    one.send([b"a2"])
    two.send_other(b"x2")
    with pytest.raises(errors.QueryFailed):
        one.run(killed_before_noting, **two.both)
    recreated(one, two.other)
    one.send([b"a3"])
    one.run()
    assert one.values() == [b"a1", b"a2", b"a3", b"x1", b"x2"]


@pytest.mark.takes(50)
@pytest.mark.parametrize("way", ["reset", "give up"])
def test_open_batch_outlives_a_topic_that_was_deleted_and_is_taken_out(open_batch: Two, way: str) -> None:
    """The page of the refusal names both ways out."""
    one = open_batch.line
    open_batch.delete_other()
    with pytest.raises(errors.SourceChanged, match=r"the plan reads 1 to 2, and (it no|the topic holds 0 to 0)"):
        one.run()
    if way == "reset":
        [lost] = events_of(one.run(**RESET), "reset")
        assert f"{open_batch.other}-0: 1 planned offsets, 1 to 1, no longer exist" in lost["what"]
    else:
        obey(one, errors.SourceChanged.__doc__ or "", f"{one.source}:0=1")
    one.run()
    assert one.values() == [b"a1", b"a2", b"x1"]


def test_topic_that_is_taken_out_continues_under_a_new_name_where_it_was(two: Two) -> None:
    """The group of its pipeline still has the beginning of the last batch that read it."""
    one = two.line
    one.send([b"a2"])
    two.send_other(b"x2")
    with pytest.raises(errors.QueryFailed):
        one.run(killed_before_noting, **two.both)
    one.run()
    one.send([b"a3"])
    one.run()
    two.send_other(b"x3")
    one.run(
        pipeline=f"{one.name}-2", offsets={"from": f"tailrace.{one.name}"}, source={"topics": [one.source, two.other]}
    )
    assert one.values() == [b"a1", b"a2", b"a3", b"x1", b"x2", b"x3"]


def test_topic_that_lost_records_while_it_was_out_is_refused_when_it_is_put_back(two: Two) -> None:
    """Its kept offset is out of range: no silent jump."""
    one = two.line
    one.run()
    two.send_other(b"x2", b"x3")
    admin = AdminClient({"bootstrap.servers": one.kafka})
    [future] = admin.delete_records([TopicPartition(two.other, 0, 3)]).values()
    future.result(30)
    two.send_other(b"x4")
    with pytest.raises(errors.TailraceError, match=r"TR-20[1-9]"):
        one.run(**two.both)
    assert one.values() == [b"a1", b"x1"]


def test_accepted_topics_are_those_that_are_configured(two: Two) -> None:
    """`offsets accept` keeps the offsets of the others too, and puts no topic back that is out."""
    one = two.line
    two.send_other(b"x2")
    pipeline = one.pipeline()
    cluster = Cluster(pipeline.kafka)
    with Ledger.of(pipeline) as ledger:
        now = look(pipeline, cluster, ledger, open_store(pipeline, one.folder))
        movable(pipeline, now, "FILE", False)
        before = base(now, False)
        target = targets(pipeline, cluster, before, {})
        apply(pipeline, cluster, now, target, ledger, {}, left_out(pipeline, before, target))
    one.send([b"a2"])
    one.run()
    assert one.values() == [b"a1", b"a2", b"x1"]
    one.run(**two.both)
    assert one.values() == [b"a1", b"a2", b"x1", b"x2"]


def test_offsets_of_an_unread_topic_are_refused_as_unread(two: Two) -> None:
    """It exists, so the refusal of a stateful pipeline does not say that it is gone."""
    pipeline = two.line.pipeline()
    with pytest.raises(errors.SourceChanged, match="which the configuration no longer reads") as caught:
        source.within(pipeline, {(two.other, 0): 1, (two.line.source, 0): 1}, Cluster(pipeline.kafka))
    assert "read the topic again" in caught.value.then


def test_topic_that_was_created_again_while_it_was_out_is_read_from_its_beginning_once_that_is_allowed(
    two: Two,
) -> None:
    """Its kept offset means nothing in the new topic."""
    one = two.line
    one.run()
    recreated(one, two.other)
    two.send_other(b"y1")
    with pytest.raises(errors.PlanOfAnother, match="deleted and created again") as caught:
        one.run(**two.both)
    follow(one, caught.value, **two.both)
    one.run(**two.both)
    assert b"y1" in one.values()
