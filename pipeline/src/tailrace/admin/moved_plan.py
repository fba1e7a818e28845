"""The plan that a change of offsets writes to the ledger: it is finished, and ends at the new offsets.

It differs from the last plan in more than offsets: topic ids, and the batch number if markers name a later batch. So a
change that moves no offset may still be what a refused start needs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import replace

from tailrace.config import Delivery, Pipeline
from tailrace.kafka.topics import recreation
from tailrace.progress.marker import Marker
from tailrace.progress.plan import BEFORE_FIRST, BatchId, Plan, SinkPartition, position
from tailrace.progress.positions import Place, Positions
from tailrace.progress.stream_plan import AnyPlan, StreamPlan


def kept_ids(
    plan: AnyPlan | None, target: Positions, named: Collection[Place], ids: Mapping[str, str]
) -> dict[str, str]:
    """Return the topics' ids for a plan that ends at the target.

    A topic that was created again keeps its former id unless all of its offsets are new: so the next start notices.
    """
    before = (plan.topics or {}) if plan is not None else {}
    again = {topic for topic, name in before.items() if ids.get(topic, name) != name}
    left = {topic for topic, _ in target.keys() - set(named)} & again
    if mixed := left & {topic for topic, _ in named}:
        raise recreation(mixed, "since they were read", "nothing was changed")
    return dict(ids) | {topic: before[topic] for topic in left}


def moved(
    pipeline: Pipeline,
    plan: AnyPlan | None,
    markers: Mapping[SinkPartition, Marker],
    target: Positions,
    ids: Mapping[str, str],
    missing: Mapping[Place, int],
) -> Plan:
    """Return a finished plan that ends at the new offsets, for the current sink and topics.

    No marker knows the batch after it.
    """
    known = _next(markers)
    new = position(pipeline, known, ids, target, time.time())
    if plan is None:
        return new
    before, kept = (plan.topics, plan.away) if isinstance(plan, Plan) else (ids, {})
    # By name: a topic that was created again while it was away has another id.
    away = {name: places for name, places in kept.items() if new.topics.keys().isdisjoint(topic for topic, _ in places)}
    for topic in {topic for topic, _ in missing} & before.keys():
        away[before[topic]] = {place: offset for place, offset in missing.items() if place[0] == topic}
    # The group's note then follows the plan that this one replaces, which an older copy of the ledger may bring back.
    # It stays the time of the plan whose markers these are: they expire by it.
    later = math.nextafter(plan.at, math.inf)
    if isinstance(plan, StreamPlan):
        new = replace(new, away=away)
        return replace(new, batch=plan.batch, at=later) if known <= plan.batch + 1 else new
    if known <= plan.batch + 1:
        # Without the run that began there, a start takes these offsets for a person's (`driver.start`).
        run = plan.run if plan.batch > BEFORE_FIRST else ""
        return replace(plan.finished(target), sink=new.sink, topics=new.topics, away=away, run=run, at=later)
    return replace(new, until=plan.until, away=away)


def differs(plan: AnyPlan | None, after: Plan, *, accepts: bool = False) -> bool:
    """Return whether the plan after a change says more than that the last one is done.

    Another sink counts only for the command that `accepts` it.
    """
    if plan is None or after.batch != plan.batch:
        return True
    if accepts and (isinstance(plan, StreamPlan) or plan.sink != after.sink):
        return True
    if isinstance(plan, StreamPlan):  # one of an earlier version names no ids
        known = {place: name for name, place, _ in _offsets(after)} if plan.topics is None else {}
        names = {place: known.get(place, (plan.topics or {}).get(place[0], "")) for place in plan.ends}
        return _offsets(after) != {(names[place], place, at) for place, at in plan.ends.items()}
    return _offsets(after) != _offsets(plan)


def _offsets(plan: Plan) -> set[tuple[str, Place, int]]:
    """Return all offsets that a plan holds, read or kept, with the id of each topic."""
    kept = {(name, place, offset) for name, places in plan.away.items() for place, offset in places.items()}
    return kept | {(plan.topics.get(place[0], ""), place, offset) for place, offset in plan.ends.items()}


def markers_ahead(plan: AnyPlan | None, markers: Mapping[SinkPartition, Marker]) -> bool:
    """Return whether markers are of a later batch than the last plan, which was restored from an older copy or lost."""
    return _next(markers) > (plan.batch + 1 if plan is not None else 0)


def _next(markers: Mapping[SinkPartition, Marker]) -> BatchId:
    return BatchId(max((marker.next for marker in markers.values()), default=0))


def given_up(
    plan: AnyPlan | None, markers: Mapping[SinkPartition, Marker], batch: BatchId, sinks: int
) -> list[SinkPartition]:
    """Return those of the sink partitions that a late task could still write, of an open batch or one after the plan.

    `batch` is the last before the next one: a marker behind it refuses such a task already.
    """
    opened = plan is not None and not plan.done and plan.delivery is Delivery.EXACTLY_ONCE
    if not opened and not markers_ahead(plan, markers):
        return []
    found = (SinkPartition(number) for number in range(sinks))
    return [each for each in found if each not in markers or markers[each].next <= batch]
