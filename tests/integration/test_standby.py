"""A standby driver: what it checks and prepares, and that it changes nothing until it leads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from support.pipelines import Bench, as_json, events_of, numbered
from tailrace import errors
from tailrace.config import Pipeline
from tailrace.kafka.cluster import Cluster
from tailrace.progress.lease import Holder, Lease, Phase, running
from tailrace.progress.ledger import Ledger
from tailrace.progress.plan import BatchId, Plan
from tailrace.startup.run import Stop, run
from tailrace.startup.standby import Standby
from tailrace.testing import wait_until

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]


def waits(one: Bench, pipeline: Pipeline, on: Callable[[dict[str, Any], Stop], None]) -> list[dict[str, Any]]:
    """Run as a standby; `on` sees each event and may stop it."""
    events: list[dict[str, Any]] = []
    stop = Stop()

    def emit(event: dict[str, Any]) -> None:
        events.append(event)
        on(event, stop)

    limit = threading.Timer(120, lambda: stop("the limit of the test"))
    limit.daemon = True
    limit.start()
    try:
        run(pipeline, one.folder, standby=True, emit=as_json(emit), stop=stop, spark=one.spark)
    finally:
        limit.cancel()
    assert stop.reason != "the limit of the test", events
    return events


@contextmanager
def led(pipeline: Pipeline) -> Iterator[Lease]:
    """Let another driver lead."""
    with Ledger.of(pipeline), Lease(pipeline, "0ead") as lease:
        lease.hold(Phase.LEADING)
        cluster = Cluster(pipeline.kafka)
        wait_until(lambda: running(cluster, pipeline.pipeline), "the other driver's membership")
        yield lease


def test_standby_is_ready_and_leaves_without_a_change(bench: MakeBench) -> None:
    """It names the leading driver; when stopped, it ends cleanly, and the leader can still write its plans."""
    one = bench(partitions=2)
    one.send(numbered(0, 20))
    one.run()
    one.send(numbered(20, 30))
    pipeline = one.pipeline()
    before = one.values()

    def on(event: dict[str, Any], stop: Stop) -> None:
        if event["event"] == "standby":
            stop("enough")

    with led(pipeline), Ledger.of(pipeline) as ledger:
        ledger.take()
        events = waits(one, pipeline, on)
        plan = ledger.latest()
        ledger.settle(plan, {})
    assert [each["event"] for each in events] == ["standby", "stopped"]
    assert events[0]["leader"]["run"] == "0ead"
    assert events[0]["cold"] == []
    assert events[1]["batch"] is None
    assert one.values() == before


def test_standby_takes_over_when_the_leader_leaves(bench: MakeBench) -> None:
    """It does not lead earlier, and continues where the ledger ends."""
    one = bench(partitions=2)
    one.send(numbered(0, 20))
    one.run()
    one.send(numbered(20, 30))
    pipeline = one.pipeline()
    with led(pipeline) as lease:

        def on(event: dict[str, Any], stop: Stop) -> None:
            if event["event"] == "standby":
                threading.Timer(1.0, lease.close).start()
            if event["event"] == "started":
                assert running(Cluster(pipeline.kafka), one.name)[0].run == event["run"]
            if event["event"] == "idle":
                stop("enough")

        events = waits(one, pipeline, on)
    assert [each["event"] for each in events][:3] == ["standby", "started", "ready"]
    assert one.values() == numbered(0, 30)


def test_standby_without_a_leader_leads_at_once(bench: MakeBench) -> None:
    """So every driver of a deployment can start the same way, including the very first one.

    It is ready once it reads, and not before: there is no other driver that it could stand by.
    """
    one = bench()
    one.send(numbered(0, 10))
    events = waits(one, one.pipeline(), lambda event, stop: stop("enough") if event["event"] == "written" else None)
    assert [each["event"] for each in events][:2] == ["started", "ready"]
    assert one.values() == numbered(0, 10)


def test_start_says_whom_it_replaces_and_gives_way_if_it_may_not(bench: MakeBench) -> None:
    """A second start took over without a word."""
    one = bench()
    one.send(numbered(0, 10))
    pipeline = one.pipeline()
    with led(pipeline):
        asked: list[Holder] = []
        events: list[dict[str, Any]] = []

        def no(leader: Holder) -> bool:
            asked.append(leader)
            return False

        run(pipeline, one.folder, batch=True, emit=as_json(events.append), spark=one.spark, replaces=no)
        assert [each.run for each in asked] == ["0ead"]
        assert (events, one.values()) == ([], [])
        events = one.run(pipeline)
    assert events[0]["event"] == "changed"
    assert events[0]["what"].startswith("run 0ead on 127.0.0.1 has led since ")
    assert one.values() == numbered(0, 10)


def test_standby_of_another_sink_is_refused_while_the_driver_works(bench: MakeBench) -> None:
    """Once it was ready, and failed with TR-310 when the driver that it was to replace had gone."""
    one = bench()
    one.send(numbered(0, 10))
    one.run()
    pipeline = one.pipeline(sink={"topic": one.topics("elsewhere")})
    with led(pipeline), pytest.raises(errors.PlanOfAnother):
        waits(one, pipeline, lambda event, stop: pytest.fail(f"it said {event}"))


def test_standby_with_other_code_is_not_ready_on_the_open_batch_of_an_earlier_run(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver that leads may start again and again on that batch, and its successor would refuse it (TR-302).

    Once the leader has planned a batch of its own, it finishes its batches, and the standby is ready.
    """
    one = bench()
    one.send(numbered(0, 10))
    one.run()
    pipeline, asked, events = one.pipeline(), threading.Semaphore(0), list[str]()
    accepted = Standby._accepted

    def watched(self: Standby, first: Holder) -> bool:
        asked.release()
        return accepted(self, first)

    monkeypatch.setattr(Standby, "_accepted", watched)
    with led(pipeline), Ledger.of(pipeline) as ledger:
        ledger.take()
        last = ledger.latest()
        assert isinstance(last, Plan)
        behind = replace(last, batch=BatchId(last.batch + 1), shuffles=True, code="other", run="0ead1", done=False)
        ledger.write(behind, dict(last.ends))

        def on(event: dict[str, Any], stop: Stop) -> None:
            events.append(event["event"])
            if event["event"] == "standby":
                stop("enough")

        standby = threading.Thread(target=waits, args=(one, pipeline, on))
        standby.start()
        for _ in range(5):
            assert asked.acquire(timeout=60)
        assert events == []
        ledger.write(replace(behind, batch=BatchId(behind.batch + 1), run="0ead"), dict(last.ends))
        standby.join(60)
    assert events == ["standby", "stopped"]


