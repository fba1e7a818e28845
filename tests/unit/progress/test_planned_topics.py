"""A plan whose topics had other ids in one answer: the brokers are asked again before it counts as a loss."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tailrace import errors
from tailrace.kafka import source
from tailrace.kafka.cluster import Cluster
from tailrace.progress import planned_topics
from tailrace.progress.plan import BatchId, Plan

PLAN = Plan("p", BatchId(3), "out", {"in": "new"}, (), 0, {})


@pytest.mark.parametrize(
    ("answers", "error"), [(["old", "new"], errors.KafkaFailed), (["newer"], errors.PlanOfAnother)]
)
def test_former_id_is_not_reported_as_a_topic_created_again(
    monkeypatch: pytest.MonkeyPatch, answers: Iterable[str], error: type[errors.TailraceError]
) -> None:
    """The command for such a topic reads it from its beginning, which would deliver everything again."""
    given = chain(answers, repeat([*answers][-1]))
    monkeypatch.setattr(source, "CERTAIN_AFTER", 0.1)
    monkeypatch.setattr(source, "_ASK_EVERY", 0.01)
    monkeypatch.setattr(source, "by_name", lambda admin, names: ({"in": (next(given), 1)}, frozenset[str]()))
    cluster: Any = SimpleNamespace(admin=None)
    assert type(planned_topics.refusal(PLAN, ["in"], cast("Cluster", cluster))) is error


def test_topic_whose_positions_are_not_written_is_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be hidden or created again since it is no longer read, and says nothing about the others."""
    asked: list[set[str]] = []

    def answer(admin: object, names: Iterable[str]) -> dict[str, tuple[str, int]]:
        asked.append(set(names))
        return {"in": ("new", 1)}

    monkeypatch.setattr(planned_topics, "topic_ids", answer)
    plan = Plan("p", BatchId(3), "out", {"in": "new", "left": "old"}, (), 0, {})
    assert planned_topics.changed(plan, ["in"], cast("Cluster", SimpleNamespace(admin=None))) == []
    assert asked == [{"in"}]
