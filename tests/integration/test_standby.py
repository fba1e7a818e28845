"""A standby driver: what it checks and prepares, and that it changes nothing until it leads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from support.pipelines import Bench, as_json, events_of, numbered
from tailrace import errors
from tailrace.config import Pipeline
from tailrace.kafka.cluster import Cluster
from tailrace.progress.lease import Lease, Phase, running
from tailrace.progress.ledger import Ledger
from tailrace.startup.run import Stop, run
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
    assert [each["event"] for each in events][:2] == ["standby", "started"]
    assert one.values() == numbered(0, 30)


def test_standby_without_a_leader_leads_at_once(bench: MakeBench) -> None:
    """So every driver of a deployment can start the same way, including the very first one."""
    one = bench()
    one.send(numbered(0, 10))
    events = waits(one, one.pipeline(), lambda event, stop: stop("enough") if event["event"] == "written" else None)
    assert events_of(events, "standby")[0]["leader"] is None
    assert one.values() == numbered(0, 10)


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
