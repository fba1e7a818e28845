"""Recovery at startup: read the last batch from the ledger, and find what is left of it to deliver.

The order matters. The ledger is taken first, so that older drivers are fenced. Then every sink partition of the last
plan is fenced, so that an older run can commit nothing more. Only then are the markers read.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tailrace import crash_points, errors
from tailrace.config import Delivery, OnDataLoss, Pipeline
from tailrace.crash_points import Point
from tailrace.kafka import source
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.topics import by_name, recreation, ways_on
from tailrace.progress import chosen_again, expiry
from tailrace.progress.group_note import later
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import Decision, Marker, check_not_behind, decide
from tailrace.progress.plan import BEFORE_FIRST, Place, Plan, Range, Settings, SinkPartition, unlike
from tailrace.progress.positions import begins, ends_of_read, named
from tailrace.progress.predecessor import undelivered
from tailrace.progress.stream_plan import BEFORE, AnyPlan, StreamPlan

_SHOWN = 5


@dataclass(frozen=True)
class Recovered:
    """The contents of the ledger at the start of a run."""

    plan: AnyPlan | None
    markers: Mapping[SinkPartition, Marker]
    doubt: errors.ProgressMissing | None = None  # of the batch, unless Spark's checkpoint says that it is delivered


def take(pipeline: Pipeline, ledger: Ledger, cluster: Cluster) -> tuple[Recovered, str]:
    """Take the ledger, fence, and read plan and markers; the returned text is a note for the user, or empty."""
    ledger.take()
    plan = ledger.latest()
    number = plan.batch if plan else -1
    crash_points.at(Point.LEDGER_TAKEN, number)
    # Only the batch that was planned last can have open transactions. They are ended before the markers are read:
    # a marker in an open transaction would hold up the answer.
    ledger.fence(plan.sinks if plan else 0)
    crash_points.at(Point.SINKS_FENCED, number)
    markers = ledger.markers(fenced=plan is not None and _marks(plan))
    if plan is not None:
        other = way_out(
            pipeline,
            "check the output for what was delivered, then set where to continue: "
            "`tailrace offsets set FILE … --give-up`",
        )
        check_not_behind(plan.batch, markers, f"pipeline {pipeline.pipeline!r}", other)
        _check_group(pipeline, plan, ledger, cluster)
    note = ""
    if plan is not None and expiry.missing(plan, markers):
        kept = expiry.retention(cluster.admin)
        note = f"offsets.retention.minutes: {kept.note}" if kept.note else ""
        try:
            expiry.check(plan, markers, time.time(), kept, way_out(pipeline, expiry.THEN, plan))
        except errors.ProgressMissing as doubt:
            if pipeline.checkpoint == "ledger" or not isinstance(plan, StreamPlan):
                raise
            return Recovered(plan, markers, doubt), note
        _check_deleted(plan, markers, kept)
    return Recovered(plan, markers), note


def _marks(plan: AnyPlan) -> bool:
    return plan.delivery is Delivery.EXACTLY_ONCE and plan.sinks > 0


def _check_group(pipeline: Pipeline, plan: AnyPlan, ledger: Ledger, cluster: Cluster) -> None:
    """Refuse a ledger behind its own group: the offsets there were committed in one transaction with a later plan."""
    seen, _ = by_name(cluster.admin, {topic for topic, _ in plan.ends})  # the others may not be asked for
    stored = ledger.stored(place for place in plan.ends if place[0] in seen)
    found = later(plan, {place: each.metadata for place, each in stored.items()})
    if not found:
        return
    last = max(found.values(), key=lambda note: note.at)
    offsets = [f"{named(place)} at {stored[place].offset}" for place in sorted(found)]
    shown = ", ".join(offsets[:_SHOWN]) + (", …" if len(offsets) > _SHOWN else "")
    other = way_out(
        pipeline,
        "check the output for what was delivered, then set where every partition continues: "
        "`tailrace offsets set FILE … --give-up`",
    )
    raise errors.ProgressMissing(
        f"the ledger is behind: the last plan of {pipeline.pipeline!r} in {pipeline.ledger.topic!r} is of batch "
        f"{plan.batch}, planned {_when(plan.at)}, and the offsets of its group were stored with batch {last.batch}, "
        f"planned {_when(last.at)}{' and done' if last.done else ''}: {shown}",
        kept="nothing was read or written",
        then="start again: a broker that is cut off from the others may have answered; if you changed ledger.topic, "
        f"change it back; restore the ledger topic; or {other}",
    )


def _when(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(timespec="seconds")


def check_new(pipeline: Pipeline, ledger: Ledger, cluster: Cluster, markers: Mapping[SinkPartition, Marker]) -> None:
    """Refuse a first start if there are markers or offsets: the plan that they belong to is missing."""
    read = ledger.positions(dict.fromkeys(source.partitions_of(pipeline, cluster), 0))
    if markers or read:
        other = way_out(pipeline, "set where to continue: tailrace offsets set FILE … --give-up")
        raise errors.ProgressMissing(
            f"the ledger {pipeline.ledger.topic!r} has {len(markers)} markers of {pipeline.pipeline!r}, its group has "
            f"offsets of {len(read)} partitions, and there is no plan",
            kept="nothing was read or written",
            then=f"restore the ledger topic; or {other}; `tailrace explain TR-306` lists the choices",
        )


def check_kind(pipeline: Pipeline, plan: AnyPlan | None) -> None:
    """Refuse a checkpoint for a pipeline that has read without one: its state would lack what was read."""
    if pipeline.checkpoint != "ledger" and isinstance(plan, Plan) and plan.batch > BEFORE_FIRST:
        raise errors.CheckpointMismatch(
            f"batch {plan.batch} of {pipeline.pipeline!r} was planned without a checkpoint, and the pipeline has "
            f"checkpoint {pipeline.checkpoint!r} now",
            kept="nothing was read or written",
            then=f"{'' if plan.done else 'run the old configuration with --batch to finish its batch, then '}give the "
            f"pipeline a new name, and a section `offsets` with from: tailrace.{pipeline.pipeline}",
        )


def way_out(pipeline: Pipeline, stateless: str, last: AnyPlan | None = None) -> str:
    """Return the next step; offsets in a checkpoint cannot be set. `last` is the plan, if it is not too old."""
    if pipeline.checkpoint == "ledger":
        return stateless
    where = "with store: file, and a file of the offsets to continue from"
    if last is not None and last.done:
        where = f"with from: tailrace.{pipeline.pipeline}"
    elif last is not None:
        where += "; `tailrace offsets show FILE` tells where the batch begins and ends"
    return (
        "check the output for what the batch delivered; then give the pipeline a new name, a new checkpoint and a "
        f"section `offsets` {where}"
    )


def _check_deleted(plan: AnyPlan, markers: Mapping[SinkPartition, Marker], kept: expiry.Retention) -> None:
    """Refuse a batch whose markers were deleted: those of the previous batch are gone, but cannot have expired."""
    if isinstance(plan, Plan) and plan.marked and not markers and time.time() - plan.marked < kept.certain:
        raise errors.ProgressMissing(
            f"the ledger has the plan of batch {plan.batch} of {plan.pipeline!r} but no marker of any batch, though "
            f"some were committed {expiry.duration(time.time() - plan.marked)} ago: the group of markers was deleted",
            kept="nothing was read or written: the batch may or may not have been delivered",
            then="check the output, then set where to continue: `tailrace offsets set FILE … --give-up`; `tailrace "
            "explain TR-306` lists the choices",
        )


def known_ids(plan: AnyPlan | None) -> dict[str, str]:
    """Return the ids of the topics that a plan has offsets of, in use or kept."""
    if not isinstance(plan, Plan):
        return {} if plan is None else dict(plan.topics or {})
    return {topic: name for name, places in plan.away.items() for topic, _ in places} | dict(plan.topics)


def check_same(pipeline: Pipeline, plan: AnyPlan, ids: Mapping[str, str]) -> frozenset[str]:
    """Refuse a plan of another sink or source; return the topics that were created again, if that is allowed."""
    sink = pipeline.sink.topic or ""
    again = frozenset(topic for topic, name in (plan.topics or {}).items() if ids.get(topic, name) != name)
    # Before its first batch a pipeline has written nothing.
    if isinstance(plan, Plan) and plan.sink != sink and plan.batch >= 0:
        too = f"; the source topic {', '.join(sorted(again))} was deleted and created again, too" if again else ""
        raise errors.PlanOfAnother(
            f"batch {plan.batch} of {plan.pipeline!r} was planned for the sink {_topic(plan.sink)}, but this "
            f"configuration writes to {_topic(sink)}{too}",
            kept="nothing was read or written",
            then="if another pipeline has this name, rename one of them; if you changed the sink"
            f"{'' if plan.done else ', run the old configuration with --batch to finish its batch, then'}: "
            f"tailrace offsets accept FILE{f'; then {ways_on(again)}' if again else ''}",
        )
    if again and pipeline.source.on_data_loss is OnDataLoss.STOP:
        raise recreation(again, f"since batch {plan.batch}", "nothing was read or written")
    return again


def check_sink(pipeline: Pipeline, plan: StreamPlan, markers: Mapping[SinkPartition, Marker]) -> None:
    """Refuse to deliver the rest of a stateful pipeline's batch to another topic. Earlier versions noted none."""
    sink, left = pipeline.sink.topic or "", len(undelivered(plan, markers))
    if plan.done or plan.sink in {None, sink} or left in {0, plan.sinks}:
        return
    raise errors.PlanOfAnother(
        f"batch {plan.batch} of {plan.pipeline!r} is delivered in part, to the sink {_topic(plan.sink or '')}, and "
        f"this configuration writes to {_topic(sink)}",
        kept="nothing was read or written",
        then="if another pipeline has this name, rename one of them; if you changed the sink, run the old "
        "configuration with --batch to finish its batch, then change it",
    )


