"""The pipeline that `offsets.from` names, if it is one of Tailrace's in the same ledger: its last batch may be open.

Its group may have the beginning of a batch that is delivered, so a pipeline that begins there would deliver it again.
So it must have ended: plan, markers and offsets that are read one after another fit together only if nothing moves. Its
driver may be suspended, or cut off from the brokers for longer than its lease, and go on later. So a driver that begins
here takes its transactional id, as a newer driver of that pipeline would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set

from confluent_kafka import TopicPartition

from tailrace.config import Delivery, Pipeline
from tailrace.errors import BatchOpen, KafkaFailed, OffsetStoreUnusable, PipelineRunning
from tailrace.kafka import source
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.errors import denied
from tailrace.kafka.group_offsets import group_offsets
from tailrace.kafka.rights import Operation, on_topic
from tailrace.kafka.source import CERTAIN_AFTER, ids_of
from tailrace.kafka.topics import recreation
from tailrace.progress import expiry
from tailrace.progress.group_note import GroupNote, former, later
from tailrace.progress.lease import running
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import Marker, offsets_group
from tailrace.progress.plan import Plan, SinkPartition, unseen
from tailrace.progress.positions import Place, Positions, begins, listed, named, seen_again
from tailrace.progress.settling import markers_at_rest
from tailrace.progress.stream_plan import AnyPlan

_PREFIX = offsets_group("")
_UNTOUCHED = "nothing was read or written"
_ASK_EVERY = 0.2
_CHOSEN = (
    "write all offsets at which to begin into a file (tailrace offsets export has those of {!r}), and name it in "
    "offsets (store: file) instead of `from`; if this pipeline was started before, import it too: tailrace offsets "
    "import FILE DOCUMENT"
)

Stored = Callable[[], Mapping[Place, TopicPartition]]


def begin(pipeline: Pipeline, group: str, places: Sequence[Place], stored: Stored, *, takes: bool = False) -> Positions:
    """Return where a pipeline begins that continues after this group; `stored` asks for its offsets and their notes.

    With `takes`, the group's pipeline ends: its driver, should there be one, plans nothing more.

    The group lacks the end of a batch whose note is missing. It also has the beginning of the last batch of a topic
    that was taken out or hidden right after it: later plans keep the end, and commit no offsets of such a topic.
    Raise PipelineRunning if the group's pipeline may still move, BatchOpen if it can finish its last batch, KafkaFailed
    if the offsets are older than its last batch, which is done, OffsetStoreUnusable if nobody knows what of that batch
    is delivered, PlanOfAnother if they are of a topic that was deleted and created again since, and
    NotAuthorized if it has offsets of a topic that this pipeline may not see.
    """
    if not group.startswith(_PREFIX):
        return _of_another_job(pipeline, group, places)
    found = _offsets(stored())
    name, where, topics = group.removeprefix(_PREFIX), pipeline.ledger, {topic for topic, _ in places}
    cluster, theirs = Cluster(pipeline.kafka), (where.topic, pipeline.kafka, where.partitions, where.replication)
    with Ledger.of(pipeline) as own, Ledger(name, *theirs) as ledger:
        plan = _at_rest(own, cluster, name, topics)
        if plan is not None:
            require_seen(pipeline, plan, places, cluster)
        in_doubt = plan if plan is not None and _in_doubt(plan, topics) else None
        markers = markers_at_rest(pipeline, ledger) if in_doubt is not None else {}
        # Again: an answer from before the plan may be older than the note that the plan is done.
        told = stored() if plan is None else _not_former(plan, stored)
        found = _offsets(told)
        ids = ids_of(topics, cluster, plan.topics or {}) if plan is not None else {}
        ends = _ends(in_doubt, markers, ledger, cluster) if in_doubt is not None else {}
        if plan is not None:
            kept = _kept(plan, places)
            if in_doubt is not None and not ends and not all(_ends_there(told.get(place)) for place in kept):
                raise _unknown(in_doubt)
            found = kept | found
            _require_same(plan, [*found, *ends], ids)
            ends = seen_again(plan, {topic: (name, 0) for topic, name in ids.items()}) | ends
        if takes and found and reads(plan, topics):
            ledger.take()  # last: what refuses this start must not end the other pipeline
        again = _at_rest(ledger, cluster, name, topics)
    if again != plan and (reads(plan, topics) or reads(again, topics)):
        raise PipelineRunning(
            f"offsets.from: {name!r} planned or finished a batch while this start was reading its state",
            kept=_UNTOUCHED,
            then=f"stop {name!r} if it still runs, then start this pipeline again",
        )
    return found | {place: ends[place] for place in places if place in ends}


def _of_another_job(pipeline: Pipeline, group: str, places: Sequence[Place]) -> Positions:
    """Return the offsets of a group that is not one of Tailrace's; it has no plan that they could be compared with."""
    found = group_offsets(pipeline.kafka, group)
    _require_listed(pipeline, f"the group {group!r}", found, places, Cluster(pipeline.kafka))
    return _offsets({place: found[place] for place in places if place in found})


