"""What is recorded of where a new pipeline begins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.config import Pipeline, Reset, Sink, Source
from tailrace.driver import first_position
from tailrace.driver.offset_mirror import Beginning


def test_topic_that_was_listed_late_is_recorded_with_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise nobody would notice that it is deleted and created again, before its id is asked for or after."""
    source = Source(pattern="in.*", auto_offset_reset=Reset.LATEST)
    positions, again = {("in-1", 0): 5, ("in-2", 0): 7}, {("in-1", 0): 6, ("in-2", 0): 0}
    begun = iter([Beginning(positions, {}), Beginning(again, {})])
    mirror = SimpleNamespace(begin=lambda cluster: next(begun), settled=lambda positions: None)
    ledger = SimpleNamespace(settle=lambda plan, positions: None)
    context: Any = SimpleNamespace(
        pipeline=Pipeline(pipeline="p", source=source, sink=Sink(topic="out")),
        mirror=mirror,
        ledger=ledger,
        cluster=None,
        run="r",
    )
    monkeypatch.setattr("tailrace.kafka.source.sure_ids", lambda names, cluster: dict.fromkeys(names, "id-2"))
    found, plan = first_position.chosen(context, {"in-1": "id-1"})
    assert plan is not None
    assert (found, plan.topics) == (again, {"in-1": "id-1", "in-2": "id-2"})
