"""An event says which Pipelines to look at."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tailrace_operator.api import ApiServer
from tailrace_operator.model import Key, Object
from tailrace_operator.platform import Platform
from tailrace_operator.process import Operator


def pipeline(name: str, **config: Any) -> Object:
    """Return a Pipeline."""
    return {"metadata": {"namespace": "ns", "name": name, "uid": name}, "spec": {"config": config}}


@pytest.mark.parametrize(
    ("config", "looked"),
    [
        ({"source": {"topics": ["orders.rejected"]}}, ["fix", "orders"]),
        ({"rejected": "orders.rejected"}, ["fix", "orders"]),
        ({"source": {"topics": ["orders"]}}, ["fix"]),
    ],
)
def test_pipeline_whose_topic_another_names_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], looked: list[str]
) -> None:
    """The topic is to outlive it, and it may be deleted before it would be looked at anyway."""
    api = SimpleNamespace(known=tuple, asked={})
    operator = Operator(Platform(Path(), {}), "helm", cast(ApiServer, api), 0)
    operator.heard(pipeline("orders"), gone=False)
    added: list[Key] = []
    monkeypatch.setattr(operator.work, "add", added.append)
    operator.heard(pipeline("fix", **config), gone=False)
    assert sorted(each.name for each in added) == looked


def test_phase_of_each_pipeline_is_told_until_it_is_gone() -> None:
    """An alert needs the name of one that has never worked; a failed reconcile says nothing about it."""
    api = SimpleNamespace(known=tuple, asked={})
    operator = Operator(Platform(Path(), {}), "helm", cast(ApiServer, api), 0)

    def told() -> list[dict[str, str]]:
        [family] = [each for each in operator.registry.collect() if each.name == "tailrace_operator_pipeline"]
        return [each.labels for each in family.samples if each.value == 1]

    about = {"pipeline_namespace": "ns", "pipeline": "orders"}
    for outcome in ("Starting", "error", "Failing", "Failing"):
        operator._done(Key("ns", "orders"), outcome, 0.1)
    assert told() == [about | {"phase": "Failing"}]
    for _ in range(2):
        operator._done(Key("ns", "orders"), "gone", 0.1)
    assert told() == []
