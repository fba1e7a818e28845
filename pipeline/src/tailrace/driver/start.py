"""Startup of a stateless pipeline as steps: finish the open batch, check the offsets, then loop."""

from __future__ import annotations

from tailrace import crash_points, errors
from tailrace.crash_points import Point
from tailrace.driver import recovery
from tailrace.driver.engine import Engine
from tailrace.driver.look import Look
from tailrace.driver.loop import Loop, Run
from tailrace.driver.recovery import Recovered
from tailrace.kafka import source
from tailrace.kafka.clients import TopicPartitions
from tailrace.progress.plan import Plan, Range


def run(run: Run, engine: Engine, recovered: Recovered, *, until_read: bool) -> None:
    """Go on where the ledger says, until a stop is asked for."""
    plan, pipeline = recovered.plan, run.pipeline
    ids = {topic: name for topic, (name, _) in Look(pipeline, run.cluster).topics().items()}
    if plan is None:
        _check_new(run, recovered)
    run.emit(
        {"event": "started", "pipeline": pipeline.pipeline, "run": run.name, "batch": plan.batch + 1 if plan else 0}
    )
    loop = Loop(run, engine, plan=plan)
    if plan is None:
        loop.positions = run.keeper.begin(run.cluster)
    else:
        again = recovery.check_same(pipeline, plan, ids)
        if run.stop.event.is_set():
            run.emit({"event": "stopped", "reason": run.stop.reason, "batch": plan.batch})
            return
        positions = _finish(run, loop, recovered, again)
        crash_points.at(Point.OPEN_BATCH_FINISHED, plan.batch)
        loop.positions = _checked(run, loop, positions, again)
    loop.begin(ids)
    run.following(lambda: loop.positions)
    loop.stream(until_read=until_read)


def _check_new(run: Run, recovered: Recovered) -> None:
    """Refuse to begin where others have left traces: their plan is missing."""
    read = run.ledger.positions(dict.fromkeys(source.partitions_of(run.pipeline, run.cluster), 0))
    if recovered.markers or read:
        raise errors.ProgressMissing(
            f"the ledger {run.pipeline.ledger.topic!r} has {len(recovered.markers)} markers of "
            f"{run.pipeline.pipeline!r}, its group has offsets of {len(read)} partitions, and there is no plan",
            kept="nothing was read or written",
            then="restore the ledger topic, or say where to go on: tailrace offsets set FILE … --give-up; `tailrace "
            "explain TR-306` has the choices",
        )


def _finish(run: Run, loop: Loop, recovered: Recovered, again: frozenset[str]) -> TopicPartitions:
    """Deliver what is missing of the last batch; return where the next one begins."""
    plan = recovered.plan
    if plan is None:
        raise errors.InvariantBroken("there is no plan to finish")
    left = recovery.unfinished(plan, recovered.markers, run.ledger, run.shape, run.code)
    loop.marked = max((plan.marked if isinstance(plan, Plan) else 0.0), plan.at if recovered.markers else 0.0)
    if isinstance(left, dict):  # nothing of it was delivered: it is chosen again, and gets the same number
        loop.plan, loop.number = plan, plan.batch
        return dict(left)
    if left is not None:
        for each in left.ranges:
            if each.topic in again:
                _report_gone(run, each)
        loop.deliver(left, gone=again)
        loop.replayed(left)
    return dict(plan.ends)


def _report_gone(run: Run, gone: Range) -> None:
    run.emit(
        {
            "event": "reset",
            "what": f"{gone.topic}-{gone.partition}: {gone.end - gone.start} planned offsets, {gone.start} to "
            f"{gone.end - 1}, are gone: the topic was deleted and created again",
        }
    )


def _checked(run: Run, loop: Loop, stored: TopicPartitions, again: frozenset[str]) -> TopicPartitions:
    """Return the positions, moved where they are out of range and the pipeline allows it; what was moved is noted."""
    pipeline = run.pipeline
    kept = {place: offset for place, offset in stored.items() if place[0] not in again}
    positions, notes = source.within(pipeline, kept, run.cluster)
    for topic in sorted(again):
        notes.append(f"{topic} was deleted and created again; reading it from its beginning")
    for note in notes:
        run.emit({"event": "reset", "what": note})
    if loop.plan is not None:
        run.keeper.compare(loop.plan, stored)
    if notes and loop.delivered:  # noted before anything is read: the next start must not reset once more
        loop.positions = positions
        loop.settle()
    return positions