def require_seen(pipeline: Pipeline, plan: AnyPlan, places: Collection[Place], cluster: Cluster) -> None:
    """Refuse to begin without places of which another pipeline's last plan has offsets: it would read them anew later.

    A list of all topics leaves out those that may not be described, and a broker that lags leaves out new partitions.
    """
    away = unseen(plan.away) if isinstance(plan, Plan) else {}
    _require_listed(pipeline, repr(plan.pipeline), [*plan.ends, *away], places, cluster)


def _require_listed(
    pipeline: Pipeline, who: str, known: Iterable[Place], places: Collection[Place], cluster: Cluster
) -> None:
    kept = {place for place in known if source.reads(pipeline, place[0])}
    if kept.issubset(places):
        return
    hidden, gone = source.missing(pipeline, kept, cluster)
    if hidden:
        raise denied(
            f"{who} has offsets of {listed(sorted(hidden))}, which may not be described",
            [on_topic(Operation.READ, topic) for topic in sorted(hidden)],
            _UNTOUCHED,
        )
    late = sorted(kept.difference(places, gone))
    if late:
        raise KafkaFailed(
            f"a broker did not show {listed([named(place) for place in late])} yet, of which {who} has offsets",
            kept=_UNTOUCHED,
            then="start this pipeline again",
        )


def _require_same(plan: AnyPlan, offsets_of: Iterable[Place], ids: Mapping[str, str]) -> None:
    """Refuse offsets of a topic that is another one by now: as offsets of that, they would leave out its beginning."""
    planned = plan.topics or {}
    again = {topic for topic, _ in offsets_of if topic in ids and planned.get(topic, ids[topic]) != ids[topic]}
    if again:
        own = "run the configuration of {!r} once with source.on_data_loss: reset and --batch, which reads it from its "
        own += "beginning; then start this pipeline again"
        raise recreation(
            again,
            f"since batch {plan.batch} of {plan.pipeline!r}, whose offsets offsets.from names",
            _UNTOUCHED,
            # A batch that Spark has made cannot be finished without the topic that it read.
            (own if isinstance(plan, Plan) else _CHOSEN).format(plan.pipeline),
        )


def _kept(plan: AnyPlan, places: Collection[Place]) -> Positions:
    """Return where a plan leaves these places, or begins if it is not done: brokers forget a group that nobody uses."""
    kept = plan.ends if plan.done else begins(plan, plan.ends)
    return {place: offset for place, offset in kept.items() if place in places}


def _ends_there(offset: TopicPartition | None) -> bool:
    """Return whether all before an offset is delivered: it was stored with a batch that is done, or by a person."""
    note = GroupNote.read(offset.metadata) if offset is not None else None
    return offset is not None and (note is None or note.done)


def _unknown(plan: AnyPlan) -> OffsetStoreUnusable:
    return OffsetStoreUnusable(
        f"offsets.from: batch {plan.batch} of {plan.pipeline!r} was not noted as done, and nobody knows what of it is "
        "delivered: the brokers have deleted markers of it since, or the ledger is older than the output",
        kept=_UNTOUCHED,
        then="check the output for what that batch has delivered; `tailrace offsets show` with the configuration of "
        f"{plan.pipeline!r} tells where it begins and ends; then {_CHOSEN.format(plan.pipeline)}",
    )


