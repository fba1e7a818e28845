"""The run of a stateful pipeline: a streaming query of Spark's, followed batch by batch ."""

from __future__ import annotations

import contextlib
import time

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tailrace import errors
from tailrace.driver.context import Drive
from tailrace.driver.recovery import Recovered
from tailrace.driver.shutdown import unfinished
from tailrace.driver.spark_errors import failure
from tailrace.driver.task_reports import told
from tailrace.kafka import source
from tailrace.kafka.clients import TopicPartitions
from tailrace.progress.plan import Plan, SinkPartition
from tailrace.progress.stream_plan import StreamPlan
from tailrace.spark_stream import spark_source
from tailrace.spark_stream.checkpoint import Checkpoint
from tailrace.spark_stream.frame import bound_state, frame, leaves
from tailrace.spark_stream.gate import Gate
from tailrace.spark_stream.rate_control import RateControl
from tailrace.spark_stream.runner import Runner
from tailrace.stages.assembly import Assembly

IDLE_AFTER = 1.0  # seconds without a batch until the pipeline is asked whether it has drained
_LOOK_EVERY = 5.0  # seconds between two looks at brokers that have nothing new


def run(drive: Drive, recovered: Recovered, *, until_read: bool) -> None:
    """Run a stateful pipeline until it is stopped; with `until_read`, until what is there now has been read."""
    pipeline, ledger, plan = drive.pipeline, drive.ledger, recovered.plan
    if isinstance(plan, Plan):
        raise errors.CheckpointMismatch(
            f"batch {plan.batch} of {pipeline.pipeline!r} was planned without a checkpoint, and the pipeline has "
            f"checkpoint {pipeline.checkpoint!r} now",
            kept="nothing was read or written",
            then="give the pipeline a new name, and a section `offsets` with from: tailrace." + pipeline.pipeline,
        )
    if plan is not None:
        _check_open(plan, recovered, drive.assembly)
    control = RateControl(drive.spark, pipeline, drive.emit)
    gate = Gate.of(pipeline, told(drive.spark))
    runner = Runner(
        drive.spark,
        pipeline,
        drive.assembly,
        ledger,
        drive.cluster,
        drive.run,
        drive.emit,
        drive.stop.event,
        drive.keeper,
        control,
        drive.follower.board.finished,
        gate,
    )
    read = {} if plan is not None else ledger.positions(dict.fromkeys(source.partitions_of(pipeline, drive.cluster), 0))
    if plan is None and (recovered.markers or read):
        raise errors.ProgressMissing(
            f"the ledger {pipeline.ledger.topic!r} has {len(recovered.markers)} markers of {pipeline.pipeline!r}, "
            f"its group has offsets of {len(read)} partitions, and there is no plan",
            kept="nothing was read or written",
            then="restore the ledger topic; `tailrace explain TR-306` has the choices",
        )
    first, positions = None, {}
    drive.emit(
        {"event": "started", "pipeline": pipeline.pipeline, "run": drive.run, "batch": plan.batch + 1 if plan else 0}
    )
    if plan is None:
        first = positions = drive.keeper.begin(drive.cluster)
    else:
        if drive.stop.event.is_set():
            drive.emit({"event": "stopped", "reason": drive.stop.reason, "batch": plan.batch})
            return
        stored = plan.ends
        positions, notes = source.within(pipeline, stored, drive.cluster)
        for note in notes:
            drive.emit({"event": "reset", "what": note})
        drive.keeper.compare(plan, stored)
        if notes:
            plan = plan.finished(positions)
    control.begin(positions)
    bound_state(drive.spark, pipeline)
    cut = frame(drive.assembly, spark_source.stream(drive.spark, pipeline, first, control.limit), gate)
    checkpoint = Checkpoint(drive.spark, pipeline, drive.assembly.folder)
    try:
        checkpoint.check(plan)
        if plan is not None and checkpoint.fit(leaves(cut.rows)):
            drive.emit(
                {"event": "note", "what": "the checkpoint was written by version 0.1, which read each record twice"}
            )
        runner.begin(plan, positions, checkpoint, cut.mixes)
        drive.follower.stream(lambda: runner.positions)
        _stream(drive, runner, cut.rows, checkpoint.place, until_read)
    finally:
        checkpoint.close()


def _check_open(plan: StreamPlan, recovered: Recovered, assembly: Assembly) -> None:
    """Refuse another function or schema for a batch that is delivered in part."""
    written = [recovered.markers.get(SinkPartition(number)) for number in range(plan.sinks)]
    done = [marker is not None and marker.next == plan.batch + 1 for marker in written]
    if any(done) and not all(done) and not plan.done:
        plan.check_repeatable(assembly.shape, assembly.code)


def _stream(drive: Drive, runner: Runner, rows: DataFrame, folder: str, batch: bool) -> None:
    pipeline = drive.pipeline
    writer = rows.writeStream.queryName(pipeline.pipeline).option("checkpointLocation", folder).foreachBatch(runner)
    trigger = {"availableNow": True} if batch else {"processingTime": f"{pipeline.batch.trigger} seconds"}
    query = writer.trigger(**trigger).start()
    try:
        _watch(drive, runner, query, batch)
    finally:
        given_up = _end(drive, query, runner)
    if given_up:
        raise unfinished(drive.stop, runner.last, pipeline.batch.drain) from runner.error
    if runner.error is not None:
        raise runner.error
    problem = None if runner.closed else query.exception()
    if problem is not None:
        raise failure(problem, pipeline)
    reason = drive.stop.reason or ("all that was there has been read" if batch else "the query ended")
    drive.emit({"event": "stopped", "reason": reason, "batch": runner.last})


def _watch(drive: Drive, runner: Runner, query: StreamingQuery, batch: bool) -> None:
    """Until the query ends or a stop is asked for; says when the pipeline has drained, and when no broker answers."""
    told: TopicPartitions | None = None
    away, asked = False, 0.0
    while query.isActive and not drive.stop.event.wait(0.2):
        if runner.error is not None:
            return
        drive.follower.look(query, drive.scaler.wanted)
        drive.scaler.look(drive.spark, drive.emit)
        if batch or runner.busy or time.monotonic() - runner.since < IDLE_AFTER:
            continue
        if runner.positions == told and time.monotonic() - asked < _LOOK_EVERY:
            continue
        asked = time.monotonic()
        try:
            behind = source.lag(drive.pipeline, runner.positions, drive.cluster)
        except errors.KafkaError as error:  # the query notices for itself whether that matters
            if not away:
                drive.emit({"event": "away", "what": error.what})
            away = True
            continue
        if away:
            drive.emit({"event": "back"})
        away = False
        if behind == 0 and runner.positions != told and runner.rest():
            told = dict(runner.positions)
            drive.emit({"event": "idle", "batch": runner.last, "lag": 0})


def _end(drive: Drive, query: StreamingQuery, runner: Runner) -> bool:
    """Let the batch that is under way finish, note that, and end the query; whether the batch was given up."""
    runner.close()
    drive.follower.board.stopping()
    done = drive.stop.drained(lambda: runner.busy and query.isActive, drive.pipeline.batch.drain)
    try:
        if done and (runner.closed or query.isActive or query.exception() is None) and runner.rest():
            drive.lease.close()  # nothing is open and nothing will be: a standby need not wait for Spark's end
    finally:
        with contextlib.suppress(Exception):  # a query that has failed says so through exception()
            query.stop()
        drive.follower.look(query)
    return not done and not runner.rest()  # it may have come to its end at the last moment
