"""What a backfill is derived from, and which requests are refused before anything is read."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace import errors
from tailrace.admin.backfill import Request, derived, refuse_cut
from tailrace.admin.copies import is_backfill
from tailrace.admin.moved_plan import moved
from tailrace.admin.offsets import Situation, movable
from tailrace.config import OnDataLoss, Pipeline
from tailrace.kafka import source
from tailrace.progress.marker import Marker
from tailrace.progress.plan import BatchId, Plan, SinkPartition
from tailrace.status import lag
from tailrace.status.lag import Lags
from tailrace.status.snapshots import LagSeen

NOW = datetime(2026, 11, 25, tzinfo=UTC)
ASKED = Request(datetime(2026, 11, 22, 10, tzinfo=UTC), datetime(2026, 11, 22, 12, tzinfo=UTC), "again")


def pipeline(**sections: Any) -> Pipeline:
    """Return a pipeline with these sections changed."""
    base: dict[str, Any] = {
        "pipeline": "orders",
        "source": {"topics": ["in"], "format": "raw", "on_data_loss": "reset"},
        "sink": {"topic": "out", "format": "raw"},
        "rejected": "bad",
        "offsets": {"store": "file", "path": "offsets.json"},
    }
    return Pipeline.model_validate(base | sections)


def test_backfill_shares_nothing_with_its_pipeline_that_either_writes() -> None:
    """Its name decides its ids, groups and rejected topic; its offsets stay out of the pipeline's store."""
    found = derived(pipeline(), ASKED, NOW)
    assert found.pipeline == f"orders-backfill-{ASKED.digest('orders')}"
    assert (found.sink.topic, found.sink.allowed) == ("again", ("again",))
    assert found.rejected_topic == f"{found.pipeline}.rejected"
    assert found.offsets.store == "kafka"
    assert found.source.on_data_loss is OnDataLoss.STOP
    assert Pipeline.model_validate(found.model_dump(by_alias=True)) == found


def test_name_depends_on_the_range_and_the_topic_and_fits() -> None:
    """The same request continues the same backfill, in whatever zone its times are written."""
    names = {
        derived(pipeline(), dataclasses.replace(ASKED, **change), NOW).pipeline
        for change in ({}, {"into": "other"}, {"until": NOW}, {"since": datetime(2026, 11, 22, 9, tzinfo=UTC)})
    }
    assert len(names) == 4
    same = dataclasses.replace(ASKED, since=datetime.fromisoformat("2026-11-22T11:00+01:00"))
    assert same.digest("orders") == ASKED.digest("orders")
    long = derived(pipeline(pipeline="p" * 100), ASKED, NOW)
    assert len(long.pipeline) == 100
    assert derived(pipeline(pipeline="p" * 99), ASKED, NOW).pipeline != long.pipeline


def test_name_of_a_backfill_never_looks_like_a_persons() -> None:
    """A name that ends with a date would not be taken for a backfill's when its rejected records are replayed."""
    since, until = (datetime(2026, 11, 16, hour, tzinfo=UTC) for hour in (20, 21))
    mark = Request(since, until, "tweets-again").digest("tweets")  # the first digest of this one is 19325307
    assert is_backfill(f"tweets-backfill-{mark}")


