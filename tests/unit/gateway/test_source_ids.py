"""The check of the topics' ids refuses another topic of the same name, and asks no more often than it must."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest

from tailrace import errors
from tailrace.gateway import source_ids
from tailrace.gateway.source_ids import SourceIds

PLANNED = {"orders": "a", "users": "b"}


class Brokers:
    """Answers the question for ids, and counts how often it is asked."""

    def __init__(self, ids: dict[str, str]) -> None:
        self.ids, self.asked = ids, 0

    def __call__(self, admin: object, names: Iterable[str], limit: float) -> dict[str, tuple[str, int]]:
        """Answer."""
        self.asked += 1
        return {name: (self.ids[name], 1) for name in names if name in self.ids}


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    """Return brokers that know the planned topics."""
    found = Brokers(dict(PLANNED))
    monkeypatch.setattr(source_ids, "topic_ids", found)
    return found


def checked() -> SourceIds:
    """Return a check whose client connects to nothing."""
    return SourceIds({"bootstrap.servers": "localhost:1", "log_level": 0}, 1.0)


def test_planned_topics_pass_and_each_read_is_asked_about(brokers: Brokers) -> None:
    """An answer from before the last record proves nothing."""
    ids = checked()
    for _ in range(3):
        ids.require(PLANNED, reset=False)
    assert brokers.asked == 3
    ids.require({}, reset=False)
    assert brokers.asked == 3


@pytest.mark.parametrize(("reset", "way"), [(False, "source.on_data_loss: reset"), (True, "start the pipeline again")])
def test_topic_with_another_id_is_refused(brokers: Brokers, reset: bool, way: str) -> None:
    """Whatever may be lost, records of another topic may not pass for those of the plan."""
    brokers.ids["users"] = "c"
    with pytest.raises(errors.PlanOfAnother, match="users was deleted and created again while") as caught:
        checked().require(PLANNED, reset=reset)
    assert way in caught.value.then


def test_topic_that_is_gone_is_refused_unless_it_may_be_lost(brokers: Brokers) -> None:
    """Nobody can say any more where its records came from."""
    del brokers.ids["users"]
    with pytest.raises(errors.SourceChanged, match="users was deleted while a batch was read"):
        checked().require(PLANNED, reset=False)
    checked().require(PLANNED, reset=True)


def test_reads_that_ended_before_a_question_share_its_answer(brokers: Brokers) -> None:
    """Tasks that end together cost one request, unless they read other topics."""
    ids, ended = checked(), time.monotonic()
    ids.require(PLANNED, reset=False)
    assert ids.after(ended, frozenset({"orders"})) == PLANNED
    assert brokers.asked == 1
    ids.after(ended, frozenset({"orders", "events"}))
    assert brokers.asked == 2
    ids.after(time.monotonic(), frozenset({"orders"}))
    assert brokers.asked == 3


def test_client_that_has_heard_of_no_broker_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would never get an answer, and every attempt of the task would fail."""
    first: list[object] = []

    def answer(admin: object, names: Iterable[str], limit: float) -> dict[str, tuple[str, int]]:
        first[:] = first or [admin]
        if admin is first[0]:
            raise errors.KafkaFailed("waiting for the controller", kept="all", then="wait")
        return {name: (PLANNED[name], 1) for name in names}

    monkeypatch.setattr(source_ids, "topic_ids", answer)
    monkeypatch.setattr(source_ids, "_TRY", 0.0, raising=False)
    checked().require(PLANNED, reset=False)


def test_refusal_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rights that are lacking do not come with another client."""
    asked: list[object] = []

    def refuse(admin: object, names: Iterable[str], limit: float) -> dict[str, tuple[str, int]]:
        asked.append(admin)
        raise errors.NotAuthorized("no right", kept="all", then="grant it")

    monkeypatch.setattr(source_ids, "topic_ids", refuse)
    with pytest.raises(errors.NotAuthorized):
        checked().require(PLANNED, reset=False)
    assert len(asked) == 1
