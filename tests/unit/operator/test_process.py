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
