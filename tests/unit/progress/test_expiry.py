"""A missing marker was never written, or has expired: the time since the plan decides."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

from tailrace.config import Delivery
from tailrace.errors import BrokerUnreachable, ProgressMissing
from tailrace.progress.expiry import DEFAULT_RETENTION, Retention, check, doubtful, duration, missing, retention
from tailrace.progress.marker import Marker
from tailrace.progress.plan import BatchId, Range, SinkPartition
from tailrace.progress.stream_plan import Slice, StreamPlan

WEEK = Retention(DEFAULT_RETENTION)
PLANNED = 1_000_000.0
SLICES = tuple(Slice(f"in-{number}:0-1") for number in range(3))
PLAN = StreamPlan("p", "q", BatchId(4), (Range("in", 0, 0, 1),), SLICES, "v1\n{}\n{}", at=PLANNED)
WRITTEN = Marker.of(BatchId(4), PLAN.digest, 3)
OLDER = Marker.of(BatchId(3), "older", 3)


def markers(*each: Marker | None) -> dict[SinkPartition, Marker]:
    """Return the markers of the sink partitions in their order."""
    return {SinkPartition(number): marker for number, marker in enumerate(each) if marker is not None}


def test_a_missing_marker_counts_as_unwritten_while_none_can_have_expired() -> None:
    """This holds until an hour before the retention is over, because clocks differ."""
    assert doubtful(PLAN, {}, PLANNED + DEFAULT_RETENTION - 3601, WEEK) == []
    assert doubtful(PLAN, {}, PLANNED + DEFAULT_RETENTION - 3600, WEEK) == [0, 1, 2]


def test_missing_markers_may_have_expired_even_if_others_exist() -> None:
    """Each expires on its own: the first committed are the first to go."""
    late = PLANNED + DEFAULT_RETENTION
    assert doubtful(PLAN, markers(None, WRITTEN, None), late, WEEK) == [0, 2]
    with pytest.raises(ProgressMissing, match=r"2 of its 3 sink partitions have no marker \(0, 2\)") as caught:
        check(PLAN, markers(None, WRITTEN, None), late, WEEK)
    assert "--give-up" in caught.value.then


def test_an_existing_older_marker_means_that_the_batch_was_not_written() -> None:
    """Writing it would have replaced the marker."""
    assert doubtful(PLAN, markers(OLDER, WRITTEN, OLDER), PLANNED + 10 * DEFAULT_RETENTION, WEEK) == []
    check(PLAN, markers(OLDER, WRITTEN, OLDER), PLANNED + 10 * DEFAULT_RETENTION, WEEK)


@pytest.mark.parametrize(
    "plan",
    [
        PLAN.finished(),
        StreamPlan("p", "q", BatchId(4), (), SLICES, "", at=PLANNED, delivery=Delivery.AT_LEAST_ONCE),
        StreamPlan("p", "q", BatchId(4), (), (), "", at=PLANNED),
    ],
)
def test_a_batch_that_needs_no_marker_is_never_doubtful(plan: StreamPlan) -> None:
    """The batch is noted as done, has no markers, or is empty."""
    assert missing(plan, {}) == []
    check(plan, {}, PLANNED + 10 * DEFAULT_RETENTION, WEEK)


def test_the_message_names_the_assumed_retention_if_it_is_unknown() -> None:
    """The reader can then look it up."""
    with pytest.raises(ProgressMissing, match=r"after 7 days \(offsets.retention.minutes; assumed\)"):
        check(PLAN, {}, PLANNED + DEFAULT_RETENTION, Retention(DEFAULT_RETENTION, "assumed"))


@pytest.mark.parametrize(
    ("seconds", "text"), [(30, "30 seconds"), (60, "60 seconds"), (150, "2.5 minutes"), (604800, "7 days")]
)
def test_a_duration_is_shown_in_a_readable_unit(seconds: float, text: str) -> None:
    """People read it."""
    assert duration(seconds) == text


def brokers(*tell: Mapping[str, str | None] | None) -> Any:
    """Return an admin client of brokers with these settings; None is a broker that does not answer."""

    def describe(asked: list[ConfigResource], **_: object) -> dict[ConfigResource, Future[Any]]:
        told = tell[int(asked[0].name)]
        future: Future[Any] = Future()
        if told is not None:
            future.set_result({name: SimpleNamespace(value=value) for name, value in told.items()})
        return {asked[0]: future}

    listed = SimpleNamespace(brokers=dict.fromkeys(range(len(tell))))
    return cast("Any", SimpleNamespace(list_topics=lambda timeout: listed, describe_configs=describe))


@pytest.mark.parametrize("tells", [{}, {"offsets.retention.minutes": None}, {"log.retention.hours": "1"}])
def test_brokers_that_do_not_tell_the_retention_are_taken_to_have_the_default(tells: dict[str, str | None]) -> None:
    """Some services answer only with the settings that may be changed."""
    found = retention(brokers(tells))
    assert (found.seconds, "7 days" in found.note) == (DEFAULT_RETENTION, True)


def test_shortest_retention_of_the_brokers_counts() -> None:
    """Any of them may keep the group."""
    said = [{"offsets.retention.minutes": minutes} for minutes in ("60", "30", "90")]
    assert retention(brokers(*said)) == Retention(1800.0)
    assert retention(brokers(*said, {})).seconds == 1800.0


def test_retention_that_no_broker_answers_is_an_error_of_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start then waits for a supervisor, or for patience, and not for ever."""
    monkeypatch.setattr("tailrace.progress.expiry._LIMIT", 0.1)
    with pytest.raises(BrokerUnreachable, match=r"reading offsets\.retention\.minutes"):
        retention(brokers(None))


def test_retention_is_known_if_one_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is down, or that the executors cannot reach, must not hold up a batch that does not need it."""
    monkeypatch.setattr("tailrace.progress.expiry._LIMIT", 0.1)
    assert retention(brokers(None, {"offsets.retention.minutes": "60"}, None)) == Retention(3600.0)
