"""Inspecting and changing where a pipeline continues reading, while it is stopped.

A change goes through the ledger, as a finished plan that ends at the new offsets: the next start reads from there,
and the markers stay valid because batch numbers continue. Then the store is written, so that both agree.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tailrace.admin.copies import is_backfill
from tailrace.admin.moved_plan import differs, given_up, kept_ids, markers_ahead, moved
from tailrace.config import Delivery, Pipeline
from tailrace.driver.first_position import follows
from tailrace.driver.recovery import known_ids
from tailrace.errors import (
    BatchOpen,
    ConfigInvalid,
    MarkerConflict,
    OffsetStoreUnusable,
    PipelineRunning,
    ProgressMissing,
    TailraceError,
)
from tailrace.kafka import source
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.topics import by_name, completed, recreation, topic_ids
from tailrace.progress.fences import written_meanwhile
from tailrace.progress.group_note import later
from tailrace.progress.lease import Holder, running
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import GIVEN_UP, Decision, Marker, decide
from tailrace.progress.plan import BEFORE_FIRST, Plan, SinkPartition
from tailrace.progress.positions import Place, Positions, begins, ends_of_read, seen_again
from tailrace.progress.settling import markers_at_rest
from tailrace.progress.stores import KafkaStore, OffsetStore
from tailrace.progress.stream_plan import AnyPlan, StreamPlan

_UNCHANGED = "nothing was changed"


@dataclass(frozen=True)
class Situation:
    """A pipeline's state, whether it runs or not."""

    plan: AnyPlan | None
    markers: Mapping[SinkPartition, Marker]
    holders: list[Holder]
    positions: Positions  # where it continues; without a plan, where it would begin
    begins: Positions  # where its last batch began
    stored: Positions  # what the store says
    lost: bool  # there are markers or offsets, and no plan
    ids: Mapping[str, str]  # of the source topics, from before any of their offsets were asked for
    undelivered: list[int] = field(default_factory=list)  # sink partitions that have not written the last batch
    group: Positions | None = None  # what the group of `offsets.from` says, while it is followed; None: it did not

    @property
    def read(self) -> Positions:
        """Where it continues in the topics that it has read, and not in others of the same names."""
        planned = known_ids(self.plan) or self.ids  # version 0.1 names no ids
        return {
            place: at for place, at in self.positions.items() if planned.get(place[0]) == self.ids.get(place[0], "")
        }

    @property
    def next_batch(self) -> int:
        """The number of the next batch."""
        return self.plan.batch + 1 if self.plan is not None else 0

    @property
    def state(self) -> str:
        """The state in one word."""
        if self.holders:
            return "running"
        if self.lost:
            return "lost"
        if self.plan is None:
            return "new"
        return "open" if self.undelivered else "stopped"


def look(pipeline: Pipeline, cluster: Cluster, ledger: Ledger, store: OffsetStore) -> Situation:
    """Ask the ledger, the store and the drivers' group; change nothing."""
    holders = running(cluster, pipeline.pipeline)
    present = source.partitions_of(pipeline, cluster)
    topics = topic_ids(cluster.admin, {topic for topic, _ in present})
    ids = {topic: name for topic, (name, _) in topics.items()}
    plan = ledger.latest()
    # A running driver always has open transactions, and its batch is its own business.
    markers = {} if holders else markers_at_rest(pipeline, ledger)
    stored = store.load(present)
    if plan is not None:
        ends = dict(plan.ends) | seen_again(plan, topics)
        group = None if holders else _followed(pipeline, plan, store, present)
        ends |= _there(group or {}, cluster)
        undelivered = [] if holders else open_parts(plan, markers, ledger)
        return Situation(plan, markers, holders, ends, begins(plan, ends), stored, False, ids, undelivered, group=group)
    own = ledger.positions(dict.fromkeys(present, 0))
    lost = bool(markers or own)
    group = None if lost else store.begin(present)
    where = source.beginning(pipeline, cluster) | (_there(group, cluster) if group is not None else own)
    return Situation(None, markers, holders, where, where, stored, lost, ids, group=group)


def _there(group: Positions, cluster: Cluster) -> Positions:
    """Return the offsets that the topics have: a start follows no others."""
    first, end = cluster.earliest(group), cluster.latest(group)
    return {place: at for place, at in group.items() if first.get(place, at) <= at <= end.get(place, at)}


