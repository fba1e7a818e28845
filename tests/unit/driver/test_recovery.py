"""What a start says about the run before it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import pytest

from tailrace import errors
from tailrace.admin.offsets import open_parts
from tailrace.config import Delivery
from tailrace.driver.recovery import changed, last_marked, repeatable, unfinished
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import Marker
from tailrace.progress.plan import BatchId, Place, Plan, Range, Settings, SinkPartition
from tailrace.progress.stream_plan import BEFORE, VERSION, Slice, StreamPlan


def plan(rules: str, code: str) -> StreamPlan:
    """Return the plan of a batch that was begun with these rules and this code."""
    ranges = (Range("in", 0, 0, 1),)
    return StreamPlan(
        "p", "q", BatchId(7), ranges, (Slice("in-0:0-1"),), "v1\n{}\n{}", run="ab", rules=rules, code=code
    )


def test_changed_function_is_named_with_the_last_batch_of_the_old_one() -> None:
    """So that a person sees from which batch on the output may differ."""
    assert changed(plan("r", "c"), "r", "new") == [
        "the function or its arguments have changed since batch 7, of run ab"
    ]


def test_changed_rules_are_named_apart_from_the_function() -> None:
    """They decide what is rejected."""
    both = changed(plan("r", "c"), "new", "new")
    assert len(both) == 2
    assert "reject records" in both[1]


def test_same_code_or_an_old_plan_without_digests_is_no_change() -> None:
    """Version 0.1 wrote none."""
    assert changed(plan("r", "c"), "r", "c") == []
    assert changed(plan("", ""), "r", "c") == []


ZONE = "spark.sql.session.timeZone"


def shuffled(settings: dict[str, str] | None) -> Plan:
    """Return the plan of a batch of two outputs behind a shuffle, begun with these settings of the session."""
    parts = ((Range("in", 0, 0, 5),),)
    begun = Plan("p", BatchId(7), "out", {}, parts, 2, {("in", 0): 5}, shuffles=True, rules="r", code="c")
    return replace(begun, settings=settings)


def rest(begun: Plan, settings: dict[str, str], *delivered: int) -> Plan | dict[tuple[str, int], int] | None:
    """Return what is left of a batch of which these sink partitions are written."""
    marker = Marker.of(begun.batch, begun.digest, begun.sinks)
    markers = {SinkPartition(number): marker for number in delivered}
    return unfinished(begun, markers, cast(Ledger, None), "r", "c", settings)


def test_partly_delivered_batch_behind_a_shuffle_is_refused_with_other_settings_of_the_session() -> None:
    """They decide what a sink partition gets. Undelivered, it is chosen again; unshuffled, it does not matter."""
    begun = shuffled({ZONE: "UTC"})
    assert rest(begun, {ZONE: "UTC"}, 0) == begun
    with pytest.raises(errors.CutChanged, match=rf"another {ZONE} \(UTC, now Asia/Tokyo\)"):
        rest(begun, {ZONE: "Asia/Tokyo"}, 0)
    assert rest(begun, {ZONE: "Asia/Tokyo"}) == {("in", 0): 0}
    alone = replace(begun, shuffles=False)
    assert rest(alone, {ZONE: "Asia/Tokyo"}, 0) == alone


@pytest.mark.parametrize("delivery", Delivery)
def test_batch_that_the_engine_would_cut_otherwise_is_chosen_again_unless_a_part_is_delivered(
    delivery: Delivery,
) -> None:
    """A part that is delivered decides for the rest; at-least-once delivery may repeat it."""

    begun = replace(shuffled(None), delivery=delivery)
    marker = Marker.of(begun.batch, begun.digest, begun.sinks)

    def left(fits: bool, markers: dict[SinkPartition, Marker]) -> object:
        return unfinished(begun, markers, cast(Ledger, None), "r", "c", None, lambda plan: fits)

    again = {("in", 0): 0}
    part = {SinkPartition(0): marker} if delivery is Delivery.EXACTLY_ONCE else {}
    assert left(True, {}) == begun
    assert left(False, {}) == again
    assert left(False, part) == (begun if part else again)


def test_batch_of_an_earlier_version_is_finished_whatever_the_settings() -> None:
    """Its plan does not say with which it was begun, and an upgrade in the middle of a batch is not refused."""
    begun = shuffled(None)
    assert rest(begun, {ZONE: "Asia/Tokyo"}, 0) == begun


def own(delivery: Delivery) -> Plan:
    """Return the plan of batch 7, whose driver knew of markers from time 50."""
    return Plan("p", BatchId(7), "out", {}, (), 0, {}, at=100.0, marked=50.0, delivery=delivery)


def test_markers_are_as_old_as_the_last_batch_that_left_one() -> None:
    """Those of earlier batches may be about to expire, which must not look as if their group had been deleted."""
    old, last = (Marker.of(BatchId(number), "digest", 1) for number in (6, 7))
    exactly, at_least = own(Delivery.EXACTLY_ONCE), own(Delivery.AT_LEAST_ONCE)
    assert last_marked(exactly, {SinkPartition(0): old, SinkPartition(1): last}) == 100.0
    assert last_marked(exactly, {SinkPartition(0): old}) == 50.0
    assert last_marked(exactly, {}) == 50.0
    assert last_marked(at_least, {SinkPartition(0): old}) == 0.0


class Stored:
    """A ledger whose group has the ends of the last batch."""

    def __init__(self) -> None:
        self.asked: list[list[Place]] = []

    def positions(self, places: dict[Place, int]) -> dict[Place, int]:
        """Return where the batch ends."""
        self.asked.append(list(places))
        return places


def test_batch_that_spark_made_asks_only_for_offsets_of_partitions_that_it_reads() -> None:
    """A topic that is hidden may not be asked for, and is only carried along."""
    ends = json.dumps({"in": {"0": 5}, "hidden": {"0": 9}})
    begun = replace(
        plan("r", "c"), entry=f"v1\n{{}}\n{ends}", reads=(Range("in", 0, 0, 5),), delivery=Delivery.AT_LEAST_ONCE
    )
    stored = Stored()
    assert unfinished(begun, {}, cast(Ledger, stored), "r", "c") is None
    assert stored.asked == [[("in", 0)]]


def test_open_batch_is_delivered_although_the_group_has_its_ends() -> None:
    """A tool, or a broker that has lost the group, may say so; the driver stores them together with its note."""
    parts = ((Range("in", 0, 0, 5),),)
    begun = replace(own(Delivery.AT_LEAST_ONCE), parts=parts, outputs=1, ends={("in", 0): 5})
    assert unfinished(begun, {}, cast(Ledger, Stored()), "r", "c") == begun
    assert open_parts(begun, {}, cast(Ledger, Stored())) == [0]


def left(version: int, *reads: Range) -> Plan | dict[tuple[str, int], int] | None:
    """Return what is left of a batch of which one sink partition is written."""
    ends = json.dumps({"in": {"0": 1, "1": 1}})
    slices = Slice("in-0:0-1"), Slice("in-1:0-1")
    begun = replace(plan("r", "c"), entry=f"v1\n{{}}\n{ends}", slices=slices, reads=reads, version=version)
    marker = Marker.of(begun.batch, begun.digest, begun.sinks)
    return unfinished(begun, {SinkPartition(0): marker}, cast(Ledger, None), "r", "c")


def test_batch_of_version_0_1_is_finished_if_its_sink_partitions_are_ranges() -> None:
    """That version had no checkpoint to lose."""
    found = left(BEFORE)
    assert isinstance(found, Plan)
    assert found.outputs == 2


@pytest.mark.parametrize("reads", [(), (Range("in", 0, 0, 1), Range("in", 1, 0, 1))])
def test_batch_of_a_checkpoint_is_not_taken_for_one_of_version_0_1(reads: tuple[Range, ...]) -> None:
    """Its rejected records have sink partitions of their own, and would come out again with the outputs."""
    with pytest.raises(errors.CutChanged) as caught:
        left(VERSION, *reads)
    assert "finish the batch with its checkpoint" in caught.value.then


COMMITTED, UNCOMMITTED = {"source.isolation": "read_committed"}, {"source.isolation": "read_uncommitted"}


def at_isolation(begun: Settings, now: Settings, *, delivered: bool) -> Plan | dict[tuple[str, int], int] | None:
    """Return what is left of a batch behind a shuffle that was begun at one isolation, at a start with another."""
    kind: dict[str, Any] = {"shuffles": True, "judges": True, "rules": "r", "code": "c"}
    parts, ends = ((Range("in", 0, 0, 1),),), {("in", 0): 1}
    begins = Plan("p", BatchId(7), "out", {}, parts, 2, ends, settings=begun, **kind)
    read = Plan.of(json.loads(begins.to_bytes()), "the ledger")
    markers = {SinkPartition(0): Marker.of(read.batch, read.digest, read.sinks)} if delivered else {}
    return unfinished(read, markers, cast(Ledger, None), "r", "c", now)


@pytest.mark.parametrize(("begun", "now"), [(COMMITTED, UNCOMMITTED), (UNCOMMITTED, COMMITTED)])
def test_partly_delivered_batch_behind_a_shuffle_is_refused_at_another_isolation(
    begun: Settings, now: Settings
) -> None:
    """A record of an aborted transaction would have a verdict in one read only."""
    with pytest.raises(errors.CutChanged, match=r"source\.isolation \(.*\): behind a shuffle") as caught:
        at_isolation(begun, now, delivered=True)
    assert "tailrace run FILE --batch" in caught.value.then
    assert isinstance(at_isolation(begun, begun, delivered=True), Plan)


def test_undelivered_batch_behind_a_shuffle_is_chosen_again_at_another_isolation() -> None:
    """Nothing was delivered that the second read could contradict."""
    assert at_isolation(UNCOMMITTED, COMMITTED, delivered=False) == {("in", 0): 0}


def test_batch_of_a_version_that_recorded_no_isolation_is_finished() -> None:
    """The isolation that it was begun with is unknown."""
    assert isinstance(at_isolation(None, COMMITTED, delivered=True), Plan)


def test_batch_of_a_checkpoint_is_refused_at_another_isolation_if_its_rejected_records_stand_alone() -> None:
    """They may be committed before the outputs; if each task writes what it reads, nothing is read twice."""
    plain = replace(plan("r", "c"), settings=UNCOMMITTED)
    apart = replace(plain, reads=(Range("in", 0, 0, 1),))
    plain.check_repeatable("r", "c", COMMITTED)
    assert repeatable(plain, "r", "c", COMMITTED)
    with pytest.raises(errors.CutChanged, match=r"source\.isolation"):
        apart.check_repeatable("r", "c", COMMITTED)
    assert not repeatable(apart, "r", "c", COMMITTED)