def test_standby_outlives_brokers_that_are_away_while_it_looks_at_the_ledger(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not said yet that it is ready; it looks again, and is ready then."""
    one = bench()
    pipeline, accepted, asked = one.pipeline(), Standby._accepted, list[Holder]()

    def away_at_first(self: Standby, first: Holder) -> bool:
        asked.append(first)
        if len(asked) == 1:
            raise errors.BrokerUnreachable("no broker answers")
        return accepted(self, first)

    monkeypatch.setattr(Standby, "_accepted", away_at_first)
    with led(pipeline):
        events = waits(one, pipeline, lambda event, stop: stop("enough") if event["event"] == "standby" else None)
    assert [each["event"] for each in events] == ["standby", "stopped"]


def test_standby_refuses_what_a_start_would_refuse(bench: MakeBench) -> None:
    """It refuses while the old driver still works, so an upgrade that cannot work does not begin."""
    one = bench()
    one.write("counts.py", "def counts(frame):\n    return frame.groupBy('value').count().select('value')\n")
    for function, error in (
        ("counts.py:nothing", errors.FunctionMissing),
        ("counts.py:counts", errors.ConfigInvalid),
    ):
        pipeline = one.pipeline(process={"function": function})
        with led(pipeline), pytest.raises(error):
            waits(one, pipeline, lambda event, stop: None)


def test_lease_that_the_broker_refuses_stops_only_a_standby(bench: MakeBench) -> None:
    """A standby would wait for ever; a driver reports it once, and delivers the records."""
    one = bench()
    one.send(numbered(0, 10))
    pipeline = one.pipeline(ledger={"lease": 1.0})
    with pytest.raises(errors.KafkaFailed, match="INVALID_SESSION_TIMEOUT") as caught:
        waits(one, pipeline, lambda event, stop: None)
    assert "ledger.lease" in caught.value.then
    assert one.values() == []
    reported = threading.Event()

    def enough(events: list[dict[str, Any]]) -> bool:
        if events_of(events, "lease"):
            reported.set()
        return reported.is_set() and bool(events_of(events, "idle"))

    events = one.run_until(pipeline, enough)
    assert len(events_of(events, "lease")) == 1
    assert one.values() == numbered(0, 10)


@pytest.mark.parametrize("what", ["checkpoint", "ledger"])
def test_standby_whose_progress_is_elsewhere_is_refused_before_it_says_that_it_is_ready(
    bench: MakeBench, what: str
) -> None:
    """It could not take over, and the driver that leads would have ended by then."""
    one = bench()
    one.send(numbered(0, 5))
    one.run()
    other: dict[str, Any] = {
        "checkpoint": {"checkpoint": str(one.folder / "state")},
        "ledger": {"ledger": {"topic": f"{one.name}.other", "partitions": 8}},
    }
    said: list[dict[str, Any]] = []
    refusal = errors.CheckpointMismatch if what == "checkpoint" else errors.ProgressMissing
    with led(one.pipeline()), pytest.raises(refusal):
        waits(one, one.pipeline(**other[what]), lambda event, stop: said.append(event))
    assert events_of(said, "standby") == []
