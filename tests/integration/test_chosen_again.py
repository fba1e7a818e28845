"""An open batch that other code divides differently is given up, and its records are read again with the next batch.

Tasks of the driver that planned it may outlive that driver, and write at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest

from faults.proof import every_plan, wrong_ranges
from support.expiry import expire
from support.pipelines import events_of
from support.threads import Deliver, Line, Tearing, Torn, run_in_threads
from tailrace import errors
from tailrace.config import Pipeline
from tailrace.driver import recovery
from tailrace.driver.context import Unwatched
from tailrace.driver.engine import Cut
from tailrace.driver.shutdown import Stop
from tailrace.driver.tasks import BatchInfo, Tasks
from tailrace.driver.thread_engine import ThreadEngine
from tailrace.gateway import Written
from tailrace.gateway.schemas import ROW_SCHEMA
from tailrace.gateway.writing import Deliveries
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import Marker
from tailrace.progress.plan import Plan, SinkPartition

pytestmark = pytest.mark.integration

MakeLine = Callable[..., Line]
VALUES = [b"%03d" % number for number in range(40)]
OLD, NEW = 5, 7  # what a value is divided by; the remainder decides its sink partition


class Shuffling(Tearing):
    """An engine whose function shuffles, into this many sink partitions."""

    def __init__(self, pipeline: Pipeline, folder: Path, run: str, how: Deliver, outputs: int) -> None:
        super().__init__(pipeline, folder, run, how)
        self._outputs = outputs

    @property
    def cut(self) -> Cut:
        """Return a shuffle, which divides the batch as the code says."""
        return Cut(True, self._outputs, ("hash",), False)


def part(pipeline: Pipeline, at: Deliveries, plan: Plan, run: str, number: int, divisor: int) -> Written:
    """Deliver one sink partition of a batch of all values, as a task behind the shuffle of this code does."""
    mine = [value for value in VALUES if int(value) % divisor % plan.outputs == number]
    columns = [
        pa.array(mine, pa.binary()) if each.name == "value" else pa.nulls(len(mine), each.type) for each in ROW_SCHEMA
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)
    task = Tasks.of(pipeline, (), shuffles=True, judges=False).assignment(
        BatchInfo.of(plan, run, {}, frozenset()), number
    )
    return at.write(task, iter([rows]))


@dataclass
class Deployed:
    """A pipeline whose first driver has planned a batch of all values, and whose tasks live on."""

    line: Line
    late: Deliveries = field(default_factory=lambda: Deliveries("old-gateway"))
    events: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def over(cls, one: Line, outputs: int = 2) -> Deployed:
        """Plan the batch with the old code, and deliver nothing of it."""
        (one.folder / "by.py").write_text("def by(batches, divisor):\n    yield from batches\n")
        one.send(list(VALUES), partition=0)
        found = cls(one)

        def nothing(*_: object) -> list[Written]:
            raise Torn

        with pytest.raises(errors.QueryFailed):
            found.start(OLD, nothing, outputs)
        return found

    def pipeline(self, divisor: int, **sections: Any) -> Pipeline:
        """Return the pipeline with this code."""
        return self.line.pipeline(process={"arrow": "by.py:by", "arguments": {"divisor": divisor}}, **sections)

    def plan(self) -> Plan:
        """Return the last plan."""
        with Ledger.of(self.line.pipeline()) as ledger:
            plan = ledger.latest()
        assert isinstance(plan, Plan)
        return plan

    def start(
        self,
        divisor: int,
        how: Deliver | None = None,
        outputs: int = 2,
        *,
        source: Mapping[str, Any] = MappingProxyType({}),
        until_read: bool = True,
        **more: Any,
    ) -> list[dict[str, Any]]:
        """Run this code, by default to the end of the source, and return the events."""
        pipeline, self.events = self.pipeline(divisor, source=dict(source)), []
        self.line.runs += 1
        name = f"run-{self.line.runs}"

        def all_parts(engine: ThreadEngine, plan: Plan, *_: object) -> list[Written]:
            return [part(pipeline, engine.deliveries, plan, name, number, divisor) for number in range(plan.outputs)]

        run_in_threads(
            pipeline,
            self.line.folder,
            name,
            lambda: Shuffling(pipeline, self.line.folder, name, how or all_parts, outputs),
            lambda event: self.events.append(event.as_dict()),
            until_read=until_read,
            **more,
        )
        return self.events

    def task(self, plan: Plan, number: int) -> Written:
        """Deliver one sink partition as a task of the first driver that is tried again."""
        return part(self.pipeline(OLD), self.late, plan, "run-1", number, OLD)

    def close(self) -> None:
        """End the first driver's gateway."""
        self.late.sinks.close()


@pytest.fixture
def deployed(line: MakeLine) -> Any:
    """Provide a pipeline with an open batch of the old code."""
    one = Deployed.over(line(1))
    yield one
    one.close()


@pytest.mark.parametrize("outputs", [2, 1])
def test_late_task_of_a_batch_that_new_code_divides_differently_is_refused(deployed: Deployed, outputs: int) -> None:
    """It may come before or after the new tasks, and its sink partition may not exist in the new batch."""
    old, refused = deployed.plan(), []

    def between(engine: ThreadEngine, plan: Plan, *_: object) -> list[Written]:
        new, written = deployed.pipeline(NEW), []
        for number in range(2):
            with pytest.raises(errors.MarkerConflict, match="batch 0 was given up by a newer driver") as caught:
                deployed.task(old, number)
            refused.append(caught.value)
        for number in range(plan.outputs):
            written.append(part(new, engine.deliveries, plan, "run-2", number, NEW))
        with pytest.raises(errors.MarkerConflict):
            deployed.task(old, 1)
        return written

    events = deployed.start(NEW, between, outputs)
    assert deployed.line.values() == VALUES
    assert [each["batch"] for each in events_of(events, "planned")] == [1]
    assert len(refused) == 2
    assert "start the pipeline again" in refused[0].then


