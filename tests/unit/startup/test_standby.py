"""A standby takes its turn whatever has become of its executors, its clients or its membership."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tailrace.driver.context import Context
from tailrace.errors import BrokerUnreachable
from tailrace.progress.lease import Holder, Lease, Phase
from tailrace.startup import standby, warming
from tailrace.startup.standby import Standby
from tailrace.status.events import StandingBy

LEADER = Holder("1eader", "host", 1.0, Phase.LEADING)
OWN = Holder("5tandby", "host", 2.0, Phase.STANDBY)


class Bench:
    """A standby of a pipeline without a plan, whose brokers list the drivers that `holders` returns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, holders: Callable[[], list[Holder]]) -> None:
        self.held: list[Phase] = []
        self.cancelled = self.asked = 0
        self.announced = threading.Event()
        self.stop = SimpleNamespace(event=threading.Event(), reason="the test")
        self.ledger = SimpleNamespace(latest=lambda: None, prepare=lambda: None)
        self.cluster = SimpleNamespace(topics=self._topics)
        self.pipeline = SimpleNamespace(pipeline="p", ledger=SimpleNamespace(lease=0.02))
        self.run, self.assembly = OWN.run, None
        monkeypatch.setattr(standby, "ASK_EVERY", 0.01)
        monkeypatch.setattr("tailrace.startup.standby.running", lambda cluster, pipeline: holders())
        monkeypatch.setattr("tailrace.driver.recovery.check_new", lambda *given: None)

    def emit(self, event: Any) -> None:
        """Note that the standby says it is ready."""
        if isinstance(event, StandingBy):
            self.announced.set()

    def _topics(self) -> dict[str, int]:
        self.asked += 1
        raise BrokerUnreachable("none answers")

    def _cancel(self) -> None:
        self.cancelled += 1

    def wait(self) -> bool:
        """Stand by until it is this driver's turn."""
        spark = SimpleNamespace(sparkContext=SimpleNamespace(cancelAllJobs=self._cancel))
        lease = SimpleNamespace(problem=None, hold=self.held.append)
        return Standby(cast(Context, self), cast(Any, spark), lambda: None, cast(Lease, lease)).wait()


def test_standby_without_executors_takes_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its warm-up waits for executors without end, and the next standby would wait for this one."""
    hanging, end = threading.Event(), threading.Event()
    calls = iter(range(10))

    def workers(spark: object) -> None:
        if next(calls):  # the first time, it had executors
            hanging.set()
            end.wait(30)

    monkeypatch.setattr(warming, "workers", workers)
    monkeypatch.setattr(standby, "_WARM_EVERY", 0.0)
    bench = Bench(monkeypatch, lambda: [OWN] if hanging.is_set() else [LEADER, OWN])
    assert bench.wait()
    end.set()
    assert bench.held == [Phase.STANDBY, Phase.LEADING]
    assert bench.cancelled == 1


def test_standby_that_no_broker_answers_asks_for_the_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """That replaces a client which has forgotten every broker."""
    monkeypatch.setattr(warming, "workers", lambda spark: None)

    def holders() -> list[Holder]:
        if not bench.announced.is_set():
            return [LEADER, OWN]
        if bench.asked < 2:
            raise BrokerUnreachable("none answers")
        return [OWN]

    bench = Bench(monkeypatch, holders)
    assert bench.wait()
    assert bench.asked == 2


@pytest.mark.parametrize("was", [True, False])
def test_standby_that_the_brokers_do_not_list_joins_anew(monkeypatch: pytest.MonkeyPatch, *, was: bool) -> None:
    """It would wait for ever, and say that it is ready if it `was` listed before."""
    monkeypatch.setattr(warming, "workers", lambda spark: None)

    def holders() -> list[Holder]:
        if len(bench.held) < 2:
            return [LEADER, OWN] if was and not bench.announced.is_set() else [LEADER]
        return [OWN]

    bench = Bench(monkeypatch, holders)
    assert bench.wait()
    assert bench.held == [Phase.STANDBY, Phase.STANDBY, Phase.LEADING]
