"""A former id of a topic that was created again, as a broker that lags shows it: nothing is read a second time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from support.pipelines import events_of
from support.threads import Line, recreated, running
from tailrace.kafka import source
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.topics import by_name, topic_ids
from tailrace.testing import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.takes(30)]

MakeLine = Callable[..., Line]
Ids = dict[str, tuple[str, int]]


class Lagging:
    """Answers the next questions for ids with the former ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, former: Ids) -> None:
        self.left, self._former = 0, former
        monkeypatch.setattr(source, "by_name", self)

    def __call__(self, admin: Any, names: Iterable[str]) -> tuple[Ids, frozenset[str]]:
        """Answer."""
        found, hidden = by_name(admin, names)
        self.left -= 1
        lags = self.left >= 0
        return found | {name: each for name, each in self._former.items() if lags and name in found}, hidden


@pytest.fixture
def case(line: MakeLine, monkeypatch: pytest.MonkeyPatch) -> tuple[Line, Lagging]:
    """Return a pipeline whose topic was created again, which has read the new topic, and brokers that may lag."""
    one = line(1)
    former = topic_ids(Cluster(one.pipeline().kafka).admin, [one.source])
    recreated(one)
    one.send([b"a", b"b"])
    one.run()
    return one, Lagging(monkeypatch, former)


@pytest.mark.parametrize("loss", ["stop", "reset"])
def test_start_that_is_shown_a_former_id_reads_on(case: tuple[Line, Lagging], loss: str) -> None:
    """With `stop` it would be refused, and the printed command would deliver everything again."""
    one, brokers = case
    one.send([b"c"])
    brokers.left = 1
    assert events_of(one.run(source={"on_data_loss": loss}), "reset") == []
    assert one.values() == [b"a", b"b", b"c"]


@pytest.mark.parametrize("loss", ["stop", "reset"])
def test_run_that_is_shown_a_former_id_reads_on(case: tuple[Line, Lagging], loss: str) -> None:
    """Each change of the id would move the positions to the topic's beginning."""
    one, brokers = case
    with running(one, source={"on_data_loss": loss}) as driver:
        wait_until(lambda: bool(events_of(driver.events, "ready")), "the driver to be ready", 30)
        brokers.left = 1
        wait_until(lambda: brokers.left < 0, "a look at the topics", 30)
        one.send([b"c"])
        wait_until(lambda: b"c" in one.values(), "the record", 60)
    assert events_of(driver.events, "reset") == []
    assert one.values() == [b"a", b"b", b"c"]