def rest(left: Plan, markers: Mapping[SinkPartition, Marker]) -> Plan:
    """Return the plan without the ranges of delivered sink partitions, whose records may be gone since.

    Without a shuffle, outputs and rejected records of a range are in one transaction, so no other sink partition
    misses them. A task whose marker has vanished since refuses to write.
    """
    if left.delivery is not Delivery.EXACTLY_ONCE:
        return left
    return left.rest(set(map(SinkPartition, range(left.sinks))).difference(undelivered(left, markers)))


def recreated(pipeline: Pipeline, left: Plan, ids: Mapping[str, str], cluster: Cluster) -> frozenset[str]:
    """Return the topics that the rest of a batch reads and the configuration does not, if they were created again.

    Raise PlanOfAnother unless such a loss is allowed. `ids` are those of the topics that the configuration reads.
    """
    read = {each.topic for each in left.ranges} & left.topics.keys() - ids.keys()
    found = source.ids_of(read, cluster, left.topics)
    again = frozenset(topic for topic in read & found.keys() if found[topic] != left.topics[topic])
    if again and pipeline.source.on_data_loss is OnDataLoss.STOP:
        raise recreation(
            again,
            f"since batch {left.batch}, which is open, was planned to read it",
            "nothing was read or written",
            "set source.on_data_loss: reset to finish the batch without its records, which are gone; or check the "
            "output for what was delivered, then set where to continue: `tailrace offsets set FILE … --give-up`",
        )
    return again