def _followed(pipeline: Pipeline, plan: AnyPlan, store: OffsetStore, places: Sequence[Place]) -> Positions | None:
    """Return where the group of `offsets.from` is, if the next start begins there.

    What makes it tell nothing does not keep a person from looking, and is refused by a change.
    """
    if pipeline.offsets.from_ is None or not follows(plan):
        return None
    try:
        return store.begin(places)
    except TailraceError:
        return None


def open_parts(plan: AnyPlan, markers: Mapping[SinkPartition, Marker], ledger: Ledger) -> list[int]:
    """Return the sink partitions of the last batch that are not known to be delivered."""
    if plan.done:
        return []
    if plan.delivery is not Delivery.EXACTLY_ONCE:
        read = ends_of_read(plan)
        # As a start decides it: of the driver's own batches, only the note tells that one is done.
        done = isinstance(plan, StreamPlan) and ledger.positions(read) == read
        return [] if done else list(range(plan.sinks))
    return [number for number in range(plan.sinks) if not _delivered(plan, markers.get(SinkPartition(number)))]


def _delivered(plan: AnyPlan, marker: Marker | None) -> bool:
    """Return whether the marker proves delivery; one that contradicts the plan proves nothing."""
    try:
        return decide(marker, plan.batch, plan.digest, plan.pipeline) is Decision.SKIP
    except MarkerConflict:
        return False


def movable(pipeline: Pipeline, now: Situation, file: str, give_up: bool) -> None:
    """Refuse a change that would go unnoticed, lose a record, or deliver one twice."""
    unread = isinstance(now.plan, Plan) and now.plan.batch == BEFORE_FIRST  # there is no state yet
    if pipeline.checkpoint != "ledger" and not unread:
        raise ConfigInvalid(
            f"pipeline {pipeline.pipeline!r} is stateful: its checkpoint {pipeline.checkpoint!r} holds the offsets "
            "that its state was built from, and other offsets do not fit that state",
            kept=_UNCHANGED,
            then="to begin elsewhere, give the pipeline a new name, a new folder and a section `offsets`",
        )
    _require_idle(pipeline, now.holders)
    if now.lost and is_backfill(pipeline.pipeline):
        raise ProgressMissing(
            f"{pipeline.pipeline!r} is a backfill, and its plan, which held the end of its range, is lost",
            kept=_UNCHANGED,
            then="restore the ledger topic, or repeat the backfill with another topic: tailrace backfill --into TOPIC",
        )
    if now.lost and not give_up:
        raise ProgressMissing(
            f"{pipeline.pipeline!r} has {len(now.markers)} markers or stored offsets, but no plan: what was delivered "
            "is not known",
            kept=_UNCHANGED,
            then="restore the ledger topic, or repeat with --give-up and the offsets to continue at; `tailrace explain "
            "TR-306` lists the choices",
        )
    if now.undelivered and now.plan is not None and not give_up:
        raise BatchOpen(
            f"batch {now.plan.batch} of {pipeline.pipeline!r} is open: {len(now.undelivered)} of its {now.plan.sinks} "
            "sink partitions are not known to be delivered",
            kept=_UNCHANGED,
            then=f"finish it: tailrace run {file} --batch; `tailrace explain TR-313` lists the other choices",
        )


def _require_idle(pipeline: Pipeline, holders: list[Holder]) -> None:
    if holders:
        who = ", ".join(f"run {each.run} on {each.host}" for each in holders)
        raise PipelineRunning(
            f"pipeline {pipeline.pipeline!r} is running ({who})",
            kept=_UNCHANGED,
            then="stop it (SIGTERM lets it finish its batch), then repeat this command",
        )


def base(now: Situation, give_up: bool) -> Positions:
    """Return the offsets a change starts from; for an open batch that is given up, the batch's beginning."""
    return dict(now.begins if give_up and now.undelivered else now.positions)


def _require_unmoved(pipeline: Pipeline, now: Situation, group: Positions, kept: Collection[Place]) -> None:
    """Refuse a change if the group that says where to begin has moved on: what is not named would stay behind it."""
    followed = now.plan is None or follows(now.plan)
    if followed and any(group.get(place) != (now.group or {}).get(place) for place in kept):
        raise PipelineRunning(
            f"the group {pipeline.offsets.from_!r} has moved while this command was reading its offsets",
            kept=_UNCHANGED,
            then="stop the job that commits them, then repeat this command",
        )


