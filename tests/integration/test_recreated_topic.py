"""A source topic that is deleted while a batch is planned, and exists again when the brokers take the positions."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from support.threads import Line
from tailrace import errors
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.topics import topic_ids
from tailrace.progress.ledger import Ledger
from tailrace.progress.plan import BatchId, Plan, Range
from tailrace.testing import Topics, wait_until

pytestmark = pytest.mark.integration


def test_positions_of_a_deleted_topic_are_not_said_to_be_those_of_the_next(
    tailrace_topics: Topics, tmp_path: Path
) -> None:
    """Whoever deletes what a group has read would delete unread records of the new topic: nothing is planned."""
    one = Line(tailrace_topics, tmp_path, "again", tailrace_topics("in"), tailrace_topics("out"), 1)
    pipeline, place = one.pipeline(), (one.source, 0)
    cluster = Cluster(pipeline.kafka)
    ids = {one.source: topic_ids(cluster.admin, [one.source])[one.source][0]}
    plan = Plan("again", BatchId(0), one.sink, ids, ((Range(one.source, 0, 400, 600),),), 1, {place: 600})
    with Ledger.of(pipeline) as ledger:
        ledger.take()
        cluster.admin.delete_topics([one.source])[one.source].result(30)
        wait_until(lambda: one.source not in cluster.topics(), "the topic to be gone")
        later = threading.Timer(1.5, lambda: cluster.ensure(one.source, 1, 1, {}))
        later.start()
        with pytest.raises(errors.PlanOfAnother, match="was deleted and created again while batch 0 was planned"):
            ledger.write(plan, {place: 400})
        later.join()
        assert ledger.positions({place: 0}) == {}
        assert ledger.latest() is None
