"""A batch that a person gives up stays given up, although tasks of its driver outlive the driver."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from support.pipelines import events_of
from support.threads import Line, first_part_only
from support.threads import nothing as nothing_delivered
from tailrace import errors
from tailrace.admin.checks import State
from tailrace.admin.offsets import apply, base, look, movable
from tailrace.admin.progress_checks import progress
from tailrace.admin.targets import targets
from tailrace.config import Pipeline
from tailrace.driver.thread_engine import ThreadEngine
from tailrace.kafka.cluster import Cluster
from tailrace.progress.lease import Holder, Lease, Phase, running
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import Marker
from tailrace.progress.plan import Plan, SinkPartition
from tailrace.progress.stores import open_store
from tailrace.testing import wait_until

pytestmark = pytest.mark.integration

MakeLine = Callable[..., Line]


@dataclass
class Left:
    """An open batch, and what is left of the run that planned it."""

    line: Line
    pipeline: Pipeline
    plan: Plan

    @classmethod
    def behind(cls, one: Line, how: Any) -> Left:
        """Deliver a batch, and the next one in part or not at all."""
        for number in range(2):
            one.send([b"%d-old" % number], partition=number)
        one.run()
        for number in range(2):
            one.send([b"%d-new" % number], partition=number)
        with pytest.raises(errors.QueryFailed):
            one.run(how)
        with Ledger.of(one.pipeline()) as ledger:
            plan = ledger.latest()
        assert isinstance(plan, Plan)
        return cls(one, one.pipeline(), plan)

    def part(self, number: int) -> None:
        """Deliver one sink partition, as Spark's next attempt at its task does."""
        engine = ThreadEngine(self.pipeline, self.line.folder, self.plan.run)
        try:
            engine.part(self.plan, number, {}, frozenset())
        finally:
            engine.close()

    def give_up(self, offset: int, then: Callable[[], None] = lambda: None) -> None:
        """Run the command that gives the batch up; `then` happens while it waits for the confirmation."""
        cluster, wanted = Cluster(self.pipeline.kafka), {(self.line.source, number): offset for number in range(2)}
        store = open_store(self.pipeline, self.line.folder)
        with Ledger.of(self.pipeline) as ledger:
            now = look(self.pipeline, cluster, ledger, store)
            movable(self.pipeline, now, "FILE", give_up=True)
            then()
            found = targets(self.pipeline, cluster, base(now, give_up=True), wanted)
            apply(self.pipeline, cluster, now, found, ledger)
        store.close()


@pytest.mark.takes(13)
@pytest.mark.parametrize(("offset", "new"), [(1, [b"0-new", b"1-new"]), (2, [])], ids=["again", "skipped"])
def test_late_task_of_a_batch_that_was_given_up_is_refused(line: MakeLine, offset: int, new: list[bytes]) -> None:
    """Its records come out as the command promised, and no start or check objects to what it left."""
    one = line()
    left = Left.behind(one, nothing_delivered)
    left.give_up(offset)
    for number in range(2):
        with pytest.raises(errors.MarkerConflict, match="batch 1 was given up"):
            left.part(number)
    one.send([b"2-next"], partition=0)
    found = progress(left.pipeline, one.folder, one.folder / "FILE")
    assert {each.state for each in found} == {State.OK}
    events = one.run()
    assert [each["batch"] for each in events_of(events, "written")] == [2]
    assert one.values() == sorted([b"0-old", b"1-old", *new, b"2-next"])


def test_part_that_was_delivered_keeps_its_marker(line: MakeLine) -> None:
    """Only what was not delivered is given up; a second attempt at the rest finds it so."""
    left = Left.behind(line(), first_part_only)
    with Ledger.of(left.pipeline) as ledger:
        before = ledger.markers()[SinkPartition(0)]
        left.give_up(2)
        after = ledger.markers()
    assert after[SinkPartition(0)] == before
    assert after[SinkPartition(1)].given_up
    with pytest.raises(errors.MarkerConflict, match="given up"):
        left.part(1)


def test_task_that_commits_while_its_batch_is_given_up_stops_the_command(
    line: MakeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offsets stay as they were, so the next start finishes the batch, each record once."""
    one = line()
    left = Left.behind(one, nothing_delivered)
    original = Ledger.give_up

    def late(
        self: Ledger, parts: Sequence[SinkPartition], marker: Marker, known: Mapping[SinkPartition, Marker]
    ) -> None:
        for number in range(2):
            left.part(number)
        original(self, parts, marker, known)

    monkeypatch.setattr(Ledger, "give_up", late)
    with pytest.raises(errors.PipelineRunning, match="written"):
        left.give_up(2)
    one.run()
    assert one.values() == [b"0-new", b"0-old", b"1-new", b"1-old"]


def test_driver_that_starts_before_the_confirmation_is_not_fenced(line: MakeLine) -> None:
    """The command changes nothing, and the driver keeps its ledger."""
    one = line()
    left = Left.behind(one, nothing_delivered)
    cluster = Cluster(left.pipeline.kafka)
    with Ledger.of(left.pipeline) as driver, Lease(left.pipeline, uuid.uuid4().hex[:8]) as lease:

        def start() -> None:
            driver.take()
            lease.hold(Phase.LEADING)
            wait_until(lambda: bool(running(cluster, one.name)), "the driver to be listed", 30)

        with pytest.raises(errors.PipelineRunning, match="is running"):
            left.give_up(2, start)
        assert not driver.overtaken()
    wait_until(lambda: not running(cluster, one.name), "the driver to leave", 30)
    one.run()
    assert one.values() == [b"0-new", b"0-old", b"1-new", b"1-old"]


def test_batch_of_a_driver_that_takes_over_unlisted_is_not_given_up(
    line: MakeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers list a driver some time after it took the ledger; markers would stop the batch that it finishes."""
    one = line()
    left = Left.behind(one, nothing_delivered)
    asked = list[str]()

    def unlisted(cluster: Cluster, name: str) -> list[Holder]:
        asked.append(name)
        if len(asked) == 3:  # after that of `look` and the first of `apply`
            driver.take()
        return []

    monkeypatch.setattr("tailrace.admin.offsets.running", unlisted)
    with Ledger.of(left.pipeline) as driver, pytest.raises(errors.PipelineRunning, match="taken over"):
        left.give_up(2)
    assert len(asked) == 3
    one.run()
    assert one.values() == [b"0-new", b"0-old", b"1-new", b"1-old"]