def needed(
    pipeline: Pipeline,
    cluster: Cluster,
    now: Situation,
    target: Positions,
    ledger: Ledger,
    named: Collection[Place],
    missing: Mapping[Place, int],
    *,
    accepts: bool = False,
) -> bool:
    """Return whether a change that moves no offset writes something else that the next start needs.

    With `accepts`, another sink counts, and so do offsets of topics that are missing or no longer read.
    """
    if accepts and missing:
        return True
    after = _after(pipeline, cluster, now, target, named, missing)
    return differs(now.plan, after, accepts=accepts) or _behind(now, cluster, ledger)


def _behind(now: Situation, cluster: Cluster, ledger: Ledger) -> bool:
    """Return whether the pipeline's group knows a later plan than the last one, which a start refuses."""
    if now.plan is None:
        return False
    seen, _ = by_name(cluster.admin, {topic for topic, _ in now.plan.ends})
    stored = ledger.stored(place for place in now.plan.ends if place[0] in seen)
    return bool(later(now.plan, {place: each.metadata for place, each in stored.items()}))


def _after(
    pipeline: Pipeline,
    cluster: Cluster,
    now: Situation,
    target: Positions,
    named: Collection[Place],
    missing: Mapping[Place, int],
) -> Plan:
    """Return the plan that a change writes."""
    topics = kept_ids(now.plan, target, named, now.ids)
    if isinstance(now.plan, StreamPlan):  # the offsets of missing topics are kept by their ids, which it may not name
        topics = completed(cluster.admin, topics, {topic for topic, _ in missing}, now.plan.topics or {})
    return moved(pipeline, now.plan, now.markers, target, topics, missing)


def apply(
    pipeline: Pipeline,
    cluster: Cluster,
    now: Situation,
    target: Positions,
    ledger: Ledger,
    named: Collection[Place] | None = None,
    missing: Mapping[Place, int] | None = None,
) -> None:
    """Fence every driver and write the change to the ledger, where it takes effect.

    Only the offsets that are `named` (None: all) are known to be meant for topics that exist now; those of `missing`
    topics are kept. Tasks may outlive the driver of a batch that is given up, so their sink partitions get markers that
    refuse them.
    """
    _require_idle(pipeline, running(cluster, pipeline.pipeline))  # one may have started since the state was read
    begins = not now.lost if now.plan is None else now.plan.batch == BEFORE_FIRST
    if begins and pipeline.offsets.from_ is not None:  # its pipeline must not go on
        with contextlib.suppress(OffsetStoreUnusable):
            group = KafkaStore(pipeline).take_over(sorted(target))
            _require_unmoved(pipeline, now, group, target.keys() - set(target if named is None else named))
    ledger.take()
    plan = ledger.latest()
    if plan != now.plan:
        raise PipelineRunning(
            f"pipeline {pipeline.pipeline!r} planned a batch while this command was reading its state",
            kept=_UNCHANGED,
            then="stop it, then repeat this command",
        )
    # Of a batch that only markers know, the number of sink partitions is not known, but no plan exceeds the ledger's.
    unknown = now.lost or markers_ahead(plan, now.markers)
    sinks = ledger.partitions if unknown else plan.sinks if plan is not None else 0
    ledger.fence(sinks)
    if ledger.markers() != now.markers:
        raise written_meanwhile(pipeline.pipeline)
    found = topic_ids(cluster.admin, {topic for topic, _ in target})
    if again := {topic for topic, (name, _) in found.items() if name != now.ids.get(topic)}:
        raise recreation(again, "since its offsets were asked for", _UNCHANGED, "repeat the command")
    after = _after(pipeline, cluster, now, target, target if named is None else named, missing or {})
    _require_idle(pipeline, running(cluster, pipeline.pipeline))
    left = given_up(plan, now.markers, after.batch, sinks)
    if left:
        if ledger.overtaken(sure=True):  # not listed yet: markers would stop the batch that it finishes
            raise PipelineRunning(
                f"a driver of pipeline {pipeline.pipeline!r} has taken over while this command was at work",
                kept=_UNCHANGED,
                then="stop it (SIGTERM lets it finish its batch), then repeat this command",
            )
        ledger.give_up(left, Marker.of(after.batch, GIVEN_UP, sinks), now.markers)
    ledger.settle(after, target)
