"""Startup of a stateless pipeline as steps: finish the open batch, check the offsets, then loop."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from tailrace import crash_points, errors
from tailrace.config import Delivery, OnDataLoss
from tailrace.crash_points import Point
from tailrace.driver import first_position, open_transactions, recovery, source_changes
from tailrace.driver.choose import read_whole
from tailrace.driver.context import Context
from tailrace.driver.engine import Engine
from tailrace.driver.lead import refuse_overtaken
from tailrace.driver.loop import Loop
from tailrace.driver.recovery import Recovered
from tailrace.kafka import source
from tailrace.kafka.clients import TopicPartitions
from tailrace.kafka.topics import completed
from tailrace.progress import chosen_again
from tailrace.progress.marker import Marker
from tailrace.progress.plan import Place, Plan, SinkPartition, position
from tailrace.progress.stream_plan import AnyPlan, StreamPlan
from tailrace.status.events import Noted, OffsetsReset, Ready, Started, Stopped

_TRIES = 5  # Spark tries a task four times


def run(context: Context, engine: Engine, recovered: Recovered, *, until_read: bool) -> None:
    """Continue where the ledger says, until a stop is requested."""
    plan, pipeline = recovered.plan, context.pipeline
    if plan is None:  # where it begins is recorded with the ids
        topics = {topic for topic, _ in source.partitions_of(pipeline, context.cluster)}
        ids = source.sure_ids(topics, context.cluster)
        recovery.check_new(pipeline, context.ledger, context.cluster, recovered.markers)
    else:
        ids = source.ids(pipeline, context.cluster, recovery.known_ids(plan))
    context.emit(Started(pipeline.pipeline, context.run, plan.batch + 1 if plan else 0))
    loop = Loop(context, engine, plan=plan)
    if plan is None:
        loop.positions, loop.plan = first_position.chosen(context, ids)
    else:
        again = recovery.check_same(pipeline, plan, ids)
        if context.stop.event.is_set():
            context.emit(Stopped(context.stop.reason, plan.batch))
            return
        positions = _finish(context, loop, recovered, ids, again)
        if positions is None:
            context.emit(Stopped(context.stop.reason, plan.batch))
            return
        crash_points.at(Point.OPEN_BATCH_FINISHED, plan.batch)
        # The markers of a batch that Spark has made would be taken for those of the first one.
        anew = first_position.moved(context, plan, positions) if isinstance(plan, Plan) else {}
        loop.positions = _checked(context, loop, positions | anew, again, ids)
        if anew:
            new = {topic for topic, _ in loop.positions} - recovery.known_ids(plan).keys()
            ids |= source.sure_ids(new, context.cluster)
            loop.plan = first_position.pinned(context, ids, loop.positions, loop.away)
        if loop.plan is not None and loop.plan.done and not plan.done:  # given up: the driver that planned it ends
            loop.settle()
    # A topic that is missing just now is still the one that was read, so that another one in its place is noticed.
    loop.begin({**recovery.known_ids(loop.plan), **ids})
    until = plan.until if isinstance(plan, Plan) else None
    context.watcher.reading(lambda: loop.positions, None if until is None else dict(until))
    context.emit(Ready(pipeline.pipeline, context.run))
    loop.stream(until_read=until_read)


def _finish(
    context: Context, loop: Loop, recovered: Recovered, ids: Mapping[str, str], again: frozenset[str]
) -> TopicPartitions | None:
    """Deliver what is missing of the last batch; return where the next one begins, or None if a stop came first."""
    plan = recovered.plan
    if plan is None:
        raise errors.InvariantBroken("there is no plan to finish")
    left = _left(context, loop.engine, plan, recovered.markers)
    loop.marked = recovery.last_marked(plan, recovered.markers)
    if isinstance(left, dict):
        loop.plan = _given_up(context, plan, left, ids)
        if plan.delivery is Delivery.EXACTLY_ONCE:
            loop.marked = loop.plan.at
        return dict(left)
    if left is not None:
        left = recovery.rest(left, recovered.markers)
        gone = again | recovery.recreated(context.pipeline, left, ids, context.cluster)
        if not _readable(context, left, gone):
            return None
        for each in left.ranges:
            if each.topic in gone:
                context.emit(source_changes.loss(each, "are gone: the topic was deleted and created again"))
        loop.deliver(left, gone=gone, seen=frozenset(recovered.markers))
        loop.replayed(left)
    return dict(plan.ends)


def _left(
    context: Context, engine: Engine, plan: AnyPlan, markers: Mapping[SinkPartition, Marker]
) -> Plan | dict[Place, int] | None:
    """Return what is left of the last batch; if it is to be chosen again, its late tasks are refused from now on.

    Tasks of its driver that are still tried again may write in between. Then the batch is judged again.
    """
    ledger, own = context.ledger, context.assembly
    for more in reversed(range(_TRIES)):
        try:
            back = chosen_again.reopened(plan, markers)
            _mark(context, plan, back, markers)
            markers = {**markers, **back}
            left = recovery.unfinished(plan, markers, ledger, own.rules, own.code, own.settings, engine.fits)
            if isinstance(left, dict):
                _mark(context, plan, chosen_again.unwritten(plan, markers), markers)
            return left
        except errors.PipelineRunning:
            if not more:
                raise
        refuse_overtaken(ledger, context.pipeline, plan.batch, sure=True)  # the fence would stop it
        ledger.fence(plan.sinks)
        markers = ledger.markers(fenced=True)
    raise errors.InvariantBroken("a start judged its open batch no times")


def _mark(
    context: Context, plan: AnyPlan, new: Mapping[SinkPartition, Marker], known: Mapping[SinkPartition, Marker]
) -> None:
    if new:
        refuse_overtaken(context.ledger, context.pipeline, plan.batch, sure=True)  # it may deliver the batch
        context.ledger.give_up([*new], next(iter(new.values())), known)


def _given_up(context: Context, plan: AnyPlan, begins: TopicPartitions, ids: Mapping[str, str]) -> Plan:
    """Return a finished plan that holds nothing of the batch, only where its records are read again."""
    if plan.delivery is Delivery.EXACTLY_ONCE:
        context.emit(
            Noted(
                f"batch {plan.batch}, of run {plan.run or 'unknown'}, was given up: nothing of it was delivered, and "
                f"this run would divide it differently; its records are read again from batch {plan.batch + 1} on"
            )
        )
    if isinstance(plan, Plan):
        new = position(context.pipeline, plan.batch, plan.topics, begins, time.time())
        return replace(new, run=context.run, until=plan.until, away=plan.away)
    # Offsets of topics that the configuration no longer reads are kept by their ids, which it may not name.
    named = completed(context.cluster.admin, ids, {topic for topic, _ in begins}, plan.topics or {})
    return replace(position(context.pipeline, plan.batch, named, begins, time.time()), run=context.run)


def _readable(context: Context, plan: Plan, again: frozenset[str]) -> bool:
    """Wait until the source can be read to the end of the batch; return False if a stop was requested first.

    Behind a shuffle, delivered sink partitions are read too. Topics and partitions that are not seen are for the tasks
    to judge.
    """
    seen = context.cluster.topics()
    ends = {
        each.place: each.end
        for each in sorted(plan.ranges)
        if each.topic not in again and each.partition < seen.get(each.topic, 0)
    }
    return open_transactions.wait(context, ends, plan.batch, f"the end of batch {plan.batch}")


def _checked(
    context: Context, loop: Loop, stored: TopicPartitions, again: frozenset[str], ids: Mapping[str, str]
) -> TopicPartitions:
    """Return the positions, moved if they are out of range and the pipeline allows it; report what was moved."""
    pipeline, plan = context.pipeline, loop.plan
    stored = _configured(context, loop, stored)
    stored, gone = _seen(context, loop, stored, again)
    kept = {place: offset for place, offset in stored.items() if place[0] not in again}
    # What a backfill has read to its bound may be deleted from the topic since.
    until = plan.until if isinstance(plan, Plan) else None
    read = {} if until is None else {place: offset for place, offset in kept.items() if offset >= until.get(place, 0)}
    left = {place: offset for place, offset in kept.items() if place not in read}
    positions, notes = source.within(pipeline, left, context.cluster)
    positions |= read
    notes += [f"{topic} no longer exists" for topic in gone]
    for topic in sorted(again):
        notes.append(f"{topic} was deleted and created again; reading it from its beginning")
    for note in notes:
        context.emit(OffsetsReset(note))
    if plan is not None:
        context.mirror.compare(plan, stored)
    if isinstance(plan, StreamPlan):  # it has no place for the offsets of topics that are hidden
        place = position(pipeline, plan.batch, ids, positions, plan.at)
        loop.plan = replace(place, run=context.run)
    if notes and loop.delivered:  # recorded before anything is read, so that the next start does not reset again
        loop.positions = positions
        loop.settle()
    return positions


def _configured(context: Context, loop: Loop, stored: TopicPartitions) -> TopicPartitions:
    """Return the positions without those of topics that the configuration no longer reads; they are kept, by their ids.

    A backfill reads all topics of its range, and is refused without one that it has not read to its bound.
    """
    plan, pipeline = loop.plan, context.pipeline
    if not isinstance(plan, Plan):
        return stored
    if plan.until is not None:
        whole = read_whole(stored, plan.until, plan.away)
        lacking = sorted({topic for topic, _ in plan.until if topic not in whole and not source.reads(pipeline, topic)})
        if lacking:
            raise errors.PlanOfAnother(
                f"{pipeline.pipeline!r} is a backfill of {', '.join(lacking)}, too, of which the configuration reads "
                "nothing",
                kept="everything that was delivered; nothing more was read",
                then="let source name the topics as before until the backfill has ended",
            )
        return stored
    known = {topic for topic, _ in stored}
    out = sorted(topic for topic in known if not source.reads(pipeline, topic))
    # Offsets that a person has set for a topic replace those that were kept from one of the same name.
    away = {name: places for name, places in plan.away.items() if not known & {topic for topic, _ in places}}
    for topic in out:  # one without an id was deleted before its offsets were written
        if topic in plan.topics:
            away[plan.topics[topic]] = {place: offset for place, offset in stored.items() if place[0] == topic}
        context.emit(source_changes.unread(topic, kept=topic in plan.topics))
    loop.plan = replace(plan, away=away)
    return {place: offset for place, offset in stored.items() if place[0] not in out}


def _seen(
    context: Context, loop: Loop, stored: TopicPartitions, again: frozenset[str]
) -> tuple[TopicPartitions, list[str]]:
    """Return the positions without those of hidden topics, which are kept, and the kept topics that are gone.

    A topic that a backfill has read to its bound may be gone: its offsets are kept, too.
    """
    plan, pipeline = loop.plan, context.pipeline
    if not isinstance(plan, Plan):
        return stored, []
    kept = {place for places in plan.away.values() for place in places if source.reads(pipeline, place[0])}
    asked = {place for place in stored.keys() | kept if place[0] not in again}
    hidden, lost = source.missing(pipeline, asked, context.cluster)
    whole = read_whole(stored, plan.until or {}, plan.away)
    hidden |= whole & {topic for topic, _ in lost}
    gone = sorted({topic for topic, _ in kept.intersection(lost)} - hidden)
    if gone and pipeline.source.on_data_loss is OnDataLoss.STOP:
        raise errors.SourceChanged(
            f"the ledger has offsets for {', '.join(gone[:5])}, which no longer exist",
            kept="everything that was delivered; nothing more was read",
            then="restore the topic, or set source.on_data_loss: reset to continue without it",
        )
    away = {name: places for name, places in plan.away.items() if not any(topic in gone for topic, _ in places)}
    named = hidden & plan.topics.keys() & {topic for topic, _ in stored}
    for topic in sorted(named):
        away[plan.topics[topic]] = {place: offset for place, offset in stored.items() if place[0] == topic}
        context.emit(source_changes.hidden(topic))
    loop.away, loop.plan = away, replace(plan, away=away)
    return {place: offset for place, offset in stored.items() if place[0] not in named}, gone
