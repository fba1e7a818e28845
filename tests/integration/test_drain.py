"""Shutdown with a batch that does not end: it is given up at the deadline, and the next start finishes it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.pipelines import Bench, as_json, events_of, numbered
from tailrace import errors
from tailrace.config import Pipeline
from tailrace.progress.ledger import Ledger
from tailrace.startup.run import Stop, run
from tailrace.testing import wait_until

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]

# Holds the records of source partition 1 while the file `gate` exists.
GATED = """
    import time
    from pathlib import Path
    from pyspark.sql import functions as F
    from pyspark.sql.types import BinaryType

    GATE = Path({gate!r})

    def gated(frame):
        def check(value, partition):
            (GATE.parent / f"reached-{{partition}}").touch()
            for _ in range(1200):
                if partition != 1 or not GATE.exists():
                    return bytes(value)
                time.sleep(0.1)
            raise TimeoutError("the gate did not open")
        return frame.select(F.udf(check, BinaryType())("value", "kafka.partition").alias("value"))
"""


class Gate:
    """A file that holds a batch."""

    def __init__(self, one: Bench) -> None:
        self._folder, self._one = one.folder, one
        one.write("gated.py", GATED.format(gate=str(one.folder / "gate")))
        (one.folder / "gate").touch()

    def open(self) -> None:
        """Let all records pass."""
        (self._folder / "gate").unlink()

    def half_delivered(self) -> bool:
        """Return whether sink partition 0 is delivered and the other one is held."""
        return (self._folder / "reached-1").exists() and len(self._one.values()) == 10


def stopped_in_mid_batch(one: Bench, pipeline: Pipeline, held: Callable[[], bool], hurry: bool = False) -> list[Any]:
    """Run, request a stop when the batch is held, and return the events up to the error."""
    events: list[dict[str, Any]] = []
    stop = Stop()

    def emit(event: dict[str, Any]) -> None:
        events.append(event)
        if event["event"] == "planned":
            threading.Thread(target=ask, daemon=True).start()

    def ask() -> None:
        wait_until(held, "a partly delivered batch", 120)
        stop("the test says so")
        if hurry:
            stop.hurry("the test says it again")

    with pytest.raises(errors.DrainUnfinished) as caught:
        run(pipeline, one.folder, emit=as_json(emit), stop=stop, spark=one.spark)
    assert caught.value.exit_code == 5
    assert "batch 0 was not finished" in caught.value.what
    assert caught.value.what.endswith("a second signal came" if hurry else "batch.drain is 0.5 s")
    assert events_of(events, "stopped") == []
    one.settle()
    return events


@pytest.mark.parametrize("hurry", [False, True])
def test_abandoned_batch_is_finished_by_the_next_start(bench: MakeBench, hurry: bool) -> None:
    """It is given up at the deadline or by a second signal; its delivered part is not delivered again."""
    one = bench(partitions=2)
    one.send(numbered(0, 10), partition=0)
    one.send(numbered(10, 20), partition=1)
    gate = Gate(one)
    pipeline = one.pipeline(process={"function": "gated.py:gated"}, batch={"drain": 600 if hurry else 0.5})
    stopped_in_mid_batch(one, pipeline, gate.half_delivered, hurry)
    assert len(one.values()) == 10
    gate.open()
    events = one.run(pipeline)
    assert events_of(events, "written")[0]["skipped"] == 1
    assert one.values() == numbered(0, 20)


@pytest.mark.takes(12)
def test_replay_is_given_up_at_the_deadline_too(bench: MakeBench) -> None:
    """The replayed batch may hang like the first attempt."""
    one = bench(partitions=2)
    one.send(numbered(0, 10), partition=0)
    one.send(numbered(10, 20), partition=1)
    gate = Gate(one)
    pipeline = one.pipeline(process={"function": "gated.py:gated"}, batch={"drain": 0.5})
    stopped_in_mid_batch(one, pipeline, gate.half_delivered)
    Path(one.folder / "reached-1").unlink()
    events = stopped_in_mid_batch(one, pipeline, gate.half_delivered)
    assert [each["replay"] for each in events_of(events, "planned")] == [True]
    gate.open()
    one.run(pipeline)
    assert one.values() == numbered(0, 20)


def test_batch_that_ends_before_the_deadline_is_a_clean_end(bench: MakeBench) -> None:
    """The next start has nothing to repeat."""
    one = bench(partitions=2)
    one.send(numbered(0, 10), partition=0)
    one.send(numbered(10, 20), partition=1)
    gate = Gate(one)
    pipeline = one.pipeline(process={"function": "gated.py:gated"})
    events: list[dict[str, Any]] = []
    stop = Stop()

    def emit(event: dict[str, Any]) -> None:
        events.append(event)
        if event["event"] == "planned":
            stop("the test says so")
            gate.open()

    run(pipeline, one.folder, emit=as_json(emit), stop=stop, spark=one.spark)
    assert [each["event"] for each in events][-2:] == ["written", "stopped"]
    assert one.values() == numbered(0, 20)
    assert events_of(one.run(pipeline), "written") == []


def test_driver_that_is_stopped_before_it_starts_spark_does_not_start_it(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starting it takes seconds and requests executors, for nothing."""
    one, stop, events = bench(), Stop(), list[dict[str, Any]]()
    monkeypatch.setattr("tailrace.startup.run.refuse_second", lambda: None)  # the session is that of the tests
    stop("told to")
    for standby in (False, True):
        run(one.pipeline(), one.folder, emit=as_json(events.append), stop=stop, standby=standby)
    assert events_of(events, "starting") == []
    assert events_of(events, "stopped") == [{"event": "stopped", "reason": "told to", "batch": None}] * 2


def test_driver_that_is_stopped_while_it_starts_takes_nothing_over(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older driver goes on: a rolled back deployment ends the new one before it leads."""
    one, stop, events = bench(), Stop(), list[dict[str, Any]]()
    one.send(numbered(0, 5))
    pipeline = one.pipeline()
    with Ledger.of(pipeline) as older:
        older.take()
        monkeypatch.setattr("tailrace.startup.run.prepare", lambda *_: stop("told to"))
        run(pipeline, one.folder, emit=as_json(events.append), stop=stop, spark=one.spark)
        assert not older.overtaken()
    assert events_of(events, "stopped") == [{"event": "stopped", "reason": "told to", "batch": None}]
    one.run()
    assert one.values() == numbered(0, 5)
