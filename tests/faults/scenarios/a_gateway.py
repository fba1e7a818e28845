"""Kill the gateway at each step of a transaction, and at random moments: without Spark, so hundreds of times."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

from faults.direct import House, house, killing
from faults.proof import Strike, by_fault
from faults.scenario import Context, Result, Scenario
from tailrace import crash_points
from tailrace.crash_points import Crash, Point

FAULTS = {
    Point.SINK_FENCED: "gateway dies: older owners fenced, marker not read",
    Point.MARKER_READ: "gateway dies: marker read, transaction not begun",
    Point.TRANSACTION_BEGUN: "gateway dies: transaction begun, nothing sent",
    Point.SENT_IN_PART: "gateway dies: records sent in part",
    Point.ALL_SENT: "gateway dies: all records sent, no marker",
    Point.MARKER_SENT: "gateway dies: marker sent, not committed",
    Point.COMMIT_SENT: "gateway dies: commit sent, not answered",
    Point.COMMIT_ACKNOWLEDGED: "gateway dies: commit acknowledged, not believed",
    Point.BATCH_WRITTEN: "gateway dies: commit believed, worker not told",
}
AGAIN = "a new driver hands in a delivered batch again"


def points(context: Context) -> list[Result]:
    """Strike a different step in each batch; only one sink partition triggers it, but all lose their gateway."""
    rounds, rows, sinks = (1, 5_000, 4) if context.quick else (12, 30_000, 4)
    plan = [point for _ in range(rounds) for point in FAULTS]
    # Batch 0 is written undisturbed, so that the first strike finds warm producers, as in production.
    crashes = [Crash(point, batch=number, partition=number % sinks) for number, point in enumerate(plan, 1)]
    marks = context.folder / "crashes"
    strikes: list[Strike] = []
    with house(context, rows, sinks, crashes, marks) as one:
        one.batch()
        for number, point in enumerate(plan, 1):
            # A new driver's run takes fresh producers, and only then do these two steps occur.
            fresh = point in {Point.SINK_FENCED, Point.MARKER_READ}
            written = one.batch(run=f"run from {number}" if fresh else "run")
            skipped = written[number % sinks].skipped
            strikes.append(Strike(FAULTS[point], number, "skipped" if skipped else "written"))
            if number % 3 == 0:
                again = one.batch(run=f"run after {number}", number=number)
                if not all(each.skipped for each in again):
                    raise RuntimeError(f"batch {number} was delivered, but written again: {again}")
                strikes.append(Strike(AGAIN, number))
        happened = Counter((each["at"], each["how"]) for each in crash_points.happened(marks))
        context.say(f"crashes that happened: {dict(happened)}")
        if sum(happened.values()) != len(plan):
            raise RuntimeError(f"{len(plan)} crashes were planned, {sum(happened.values())} happened: {happened}")
        proof = one.prove()
        context.say(str(proof))
        return _counted(by_fault(proof, one.cuts(), strikes), strikes)


def _counted(rows: list[Result], strikes: list[Strike]) -> list[Result]:
    """Note how often the replay found the struck sink partition already written."""
    found = []
    for row in rows:
        outcomes = Counter(each.note for each in strikes if each.fault == row.fault and each.note)
        note = f"replay: {outcomes['skipped']} found written" if outcomes["skipped"] else ""
        found.append(replace(row, note=note))
    return found


def kills(context: Context) -> list[Result]:
    """Kill the gateway at a random moment of a batch; the moments are drawn from the seed."""
    runs, rows = (5, 20_000) if context.quick else (60, 50_000)
    strikes: list[Strike] = []
    with house(context, rows) as one:
        usual = _timed(one)
        while len(strikes) < runs:
            wait = killing(one.pid(), context.chance.uniform(0, usual))
            began = time.monotonic()
            number = one.batches
            one.batch()
            took = time.monotonic() - began
            if wait() and took > 0:
                strikes.append(Strike("gateway killed -9 at a random moment", number))
        proof = one.prove()
        context.say(str(proof))
        return by_fault(proof, one.cuts(), strikes)


def _timed(one: House) -> float:
    """Measure how long an undisturbed batch takes."""
    one.batch()
    began = time.monotonic()
    one.batch()
    return time.monotonic() - began


SCENARIOS = (
    Scenario("gateway-points", "Crash points: the gateway", "promised", points, quick=False),
    Scenario("gateway-kills", "Kills at random", "promised", kills),
)