def last_marked(plan: AnyPlan, markers: Mapping[SinkPartition, Marker]) -> float:
    """Return when the pipeline last committed markers, as far as is known; 0 if none of them could be missed."""
    if plan.delivery is not Delivery.EXACTLY_ONCE:
        return 0.0
    if any(marker.next == plan.batch + 1 for marker in markers.values()):
        return plan.at
    return plan.marked if isinstance(plan, Plan) else 0.0


def _topic(name: str) -> str:
    return repr(name) if name else "that each row names"


def unfinished(
    plan: AnyPlan,
    markers: Mapping[SinkPartition, Marker],
    ledger: Ledger,
    rules: str,
    code: str,
    settings: Settings = None,
    fits: Callable[[Plan], bool] = lambda plan: True,
) -> Plan | dict[Place, int] | None:
    """Return what is left of the last batch; `fits` returns whether the engine can cut a batch as its plan says.

    A plan must be delivered (sink partitions already written are skipped). Positions mean that nothing of the batch was
    delivered: it is to be given up, and its records read again from there. None means that the batch is done.
    """
    if plan.done:
        return None
    if plan.delivery is not Delivery.EXACTLY_ONCE and isinstance(plan, Plan):
        # Its ends are stored together with the note that it is done: whoever else has stored them did not deliver it.
        return plan if fits(plan) else begins(plan, plan.ends)
    if plan.delivery is not Delivery.EXACTLY_ONCE:
        read = ends_of_read(plan)
        return None if ledger.positions(read) == read else begins(plan, plan.ends)
    who = f"pipeline {plan.pipeline!r} sink partition"
    again = chosen_again.given_up(plan, markers)
    done = [
        number not in again and decide(markers.get(number), plan.batch, plan.digest, f"{who} {number}") is Decision.SKIP
        for number in map(SinkPartition, range(plan.sinks))
    ]
    if all(done):
        return None
    if again and not any(done):  # an earlier start began to give it up: its tasks are refused
        return begins(plan, plan.ends)
    if isinstance(plan, StreamPlan):
        return _inherited(plan) if any(done) else begins(plan, plan.ends)
    if not any(done) and not fits(plan):
        return begins(plan, plan.ends)
    if not repeatable(plan, rules, code, settings):
        if not any(done):  # the plan would name this code for parts that another one delivers
            return begins(plan, plan.ends)
        what = "source.format, its schema or process.validate" if plan.rules != rules else "process.function"
        if (plan.rules, plan.code) == (rules, code):
            what = ", ".join(unlike(plan.settings, settings))
        raise errors.CutChanged(
            f"batch {plan.batch} of {plan.pipeline!r} is partly delivered, and was begun with another {what}: behind "
            "a shuffle, this decides what a sink partition holds",
            kept="nothing more of the batch was delivered, and nothing is delivered twice",
            then="finish the batch as it was begun (`tailrace run FILE --batch`), then change; if that cannot be, "
            "check the output and set where to continue: `tailrace offsets set FILE … --give-up`",
        )
    return plan


