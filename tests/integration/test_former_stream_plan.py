"""A stateless pipeline whose last batch Spark has planned: version 0.1 ran it, or it had a `checkpoint`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from support.plans import leave_stream_plan, stream_plan
from support.threads import Line, recreated
from support.two_topics import Two
from tailrace import errors
from tailrace.admin.offsets import apply, base, look, movable
from tailrace.admin.targets import left_out, targets
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.topics import topic_ids
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import Marker
from tailrace.progress.plan import BatchId, SinkPartition
from tailrace.progress.stores import open_store

pytestmark = pytest.mark.integration


@pytest.fixture
def former(line: Callable[..., Line]) -> Two:
    """Return a pipeline of which Spark has planned a batch that read one record of each topic."""
    one = line(1)
    two = Two(one, one.topics("in2", 1))
    one.send([b"a1"])
    two.send_other(b"x1")
    leave_stream_plan(one.pipeline(), {(one.source, 0): 1, (two.other, 0): 1})
    return two


def test_topic_recreated_after_a_start_without_a_batch_is_refused(former: Two) -> None:
    """That start has nothing to read, and notes the ids: records of the new topic would be skipped."""
    one = former.line
    one.run(**former.both)
    recreated(one, former.other)
    former.send_other(b"y1", b"y2")
    with pytest.raises(errors.PlanOfAnother, match="deleted and created again"):
        one.run(**former.both)
    assert one.values() == []


def move(former: Two, wanted: dict[tuple[str, int], int]) -> None:
    """Run the command that moves offsets, with a configuration that reads only the first topic."""
    one, pipeline = former.line, former.line.pipeline()
    cluster = Cluster(pipeline.kafka)
    with Ledger.of(pipeline) as ledger, contextlib.closing(open_store(pipeline, one.folder)) as store:
        now = look(pipeline, cluster, ledger, store)
        movable(pipeline, now, "FILE", give_up=True)
        before = base(now, give_up=True)
        target = targets(pipeline, cluster, before, wanted)
        apply(pipeline, cluster, now, target, ledger, wanted, left_out(pipeline, before, target))


def test_moved_offsets_keep_those_of_a_topic_that_is_taken_out(former: Two) -> None:
    """The command says so; the topic's record would come out again once the topic is put back."""
    one = former.line
    move(former, {(one.source, 0): 0})
    one.run()
    one.run(**former.both)
    assert one.values() == [b"a1"]


def reads_the_new_topic(former: Two) -> None:
    """Put back the topic that was created again: the start says so, and with reset reads it whole."""
    with pytest.raises(errors.PlanOfAnother, match="deleted and created again"):
        former.line.run(**former.both)
    former.line.run(source={**former.both["source"], "on_data_loss": "reset"})


def with_ids(former: Two) -> Two:
    """Let the last batch be one of a plan that names the topics' ids."""
    one, both = former.line, (former.line.source, former.other)
    ids = {topic: name for topic, (name, _) in topic_ids(Cluster(one.pipeline().kafka).admin, both).items()}
    leave_stream_plan(one.pipeline(), {(topic, 0): 1 for topic in both}, ids)
    return former


def test_moved_offsets_keep_a_topic_that_is_taken_out_apart_from_one_created_again(former: Two) -> None:
    """The plan names the id that its offset is of; kept by the new topic's, the offset would skip a record of that."""
    one = with_ids(former).line
    recreated(one, former.other)
    former.send_other(b"y1", b"y2")
    move(former, {(one.source, 0): 0})
    one.run()
    reads_the_new_topic(former)
    assert one.values() == [b"a1", b"y1", b"y2"]


def test_offsets_set_behind_newer_markers_end_the_refusal(former: Two) -> None:
    """An older ledger was restored: the refusal advises this command, after which the numbers follow the markers."""
    one = former.line
    with Ledger.of(one.pipeline()) as ledger:
        ledger.give_up([SinkPartition(0)], Marker.of(BatchId(5), "digest", 1), {})
    with pytest.raises(errors.MarkerConflict, match="offsets set FILE"):
        one.run(**former.both)
    move(former, {(one.source, 0): 0})
    one.run(**former.both)
    assert one.values() == [b"a1"]


def test_given_up_batch_of_a_topic_that_was_created_again_skips_no_record_of_that(former: Two) -> None:
    """The start that gives the batch up does not read the topic, and keeps its offset by the id in the plan."""
    one = former.line
    places = (one.source, 0), (former.other, 0)
    ids = topic_ids(Cluster(one.pipeline().kafka).admin, [former.other])
    plan = stream_plan(one.pipeline(), dict.fromkeys(places, 1), {places[1]: 2})
    with Ledger.of(one.pipeline()) as ledger:
        ledger.take()
        ledger.write(replace(plan, topics={former.other: ids[former.other][0]}), dict.fromkeys(places, 1))
    recreated(one, former.other)
    former.send_other(b"y1", b"y2")
    one.run()
    reads_the_new_topic(former)
    assert one.values() == [b"y1", b"y2"]


def test_given_up_batch_is_read_again_from_a_topic_that_is_put_back(former: Two) -> None:
    """Nothing of the batch was delivered, and the start that gives it up no longer reads the topic."""
    one = former.line
    places = (one.source, 0), (former.other, 0)
    former.send_other(b"x2")
    with Ledger.of(one.pipeline()) as ledger:
        ledger.take()
        ledger.write(stream_plan(one.pipeline(), dict.fromkeys(places, 1), {places[1]: 2}), dict.fromkeys(places, 1))
    events = one.run()
    assert "dropped" not in str(events)
    one.run(**former.both)
    assert one.values() == [b"x2"]
