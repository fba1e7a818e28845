"""Every crash point in a complete pipeline: in worker, gateway and driver, and killing all processes at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from faults.driven import PARTITIONS, Driven, Shape, driven
from faults.proof import Strike, by_fault
from faults.scenario import Context, Result, Scenario
from faults.scenarios.a_gateway import FAULTS as IN_GATEWAY
from tailrace import crash_points
from tailrace.crash_points import DRIVER, GATEWAY, READER, WORKER, Crash, Point, Victim

IN_WORKER = {
    Point.TASK_BEGUN: "worker dies: the gateway has heard nothing",
    Point.ROWS_IN_PART: "worker dies: rows handed over in part",
    Point.ROWS_SENT: "worker dies: all rows handed over, not said to be whole",
    Point.ROWS_WHOLE: "worker dies: said to be whole, not answered",
    Point.TASK_ANSWERED: "worker dies: answered, Spark not told",
}
IN_READER = {
    Point.READ_IN_PART: "gateway dies: records read in part",
    Point.READ_WHOLE: "gateway dies: records read, not noted",
    Point.ASIDE_GIVEN: "gateway dies: rejected records handed over, not noted",
    Point.ASIDE_NOTED: "gateway dies: every record judged, not answered",
}
IN_DRIVER = {
    Point.LOOKED_AHEAD: "driver dies: looked ahead, batch in progress",
    Point.PLAN_UNWRITTEN: "driver dies: batch cut, plan not written",
    Point.PLAN_OPEN: "driver dies: plan sent, not committed",
    Point.PLAN_SENT: "driver dies: the plan's commit sent, not answered",
    Point.PLAN_WRITTEN: "driver dies: plan written, no task begun",
    Point.LEDGER_TAKEN: "driver dies: in its start, older drivers fenced",
    Point.SINKS_FENCED: "driver dies: in its start, sink partitions fenced",
    Point.OPEN_BATCH_FINISHED: "driver dies: in its start, open batch finished",
    Point.BATCH_DONE: "driver dies: all sink partitions written, not noted",
    Point.BATCH_RETURNED: "driver dies: batch done, the next one not planned",
    Point.DONE_OPEN: "driver dies: the note of the end not committed",
    Point.DONE_NOTED: "driver dies: the end noted, not left",
}
NAMES = IN_GATEWAY | IN_READER | IN_WORKER | IN_DRIVER
_STARTING = (Point.LEDGER_TAKEN, Point.SINKS_FENCED, Point.OPEN_BATCH_FINISHED)
_LAST = (Point.DONE_OPEN, Point.DONE_NOTED)


def tasks(context: Context) -> list[Result]:
    """Kill workers and gateways, at one point per batch; a single driver must survive all of it."""
    rounds, per_batch = (1, 20_000) if context.quick else (5, 100_000)
    crashes = _by_batch([point for _ in range(rounds) for point in (*WORKER, *READER, *GATEWAY)], 1, Victim.PROCESS)
    with driven(context, Shape(per_batch, _last(crashes) + 3), crashes=crashes) as one:
        one.start()
        one.drain()
        one.stop()
        if one.starts != 1:
            raise RuntimeError(f"one driver must survive all crashes, but {one.starts} were started")
        return proved(one)


def _by_batch(points: Sequence[Point], step: int, kills: Victim) -> list[Crash]:
    """Plan a batch for each point; only a fresh producer fences, so SINK_FENCED comes in another point's replay."""
    found: list[Crash] = []
    for point in points:
        if point is Point.SINK_FENCED:
            continue
        batch = _last(found) + step
        found.append(Crash(point, batch, None if point in DRIVER else batch % PARTITIONS, kills))
        if point is Point.MARKER_READ:
            found.append(replace(found[-1], at=Point.SINK_FENCED))
    return found


def _last(crashes: Sequence[Crash]) -> int:
    return max((each.batch or 0 for each in crashes), default=0)


def drivers(context: Context) -> list[Result]:
    """Kill the driver at one point per batch, and three times in the start that follows an open batch."""
    rounds, per_batch = (1, 20_000) if context.quick else (1, 100_000)
    crashes: list[Crash] = []
    batch = 1
    for _ in range(rounds):
        for point in (each for each in DRIVER if each not in (*_STARTING, *_LAST)):
            crashes.append(Crash(point, batch=batch))
            if point is Point.PLAN_WRITTEN:
                crashes += [Crash(each, batch=batch) for each in _STARTING]
            batch += 2 if context.quick else 3
    crashes += [Crash(each) for each in _LAST]
    with driven(context, Shape(per_batch, batch + 1), crashes=crashes) as one:
        one.start()
        one.drain()
        one.stop()
        return proved(one)


def trees(context: Context) -> list[Result]:
    """Kill driver, JVM, workers and gateway at once when one of them reaches the point."""
    points = (
        (Point.SENT_IN_PART, Point.COMMIT_SENT) if context.quick else (*WORKER, *READER, *GATEWAY, Point.PLAN_WRITTEN)
    )
    crashes = _by_batch(points, 2, Victim.TREE)
    with driven(context, Shape(20_000 if context.quick else 100_000, _last(crashes) + 3), crashes=crashes) as one:
        one.start()
        one.drain()
        one.stop()
        return proved(one, "whole tree dies: ")


def proved(one: Driven, prefix: str = "") -> list[Result]:
    """Return the results of a pipeline whose crashes have all happened."""
    strikes = []
    for each in crash_points.happened(one.marks):
        name = NAMES[Point(each["at"])]
        name = prefix + name.partition(": ")[2] if prefix else name
        if each["how"] == "answered":
            name += " (answered meanwhile)"  # a row of its own: librdkafka's log came too late
        strikes.append(Strike(name, int(each["batch"])))
    one.context.say(f"{one.starts} starts, {len(strikes)} crashes")
    proof = one.prove()
    one.context.say(str(proof))
    return by_fault(proof, one.cuts(), strikes)


SCENARIOS = (
    Scenario("task-points", "Crash points: a pipeline's workers and gateway", "promised", tasks),
    Scenario("driver-points", "Crash points: the driver", "promised", drivers, length=2),
    Scenario("tree-points", "Crash points: the whole tree", "promised", trees),
)
