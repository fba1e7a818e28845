"""What a stateful pipeline reports of the brokers while its query runs."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tailrace import errors
from tailrace.driver.context import RENEW_EVERY
from tailrace.kafka import source
from tailrace.spark_stream import stream
from tailrace.status.events import BrokersAway, BrokersBack, Event

LONG = 60.0  # seconds without a batch


class Script:
    """A run whose every tick sets how long the pipeline has been idle, and what a question about its lag finds."""

    def __init__(self, *ticks: tuple[float, int | errors.TailraceError]) -> None:
        self.said: list[Event] = []
        self.settled = 0
        self._ticks, self._now = list(ticks), ticks[0]
        self.turns, self.error, self.positions, self.last = (
            SimpleNamespace(idle=0.0, busy=False),
            None,
            {("in", 0): 1},
            1,
        )
        self.open = self.finished = False
        self.stop = SimpleNamespace(event=threading.Event())

    def tick(self, query: object) -> None:
        """Take the next step; after the last one, ask for a stop."""
        self._now = self._ticks.pop(0)
        self.turns.idle, self.turns.busy = self._now[0], not self._now[0]
        if not self._ticks:
            self.stop.event.set()

    def lag(self, *given: object) -> int:
        """Answer as the step says."""
        found = self._now[1]
        if isinstance(found, errors.TailraceError):
            raise found
        return found

    def settle(self) -> bool:
        """Count how often the pipeline is found drained."""
        self.settled += 1
        return False


def watched(monkeypatch: pytest.MonkeyPatch, *ticks: tuple[float, int | errors.TailraceError]) -> Script:
    """Return a run that was watched through these ticks."""
    script: Any = Script(*ticks)
    monkeypatch.setattr(source, "lag", script.lag)
    monkeypatch.setattr(stream, "asking", lambda kafka: dict)
    context: Any = SimpleNamespace(
        stop=script.stop,
        watcher=script,
        emit=script.said.append,
        pipeline=SimpleNamespace(kafka=None),
        cluster=None,
        ledger=None,
        run="r",
        renew_every=RENEW_EVERY,
    )
    query: Any = SimpleNamespace(isActive=True)
    topics: Any = SimpleNamespace(look=lambda: None)
    stream._watch(context, script, topics, query, batch=False)
    return cast(Script, script)


def test_brokers_are_back_though_batches_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query may take up its batches before the brokers were asked again, and then is never idle."""
    gone = errors.BrokerUnreachable("no broker answers")
    found = watched(monkeypatch, (LONG, gone), (0.0, gone), (0.0, 5), (0.0, 5))
    assert found.said == [BrokersAway("no broker answers"), BrokersBack()]


def test_pipeline_is_not_drained_while_a_batch_is_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that only finds out whether brokers are back settles nothing."""
    found = watched(monkeypatch, (LONG, errors.BrokerUnreachable("gone")), (0.0, 0))
    assert isinstance(found.said[-1], BrokersBack)
    assert found.settled == 0


def test_missing_right_is_not_reported_as_brokers_that_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """They answered; if the right is needed, the query fails by itself."""
    assert watched(monkeypatch, (LONG, errors.NotAuthorized("no"))).said == []