def test_plans_join_after_a_batch_was_given_up(deployed: Deployed) -> None:
    """The ledger says that the batch holds nothing, and the next one reads its records."""
    deployed.start(NEW)
    written = every_plan(deployed.line.kafka, deployed.line.pipeline().ledger.topic, deployed.line.name)
    last = {int(each.batch): each for each in written}
    assert last[0].ranges == ()
    assert last[0].done
    assert wrong_ranges(last, {0: len(VALUES)}) == []
    assert deployed.line.values() == VALUES


def test_batch_is_not_given_up_once_a_late_task_has_delivered_a_part(deployed: Deployed) -> None:
    """Only the code that began it can finish it; nothing is lost or repeated."""
    deployed.task(deployed.plan(), 0)
    with pytest.raises(errors.CutChanged):
        deployed.start(NEW)
    events = deployed.start(OLD)
    assert [each["skipped"] for each in events_of(events, "written")] == [1]
    assert deployed.line.values() == VALUES


@pytest.mark.parametrize("code", [OLD, NEW])
@pytest.mark.parametrize("marked", [1, 2])
def test_start_that_dies_while_it_gives_a_batch_up_is_continued(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch, marked: int, code: int
) -> None:
    """The ledger does not say yet that some or all sink partitions are given up; the code may be the old one again."""
    original = Ledger.give_up

    def torn(self: Ledger, parts: Sequence[SinkPartition], *given: Any) -> None:
        original(self, parts[:marked], *given)
        raise Torn

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "give_up", torn)
        with pytest.raises(Torn):
            deployed.start(NEW)
    assert not deployed.plan().done
    events = deployed.start(code)
    assert [each["batch"] for each in events_of(events, "written")] == [1]
    assert deployed.line.values() == VALUES


def test_start_that_dies_after_it_noted_a_batch_as_given_up_is_continued(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next batch was not planned yet; a late task is refused all the same."""
    old = deployed.plan()

    def torn(*_: object) -> list[Written]:
        raise Torn

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "write", torn)
        with pytest.raises(Torn):
            deployed.start(NEW)
    assert deployed.plan().done
    with pytest.raises(errors.MarkerConflict):
        deployed.task(old, 0)
    events = deployed.start(NEW)
    assert [each["batch"] for each in events_of(events, "written")] == [1]
    assert deployed.line.values() == VALUES


@pytest.mark.parametrize("first", [0, 1])
def test_task_that_commits_while_its_batch_is_given_up_leaves_the_batch_open(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """The sink partitions given up before it are taken back, so that the code that began the batch can finish it."""
    original, old, calls = Ledger.give_up, deployed.plan(), []

    def late(
        self: Ledger, parts: Sequence[SinkPartition], marker: Marker, known: Mapping[SinkPartition, Marker]
    ) -> None:
        calls.append(marker)
        if len(calls) == 1:
            original(self, parts[: 1 - first], marker, known)
            deployed.task(old, 1)
            parts = parts[1 - first :]
        original(self, parts, marker, known)

    monkeypatch.setattr(Ledger, "give_up", late)
    with pytest.raises(errors.CutChanged):
        deployed.start(NEW)
    monkeypatch.undo()
    events = deployed.start(OLD)
    assert [each["skipped"] for each in events_of(events, "written")] == [1]
    assert deployed.line.values() == VALUES


def test_batch_is_noted_as_done_if_its_records_are_gone_after_it_was_given_up(deployed: Deployed) -> None:
    """There is no next batch that would say so, so the run says it before it ends."""
    expire(deployed.line.kafka, deployed.line.source, len(VALUES))
    deployed.start(NEW, source={"on_data_loss": "reset"})
    plan = deployed.plan()
    assert (plan.done, dict(plan.ends)) == (True, {(deployed.line.source, 0): len(VALUES)})


def test_pipeline_without_records_reports_idle_once_after_it_gave_a_batch_up(deployed: Deployed) -> None:
    """It looks at its source several times meanwhile."""
    expire(deployed.line.kafka, deployed.line.source, len(VALUES))
    stop, ticks = Stop(), list[bool]()

    class Ticking(Unwatched):
        """Ends the run some looks at the source after the first idle event."""

        def tick(self, query: Any = None) -> None:
            """Count it, and those after the idle event."""
            ticks.append(bool(events_of(deployed.events, "idle")))
            if sum(ticks) == 10 or len(ticks) == 200:
                stop("the test is over")

    events = deployed.start(NEW, source={"on_data_loss": "reset"}, stop=stop, watcher=Ticking(), until_read=False)
    assert len(events_of(events, "idle")) == 1


def test_driver_that_was_replaced_while_it_started_gives_nothing_up(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor has delivered the batch: it must be neither marked nor fenced by the one before it."""
    unfinished, fenced = recovery.unfinished, list[int]()

    def late(*given: Any) -> Any:
        monkeypatch.setattr(recovery, "unfinished", unfinished)
        deployed.start(OLD)
        monkeypatch.setattr(Ledger, "fence", lambda one, sinks: fenced.append(sinks))
        return unfinished(*given)

    monkeypatch.setattr(recovery, "unfinished", late)
    with pytest.raises(errors.DriverFenced, match="a newer driver has taken over"):
        deployed.start(NEW)
    assert (deployed.line.values(), fenced) == (VALUES, [])