def repeatable(plan: AnyPlan, rules: str, code: str, settings: Settings = None) -> bool:
    """Return whether these divide the batch as it was divided, should it be delivered in part."""
    if isinstance(plan, StreamPlan):
        same = (plan.code == code or not plan.cut_by_code) and not plan.unlike(settings)
        return plan.rules == rules and same
    return not plan.shuffles or ((plan.rules, plan.code) == (rules, code) and not unlike(plan.settings, settings))


def changed(plan: AnyPlan, rules: str, code: str, settings: Settings = None) -> list[str]:
    """Say what this run does differently from the one that planned the last batch, for people."""
    last = f"batch {plan.batch}, of run {plan.run or 'unknown'}"
    found = [f"the function or its arguments have changed since {last}"] if plan.code not in {"", code} else []
    rejects = f"the schema or the conditions that reject records have changed since {last}"
    others = [f"{name} has changed since {last}" for name in unlike(plan.settings, settings)]
    return found + others + ([rejects] if plan.rules not in {"", rules} else [])


def _inherited(plan: StreamPlan) -> Plan:
    """Convert a plan of version 0.1 whose sink partitions are ranges; refuse any other."""
    if plan.version != BEFORE or plan.reads:
        raise errors.CutChanged(
            f"batch {plan.batch} of {plan.pipeline!r} is partly delivered, and was begun with a `checkpoint` folder, "
            "which the configuration no longer has: its sink partitions cannot be reproduced without it",
            kept="nothing more of the batch was delivered, and nothing is delivered twice",
            then="finish the batch with its checkpoint (set `checkpoint` as it was, then `tailrace run FILE --batch`), "
            "then remove it; if the folder is lost, check the output and set where to continue: "
            "`tailrace offsets set FILE … --give-up`",
        )
    try:
        parts = tuple(tuple(Range.parse(each) for each in part.split("+")) for part in plan.slices)
    except errors.LedgerUnusable:
        parts = ()
    if not parts or len(set(plan.slices)) != len(plan.slices):
        raise errors.CutChanged(
            f"batch {plan.batch} of {plan.pipeline!r} is partly delivered, and was begun by version 0.1, whose sink "
            "partitions cannot be reproduced by this version",
            kept="nothing more of the batch was delivered, and nothing is delivered twice",
            then="finish the batch with version 0.1 (`tailrace run FILE --batch`), then upgrade",
        )
    return Plan(
        pipeline=plan.pipeline,
        batch=plan.batch,
        sink="",
        topics={},
        parts=parts,
        outputs=len(parts),
        ends=plan.ends,
        run=plan.run,
        at=plan.at,
        delivery=plan.delivery,
        inherited=plan.digest,
    )
