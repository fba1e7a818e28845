"""A ledger restored from an older copy: the offsets that its owner sets end the refusal, whatever they are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from support.threads import Line, first_part_only, recreated
from support.ways_out import follow, obey
from tailrace import errors
from tailrace.driver.thread_engine import ThreadEngine
from tailrace.progress.ledger import Ledger
from tailrace.progress.plan import Plan
from tailrace.testing import Record, consume, produce

pytestmark = pytest.mark.integration

MakeLine = Callable[..., Line]


def restored(one: Line) -> Plan:
    """Deliver a batch of one record and a later one, then write the plan of the first into the ledger again."""
    one.send([b"a"], partition=0)
    one.run()
    with Ledger.of(one.pipeline()) as ledger:
        old = ledger.latest()
    assert isinstance(old, Plan)
    one.send([b"b"], partition=0)
    one.run()
    with Ledger.of(one.pipeline()) as ledger:
        ledger.take()
        ledger.write(old, {})
    return old


def test_offsets_of_the_older_plan_end_the_refusal_of_newer_markers(line: MakeLine) -> None:
    """No offset moves, but batch numbers continue above those in the markers."""
    one = line(1)
    restored(one)
    with pytest.raises(errors.MarkerConflict) as caught:
        one.run()
    follow(one, caught.value, f"{one.source}:0=1")
    with Ledger.of(one.pipeline()) as ledger:
        changed = ledger.latest()
        follow(one, caught.value, f"{one.source}:0=1")
        assert ledger.latest() == changed  # repeated, the command writes nothing
    one.run()
    assert one.values() == [b"a", b"b", b"b"]


def test_offsets_of_the_older_plan_end_the_refusal_of_a_newer_group(line: MakeLine) -> None:
    """The markers were deleted with the ledger topic; the notes in the group tell of the later batch."""
    one = line(1)
    one.send([b"a"])
    one.run()
    ledger = f"{one.name}.ledger"
    backup = consume(one.kafka, ledger)
    one.send([b"b"])
    one.run()
    recreated(one, ledger, 8, **{"cleanup.policy": "compact"})
    produce(one.kafka, ledger, [Record(each.value, each.key, partition=each.partition) for each in backup])
    with pytest.raises(errors.ProgressMissing, match="the ledger is behind") as caught:
        one.run()
    follow(one, caught.value, f"{one.source}:0=1")
    one.run()
    assert one.values() == [b"a", b"b", b"b"]


def test_rewind_that_finds_nothing_leaves_a_restored_ledger_refused(line: MakeLine) -> None:
    """It names no offset, so nobody has said where to continue."""
    one = line(1)
    restored(one)
    obey(one, "tailrace offsets rewind FILE --to-time 2100-01-01T00:00:00Z")
    with pytest.raises(errors.MarkerConflict):
        one.run()
    assert one.values() == [b"a", b"b"]


def test_late_task_of_a_batch_that_only_markers_know_is_refused(line: MakeLine) -> None:
    """The older plan has one sink partition and the later batch two, of which one was not written."""
    one = line(2)
    one.send([b"a"], partition=0)
    one.run()
    with Ledger.of(one.pipeline()) as ledger:
        old = ledger.latest()
    for number, value in enumerate((b"b", b"late")):
        one.send([value], partition=number)
    with pytest.raises(errors.QueryFailed):
        one.run(first_part_only)
    with Ledger.of(one.pipeline()) as ledger:
        plan = ledger.latest()
        assert isinstance(old, Plan)
        assert isinstance(plan, Plan)
        assert (old.sinks, plan.sinks) == (1, 2)
        ledger.take()
        ledger.write(old, {})
    with pytest.raises(errors.MarkerConflict) as caught:
        one.run()
    follow(one, caught.value, f"{one.source}:0=2 {one.source}:1=1")
    engine = ThreadEngine(one.pipeline(), one.folder, plan.run)
    with contextlib.closing(engine), pytest.raises(errors.MarkerConflict, match="batch 2 was given up"):
        engine.part(plan, 1, {}, frozenset())
    one.send([b"c"], partition=1)
    one.run()
    assert one.values() == [b"a", b"b", b"c"]
