"""Run a stateful pipeline: a Spark streaming query, followed batch by batch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailrace import errors
from tailrace.config import Pipeline
from tailrace.driver import first_position, open_transactions, recovery
from tailrace.driver.brokers import Brokers, asking
from tailrace.driver.context import Context
from tailrace.driver.lead import Renewal, overtaken, refuse_overtaken, require_lead
from tailrace.driver.recovery import Recovered
from tailrace.driver.shutdown import unfinished
from tailrace.driver.spark_errors import failure
from tailrace.driver.table_sizes import fill_caches_of_stream
from tailrace.driver.task_reports import reports
from tailrace.kafka import source
from tailrace.kafka.clients import TopicPartitions
from tailrace.kafka.cluster import Cluster
from tailrace.progress import expiry
from tailrace.progress.marker import Marker
from tailrace.progress.plan import BEFORE_FIRST, BatchId, Plan, SinkPartition, unseen
from tailrace.progress.positions import listed, named, seen_again
from tailrace.progress.stream_plan import AnyPlan, StreamPlan
from tailrace.spark_stream import spark_source
from tailrace.spark_stream.checkpoint import Checkpoint
from tailrace.spark_stream.exact import make_exact
from tailrace.spark_stream.frame import bounded_state, frame, leaves
from tailrace.spark_stream.gate import Gate
from tailrace.spark_stream.hadoop_errors import of_state
from tailrace.spark_stream.rate_control import RateControl
from tailrace.spark_stream.runner import Runner
from tailrace.spark_stream.source_topics import SourceTopics
from tailrace.stages.assembly import Assembly
from tailrace.status.events import Idle, Noted, OffsetsReset, Ready, Started, Stopped

IDLE_AFTER = 1.0  # seconds without a batch before checking whether the pipeline has drained
_LOOK_EVERY = 5.0  # seconds between two requests to brokers that have nothing new
_BEGINNINGS = 3
_NOTE_LIMIT = 15.0  # seconds for which a stop waits until Spark has noted the last batch as done
NOTHING = Recovered(None, MappingProxyType({}))
_UNLISTED = "you must specify all TopicPartitions"  # in the words of Spark's Kafka source


def run(context: Context, spark: SparkSession, recovered: Recovered, *, until_read: bool) -> None:
    """Run a stateful pipeline until it is stopped; with `until_read`, until what is there now has been read."""
    with bounded_state(spark, context.pipeline):
        _follow(context, spark, recovered, until_read=until_read)


def _follow(context: Context, spark: SparkSession, recovered: Recovered, *, until_read: bool) -> None:
    """Continue after what was recovered, or begin."""
    pipeline, plan = context.pipeline, recovered.plan
    recovery.check_kind(pipeline, plan)
    if not isinstance(plan, StreamPlan):
        if plan is None:
            recovery.check_new(pipeline, context.ledger, context.cluster, recovered.markers)
        context.emit(Started(pipeline.pipeline, context.run, 0))
        _from_the_beginning(context, spark, until_read, plan)
        return
    recovery.check_sink(pipeline, plan, recovered.markers)
    _check_open(plan, recovered.markers, context.assembly)
    context.emit(Started(pipeline.pipeline, context.run, plan.batch + 1))
    if context.stop.event.is_set():
        context.emit(Stopped(context.stop.reason, plan.batch))
        return
    topics = SourceTopics(pipeline, context.cluster, recovery.known_ids(plan))
    stored, again = topics.moved(plan.ends)
    # An earlier version noted none, or what one broker told: noted from now on, also if no other batch comes.
    plan = replace(plan, topics={**topics.of(plan.ends), **(plan.topics or {})})
    anew = first_position.moved(context, plan, stored)
    positions, notes = source.within(pipeline, stored | anew, context.cluster)
    positions |= _shortened(pipeline, positions, context.cluster)
    if anew:
        again.append(f"{pipeline.offsets.from_} has other offsets by now, and nothing was read yet; beginning there")
    context.mirror.compare(plan, plan.ends)
    _from(context, spark, topics, plan, positions, until_read, recovered, (*again, *notes))


def _shortened(pipeline: Pipeline, known: TopicPartitions, cluster: Cluster) -> TopicPartitions:
    """Return where new partitions begin that do not begin at 0: Spark would take that for a loss."""
    new = cluster.earliest(place for place in source.partitions_of(pipeline, cluster) if place not in known)
    return {place: at for place, at in new.items() if at > 0}


def _from_the_beginning(context: Context, spark: SparkSession, until_read: bool, known: Plan | None = None) -> None:
    """Run a pipeline that has no batch yet, from where it was `known` to begin, or from where a new one begins.

    Spark wants the offset of each partition that there is when it plans the first batch. If the source has grown since
    they were listed, nothing was planned, and the list is made again.
    """
    for left in reversed(range(_BEGINNINGS)):
        topics = SourceTopics(context.pipeline, context.cluster, recovery.known_ids(known))
        if known is None:
            topics.learn({topic for topic, _ in source.partitions_of(context.pipeline, context.cluster)})
            positions, known = first_position.chosen(context, topics.ids)
        else:
            positions, known = _recorded(context, topics, known)
        if context.stop.event.is_set():
            context.emit(Stopped(context.stop.reason, BEFORE_FIRST))
            return
        try:
            _from(context, spark, topics, known, positions, until_read)
        except errors.QueryFailed as error:
            if not left or _UNLISTED not in error.what or isinstance(context.ledger.latest(), StreamPlan):
                raise
            context.emit(Noted("the source has more partitions than when the pipeline started; it begins anew"))
        else:
            return


def _recorded(context: Context, topics: SourceTopics, known: Plan) -> tuple[TopicPartitions, Plan]:
    """Return where a pipeline begins that has recorded it, in the partitions that there are now, and the record.

    Its first batch has no place for the offsets of topics that are not read, so they are refused, as later ones are.
    """
    pipeline, cluster = context.pipeline, context.cluster
    kept = seen_again(known, source.topics(pipeline, cluster, known.topics).found)
    away = {place: at for place, at in unseen(known.away).items() if place[0] not in {topic for topic, _ in known.ends}}
    stored, again = topics.moved({**away, **kept, **known.ends})
    anew = first_position.moved(context, known, stored)
    positions, notes = source.within(pipeline, stored | anew, cluster)
    for note in (*again, *notes):
        context.emit(OffsetsReset(note))
    if not anew:
        places = listed([f"{named(place)} at {positions[place]}" for place in sorted(positions)])
        context.emit(Noted(f"there is no batch yet; beginning at the offsets in the ledger: {places}"))
    positions |= cluster.earliest([each for each in source.partitions_of(pipeline, cluster) if each not in positions])
    topics.learn({topic for topic, _ in positions}, {topic for topic, _ in stored})
    if anew or again or notes:  # recorded before anything is read, so that the next start does not reset again
        known = first_position.pinned(context, topics.of(positions), positions, chosen=first_position.by_hand(known))
    return positions, known


def _from(
    context: Context,
    spark: SparkSession,
    topics: SourceTopics,
    known: AnyPlan | None,
    positions: TopicPartitions,
    until_read: bool,
    recovered: Recovered = NOTHING,
    moved: Sequence[str] = (),
) -> None:
    """Run the query from these positions on, after this plan; `moved` says where they are not those of the plan."""
    markers = recovered.markers
    plan = known if isinstance(known, StreamPlan) else None
    pipeline, last = context.pipeline, plan.batch if plan is not None else BEFORE_FIRST
    if not open_transactions.wait(context, positions, last, "the next offset to read"):
        context.emit(Stopped(context.stop.reason, last))
        return
    control = RateControl(spark, pipeline, context.emit)
    gate = Gate.of(pipeline, reports(spark))
    runner = Runner(context, spark, control, gate, topics)
    control.begin(positions)
    first = positions if plan is None else None
    cut = frame(context.assembly, spark_source.stream(spark, pipeline, first, control.limit), gate)
    if plan is not None:
        _check_open(plan, markers, context.assembly, mixes=cut.mixes)
    checkpoint = Checkpoint(spark, pipeline, context.assembly.folder)
    try:
        if recovered.doubt is not None and checkpoint.lacks(BatchId(last)):
            raise recovered.doubt
        refuse_overtaken(context.ledger, pipeline, last + 1, sure=True)  # it may have written what is removed
        checkpoint.check(plan, frozenset(source.partitions_of(pipeline, context.cluster)))
        once = plan is not None and _finishes_first(checkpoint, topics, plan)
        if plan is not None and once:
            topics.wait()
            positions = plan.ends
        elif plan is not None and (moved or _behind(checkpoint, plan, positions)):
            for note in moved:  # first: a start after a crash finds the ledger as it is then, and nothing to report
                context.emit(OffsetsReset(note))
            plan = _moved(context, checkpoint, topics, plan, positions)
        if plan is not None and plan.done and not checkpoint.noted(plan.batch):
            expiry.check_done(plan, markers, recovery.way_out(pipeline, expiry.THEN, plan))
        if plan is not None and checkpoint.fit(leaves(cut.rows)):
            context.emit(Noted("the checkpoint was written by a query that read each record more or less often"))
        done = _written(plan, markers) if plan is not None else []
        touched, in_part = any(done), any(done) and not all(done)
        seen, chosen = frozenset(markers), first_position.by_hand(known)
        runner.begin(
            plan, positions, checkpoint, cut, touched=touched, in_part=in_part, seen=seen, once=once, chosen=chosen
        )
        _fill(cut.rows, pipeline)
        context.watcher.reading(lambda: runner.positions)
        context.emit(Ready(pipeline.pipeline, context.run))
        _stream(context, runner, topics, cut.rows, checkpoint.place, until_read)
    finally:
        checkpoint.close()


def _finishes_first(checkpoint: Checkpoint, topics: SourceTopics, plan: StreamPlan) -> bool:
    """Return whether the open batch is finished before the offsets move, as it reads nothing of the new topics."""
    return bool(topics.again) and not _at_rest(checkpoint, plan) and not plan.reads_of(topics.again)


def _behind(checkpoint: Checkpoint, plan: StreamPlan, positions: TopicPartitions) -> bool:
    """Return whether the checkpoint lacks positions: those of the ledger, after a crash, or of what is new."""
    if not _at_rest(checkpoint, plan):
        return False
    return checkpoint.ends(plan.batch) != plan.ends or not positions.keys() <= plan.ends.keys()


def _at_rest(checkpoint: Checkpoint, plan: StreamPlan) -> bool:
    return plan.is_empty_beginning or checkpoint.noted(plan.batch)


def _moved(
    context: Context, checkpoint: Checkpoint, topics: SourceTopics, plan: StreamPlan, positions: TopicPartitions
) -> StreamPlan:
    """Let Spark continue at other positions than those of the last batch, and return the plan with them.

    The ledger has them first: a start makes up for a checkpoint that has not. If Spark brings the batch again, it reads
    that as it was planned, and finds by itself what is left of the topics.
    """
    if _at_rest(checkpoint, plan):
        plan = plan.moved(positions, topics.of(positions))
        if plan.done or checkpoint.noted(plan.batch):
            plan = plan.finished()
            context.ledger.settle(plan, positions)
        else:
            context.ledger.write(plan, positions)
        context.mirror.settled(positions)
        checkpoint.move(plan.batch, positions)
    elif topics.again:
        raise topics.open(plan.batch)
    else:
        topics.refuse_gone(plan, positions)
        context.emit(Noted(f"batch {plan.batch} is finished first; after it, Spark reads what is left of the topics"))
    return plan


def _fill(rows: DataFrame, pipeline: Pipeline) -> None:
    """Fill the caches of lookup tables: Spark joins by their sizes, which are known only then."""
    try:
        fill_caches_of_stream(rows)
    except Exception as error:
        raise failure(error, pipeline) from error


def _check_open(
    plan: StreamPlan, markers: Mapping[SinkPartition, Marker], assembly: Assembly, *, mixes: bool = False
) -> None:
    """Refuse a changed function or schema while a batch is partly delivered; `mixes` is that of the function now."""
    done = _written(plan, markers)
    if any(done) and not all(done) and not plan.done:
        plan.check_repeatable(assembly.rules, assembly.code, assembly.settings, mixes=mixes)


def _written(plan: StreamPlan, markers: Mapping[SinkPartition, Marker]) -> list[bool]:
    found = [markers.get(SinkPartition(number)) for number in range(plan.sinks)]
    return [marker is not None and marker.next == plan.batch + 1 for marker in found]


def _stream(context: Context, runner: Runner, topics: SourceTopics, rows: DataFrame, folder: str, batch: bool) -> None:
    pipeline = context.pipeline
    make_exact(rows.sparkSession)  # the function may have set others
    writer = rows.writeStream.queryName(pipeline.pipeline).option("checkpointLocation", folder).foreachBatch(runner)
    trigger = {"availableNow": True} if batch else {"processingTime": f"{pipeline.batch.trigger} seconds"}
    query = writer.trigger(**trigger).start()
    drain = pipeline.batch.drain
    try:
        _watch(context, runner, topics, query, batch)
    except BaseException as error:
        at_once = isinstance(error, errors.DriverFenced) or runner.reads_of(topics.lost)
        with contextlib.suppress(errors.TailraceError):  # an error that follows from the first says less
            _end(context, query, runner, 0.0 if at_once else drain)
        raise
    given_up = _end(context, query, runner, drain)
    if given_up:
        raise unfinished(context.stop, runner.last, pipeline.batch.drain) from runner.error
    if runner.error is not None:
        raise runner.error
    if runner.finished:
        raise topics.finished(BatchId(runner.last))
    problem = None if runner.turns.refused else query.exception()
    if problem is not None:
        found = of_state(spark_source.planning_failure(problem) or failure(problem, pipeline), pipeline)
        raise overtaken(found, context.ledger, pipeline, runner.last + 1, context.run)
    reason = context.stop.reason or ("all that was there has been read" if batch else "the query ended")
    context.emit(Stopped(reason, runner.last))


def _watch(context: Context, runner: Runner, topics: SourceTopics, query: StreamingQuery, batch: bool) -> None:
    """Wait until the query ends or a stop is requested; report when the pipeline has drained or no broker answers.

    Raise DriverFenced if a newer driver takes over while a batch takes long, and PlanOfAnother if a source topic was
    created again.
    """
    reported: TopicPartitions | None = None
    brokers, asked, watched = Brokers(context.emit, asking(context.pipeline.kafka)), 0.0, ""
    renewal = Renewal(context.ledger, context.pipeline, context.renew_every)
    while query.isActive and not context.stop.event.wait(0.2):
        if runner.error is not None or runner.finished:
            return
        context.watcher.tick(query)
        current = f"{runner.last} {runner.open}" if runner.turns.busy else ""
        if not current or current != watched:
            lead = context.ledger, context.pipeline, runner.last, context.run
            brokers.batch(partial(require_lead, *lead, is_open=runner.open))
        watched = current
        brokers.look()
        topics.look()
        idle = runner.turns.idle >= IDLE_AFTER
        if idle:
            renewal.look(runner.last)
        if batch or not (idle or brokers.away):
            continue
        if runner.positions == reported and time.monotonic() - asked < _LOOK_EVERY:
            continue
        asked = time.monotonic()
        try:
            behind = source.lag(context.pipeline, runner.positions, context.cluster)
        except errors.KafkaError as error:  # if that matters, the query fails by itself
            if isinstance(error, errors.BrokerUnreachable | errors.KafkaFailed):
                brokers.silent(error.what)
            continue
        brokers.answered()
        if idle and behind == 0 and runner.positions != reported and runner.settle():
            reported = dict(runner.positions)
            context.emit(Idle(runner.last))


def _end(context: Context, query: StreamingQuery, runner: Runner, drain: float) -> bool:
    """Let the batch in progress finish, settle it, and end the query; return whether the batch was given up."""
    runner.turns.close()
    context.watcher.stopping()
    done = context.stop.drained(lambda: runner.turns.busy and query.isActive, drain)
    try:
        free = done and (runner.turns.refused or query.isActive or query.exception() is None) and runner.settle()
        # The note may be on its way to the store. A standby that does not see it deletes what it would need then.
        if free and context.stop.drained(lambda: query.isActive and not runner.noted, _NOTE_LIMIT):
            context.watcher.left()  # nothing is or will be open: a standby need not wait for Spark to end
    finally:
        with contextlib.suppress(Exception):  # a query that has failed reports it through exception()
            query.stop()
        context.watcher.tick(query)
    return not done and not runner.settle()  # it may have finished at the last moment
