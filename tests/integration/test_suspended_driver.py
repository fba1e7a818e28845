"""A driver that was suspended for as long as the brokers keep markers, while another one delivered its batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient

from support.pipelines import numbered
from support.threads import Line
from tailrace import errors
from tailrace.driver.thread_engine import ThreadEngine
from tailrace.gateway import Written
from tailrace.progress.marker import markers_group
from tailrace.progress.plan import Plan, SinkPartition

pytestmark = pytest.mark.integration

MakeLine = Callable[..., Line]
DAY = 24 * 3600


@pytest.fixture(autouse=True)
def resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the driver ask nobody who leads before its tasks go on: its clock stood still too."""
    monkeypatch.setattr("tailrace.driver.brokers._EVERY", 600.0)


def suspended(one: Line, days: float, expired: bool) -> Callable[..., list[Written]]:
    """Return how a driver delivers that is suspended for days with a batch, while another driver delivers it."""

    def how(
        engine: ThreadEngine, plan: Plan, owners: Mapping[SinkPartition, str], gone: frozenset[str]
    ) -> list[Written]:
        one.run()
        assert len(one.values()) == 6
        if expired:
            group, admin = markers_group(one.name), AdminClient({"bootstrap.servers": one.kafka})
            admin.delete_consumer_groups([group])[group].result(30)
        return ThreadEngine.deliver(engine, replace(plan, at=plan.at - days * DAY), owners, gone)

    return how


def test_driver_that_resumes_after_the_markers_have_expired_delivers_nothing(line: MakeLine) -> None:
    """Refuse to write without a marker once the plan is as old as a marker may become, and say who leads."""
    one = line()
    one.send(numbered(0, 6))
    with pytest.raises(errors.DriverFenced):  # not TR-306, with which a supervisor would let it oust the other one
        one.run(suspended(one, days=8, expired=True))
    assert one.values() == numbered(0, 6)


def test_driver_that_resumes_before_the_markers_expire_skips_what_another_has_delivered(line: MakeLine) -> None:
    """Find the other driver's markers, and learn from the ledger that it has been overtaken."""
    one = line()
    one.send(numbered(0, 6))
    with pytest.raises(errors.DriverFenced):
        one.run(suspended(one, days=5, expired=False))
    assert one.values() == numbered(0, 6)


@pytest.mark.parametrize(("days", "refused"), [(5, False), (8, True)])
def test_batch_that_nobody_has_delivered_is_written_while_a_marker_of_it_would_still_exist(
    line: MakeLine, days: int, refused: bool
) -> None:
    """Write a batch whose tasks begin days after it was planned, and refuse it later."""
    one = line()
    one.send(numbered(0, 6))

    def late(
        engine: ThreadEngine, plan: Plan, owners: Mapping[SinkPartition, str], gone: frozenset[str]
    ) -> list[Written]:
        return ThreadEngine.deliver(engine, replace(plan, at=plan.at - days * DAY), owners, gone)

    if refused:
        with pytest.raises(errors.ProgressMissing, match="another driver may have delivered the batch"):
            one.run(late)
        assert one.values() == []
    else:
        one.run(late)
        assert one.values() == numbered(0, 6)