@pytest.mark.parametrize(
    ("sections", "change"),
    [
        ({}, {"into": "in"}),
        ({}, {"into": "out"}),
        ({}, {"into": "bad"}),
        ({"ledger": {"topic": "notes"}}, {"into": "notes"}),
        ({}, {"rejected": "out"}),
        ({}, {"rejected": "again"}),
        ({}, {"rejected": "bad"}),  # `tailrace rejected` would show none of the backfill's there
        ({}, {"rejected": "in"}),
        ({"source": {"pattern": "a.*", "format": "raw"}}, {}),
        ({"source": {"pattern": "orders-.*", "format": "raw"}}, {}),
        ({}, {"until": ASKED.since}),
        ({}, {"until": datetime(2026, 11, 26, tzinfo=UTC)}),
        ({"checkpoint": "state"}, {}),
        ({"sink": {"format": "raw"}}, {}),
        ({"sink": {"topic": "out", "topics": ["more"], "format": "raw"}}, {}),
    ],
)
def test_request_that_cannot_be_done_right_is_refused(sections: dict[str, Any], change: dict[str, Any]) -> None:
    """Neither may the pipeline read what the backfill writes, nor the backfill write where the pipeline does."""
    with pytest.raises((errors.OptionRefused, errors.ConfigInvalid)):
        derived(pipeline(**sections), dataclasses.replace(ASKED, **change), NOW)


def test_range_is_whole_if_an_older_record_is_left_or_nothing_was_deleted() -> None:
    """Only a range that begins with the first record left, or before it, may be cut."""
    refuse_cut({("in", 0): 0, ("in", 1): 8}, {("in", 0): 0, ("in", 1): 7})
    for start in (7, 6, 0):
        with pytest.raises(errors.OffsetsOutOfRange, match="in-1 from 7"):
            refuse_cut({("in", 0): 0, ("in", 1): start}, {("in", 0): 0, ("in", 1): 7})


def bounded_plan(**changes: Any) -> Plan:
    """Return a finished plan of a backfill of one partition."""
    made = Plan("orders-backfill-0123abcd", BatchId(3), "again", {"in": "id"}, (), 0, {("in", 0): 50}, done=True)
    return dataclasses.replace(made, **({"until": {("in", 0): 100}} | changes))


@pytest.mark.parametrize(
    "markers", [{}, {SinkPartition(0): Marker(next=BatchId(9), digest="d", sinks=1)}], ids=["fit", "newer"]
)
def test_offsets_moved_by_hand_keep_the_bound_of_a_backfill(markers: dict[SinkPartition, Marker]) -> None:
    """Without it the same backfill would refuse to continue, as its plan would not be one of a backfill."""
    target = {("in", 0): 20}
    found = moved(pipeline(pipeline="orders-backfill-0123abcd"), bounded_plan(), markers, target, {"in": "id"}, {})
    assert isinstance(found, Plan)
    assert (found.ends, found.until) == (target, {("in", 0): 100})


def test_offsets_of_a_backfill_without_its_plan_are_refused() -> None:
    """The lost plan held the end of the range: what is set without it could never be continued."""
    marker = Marker(next=BatchId(1), digest="d", sinks=1)
    lost = Situation(None, {SinkPartition(0): marker}, [], {}, {}, {}, lost=True, ids={})
    with pytest.raises(errors.ProgressMissing, match="held the end of its range"):
        movable(pipeline(pipeline="orders-backfill-0123abcd"), lost, "file.yaml", give_up=True)
    movable(pipeline(), lost, "file.yaml", give_up=True)


def test_lag_of_a_backfill_is_counted_to_the_end_of_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records after it are no affair of the backfill: an alert on its lag would never go away."""
    seen: list[LagSeen] = []
    lags = Lags(pipeline(), seen.append, lambda _: None)
    monkeypatch.setattr(lag, "_next_records", lambda consumer, asked, stop: ({}, []))
    monkeypatch.setattr(source, "ends", lambda given, places, cluster: {("in", 0): 900, ("in", 1): 700})
    cluster: Any = SimpleNamespace(latest=lambda places: {("in", 0): 950, ("in", 1): 700})
    lags._positions, lags._until = (lambda: {("in", 0): 40, ("in", 1): 0}), {("in", 0): 100}
    listening: Any = SimpleNamespace(consumer=None, heard=lambda anything: None)
    lags._look(cluster, listening)
    assert (seen[-1].records, seen[-1].unstable) == (60, 0)
    lags._until = None
    lags._look(cluster, listening)
    assert (seen[-1].records, seen[-1].unstable) == (860 + 700, 50)
