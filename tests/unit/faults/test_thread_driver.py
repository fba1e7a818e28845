"""The driver of the worlds without Spark gives its tasks no more chances than Spark does."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from faults.worlds.thread_driver import GivingUp
from tailrace.config import Pipeline
from tailrace.driver.tasks import BatchInfo
from tailrace.driver.thread_engine import ThreadEngine
from tailrace.errors import BrokerUnreachable, TailraceError
from tailrace.gateway import Written
from tailrace.progress.plan import BatchId, Plan, Range

_LIMIT = 30.0


def test_delivery_that_has_failed_begins_no_other_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In seed 5877834 such attempts cut off those of the next delivery, until the driver ended."""
    tried: list[int] = []
    begun, failed, ended = threading.Event(), threading.Event(), threading.Event()

    def attempt(self: ThreadEngine, info: BatchInfo, number: int) -> Written:
        tried.append(number)
        if number == 1:  # it goes on until the delivery has failed, and may fail as well
            begun.set()
        assert (failed if number == 1 else begun).wait(_LIMIT)
        raise BrokerUnreachable("no broker answers", kept="all", then="wait")

    monkeypatch.setattr(ThreadEngine, "_attempt", attempt)
    pipeline = Pipeline.model_validate(
        {"pipeline": "p", "source": {"topics": ["in"]}, "sink": {"topic": "out", "format": "raw"}}
    )
    parts = tuple((Range("in", number, 0, 10),) for number in range(2))
    plan = Plan("p", BatchId(0), "run", {}, parts, 0, {})
    engine = GivingUp(pipeline, tmp_path, "run")
    real = engine._part

    def part(info: BatchInfo, number: int) -> Written:
        try:
            return real(info, number)
        finally:
            if number == 1:
                ended.set()

    monkeypatch.setattr(engine, "_part", part)
    try:
        with pytest.raises(TailraceError):
            engine.deliver(plan, {})
        failed.set()
        assert ended.wait(_LIMIT)
        assert tried.count(1) == 1
    finally:
        failed.set()
        engine.close()