def _offsets(found: Mapping[Place, TopicPartition]) -> Positions:
    return {place: each.offset for place, each in found.items()}


def _not_former(plan: AnyPlan, stored: Stored) -> Mapping[Place, TopicPartition]:
    """Return the group's offsets; ask for a while, each time through a new client, as long as a plan is newer.

    A broker that is cut off from the others answers for its groups all the same, without what was committed since.
    """
    until = time.monotonic() + CERTAIN_AFTER
    while True:
        found = stored()
        old = former(plan, {place: each.metadata for place, each in found.items()})
        if not old:
            return found
        if time.monotonic() > until:
            break
        time.sleep(_ASK_EVERY)
    shown = [f"{named(place)} at {found[place].offset}, of batch {old[place].batch}" for place in sorted(old)]
    raise KafkaFailed(
        f"offsets.from: the group of {plan.pipeline!r} has {listed(shown)}, but its batch {plan.batch} is done, and "
        "that was committed in one transaction with newer offsets",
        kept=_UNTOUCHED,
        then="start this pipeline again; if this repeats, look for a broker that is cut off from the others, or run "
        f"the configuration of {plan.pipeline!r} once with --batch: when it ends, it commits its offsets again",
    )


def reads(plan: AnyPlan | None, topics: Set[str]) -> bool:
    """Return whether a pipeline with this last plan may read one of the topics."""
    return plan is None or not topics.isdisjoint(topic for topic, _ in plan.ends)


def _in_doubt(plan: AnyPlan, topics: Set[str]) -> bool:
    """Return whether the markers must tell where a plan leaves these topics."""
    return not plan.done and plan.delivery is Delivery.EXACTLY_ONCE and reads(plan, topics)


def _at_rest(ledger: Ledger, cluster: Cluster, name: str, topics: Set[str]) -> AnyPlan | None:
    """Return the last plan of a pipeline; raise PipelineRunning if a driver of it may read one of the topics.

    A driver leaves its group only after it has noted its last batch as done.
    """
    plan = ledger.latest(name)
    holders = running(cluster, name) if reads(plan, topics) else []
    if holders:
        who = ", ".join(f"run {each.run} on {each.host}" for each in holders)
        raise PipelineRunning(
            f"offsets.from: pipeline {name!r} is running ({who})",
            kept=_UNTOUCHED,
            then=f"stop {name!r} (SIGTERM lets it finish its batch), then start this pipeline; a driver that was "
            "killed counts as running until its ledger.lease has passed",
        )
    return plan


def _ends(plan: AnyPlan, markers: Mapping[SinkPartition, Marker], ledger: Ledger, cluster: Cluster) -> Positions:
    """Return where an open batch ends, if it is delivered; nothing if that cannot be known."""
    left = undelivered(plan, markers)
    if not left:
        return dict(plan.ends)
    # Its own start is refused in these cases, too.
    behind = later(plan, {place: each.metadata for place, each in ledger.stored(plan.ends).items()})
    ahead = any(marker.next > plan.batch + 1 for marker in markers.values())
    if behind or ahead or expiry.doubtful(plan, markers, time.time(), expiry.retention(cluster.admin)):
        return {}
    raise BatchOpen(
        f"offsets.from: batch {plan.batch} of {plan.pipeline!r} is open: {len(left)} of its {plan.sinks} sink "
        "partitions are not known to be delivered",
        kept=_UNTOUCHED,
        then=f"finish it: run the configuration of {plan.pipeline!r} with --batch, then start this pipeline; if that "
        "is refused, `tailrace explain TR-313` lists the other choices",
    )


def undelivered(plan: AnyPlan, markers: Mapping[SinkPartition, Marker]) -> list[SinkPartition]:
    """Return the sink partitions whose marker does not prove that they have written the batch."""
    proof = (plan.batch + 1, plan.digest)
    found = {number for number, marker in markers.items() if (marker.next, marker.digest) == proof}
    return [number for number in map(SinkPartition, range(plan.sinks)) if number not in found]
