"""The pipeline that `offsets.from` names, if it is one of Tailrace's in the same ledger: its last batch may be open.

Its group may have the beginning of a batch that is delivered, so a pipeline that begins there would deliver it again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from tailrace.config import Delivery, Pipeline
from tailrace.errors import BatchOpen
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.topics import topic_ids
from tailrace.progress import expiry
from tailrace.progress.group_note import later
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import Marker, offsets_group
from tailrace.progress.plan import SinkPartition
from tailrace.progress.positions import Positions, seen_again
from tailrace.progress.settling import markers_at_rest
from tailrace.progress.stream_plan import AnyPlan

_PREFIX = offsets_group("")


def beyond(pipeline: Pipeline, group: str, topics: Iterable[str]) -> Positions:
    """Return where the group's pipeline continues, as far as its ledger knows better than the group.

    The group lacks the end of a batch whose note is missing. It also has the beginning of the last batch of a topic
    that was taken out or hidden right after it: later plans keep the end, and commit no offsets of such a topic.
    Raise BatchOpen if the batch is not delivered, and its own pipeline can finish it.
    """
    if not group.startswith(_PREFIX):
        return {}
    name, where = group.removeprefix(_PREFIX), pipeline.ledger
    with Ledger.of(pipeline) as own:
        plan = own.latest(name)
    if plan is None:
        return {}
    cluster = Cluster(pipeline.kafka)
    kept = seen_again(plan, topic_ids(cluster.admin, topics))
    if plan.done or plan.delivery is not Delivery.EXACTLY_ONCE:
        return kept
    with Ledger(name, where.topic, pipeline.kafka, where.partitions, where.replication) as ledger:
        markers = markers_at_rest(pipeline, ledger)
        left = undelivered(plan, markers)
        if not left:
            return kept | dict(plan.ends)
        # Its own start is refused in these cases, and advises to come here once the output has been checked.
        behind = later(plan, {place: each.metadata for place, each in ledger.stored(plan.ends).items()})
        ahead = any(marker.next > plan.batch + 1 for marker in markers.values())
        retention = expiry.retention(cluster.admin)
        if behind or ahead or expiry.doubtful(plan, markers, time.time(), retention):
            return {}
    raise BatchOpen(
        f"offsets.from: batch {plan.batch} of {plan.pipeline!r} is open: {len(left)} of its {plan.sinks} sink "
        "partitions are not known to be delivered",
        kept="nothing was read or written",
        then=f"finish it: run the configuration of {plan.pipeline!r} with --batch, then start this pipeline; if that "
        "is refused, `tailrace explain TR-313` lists the other choices",
    )


def undelivered(plan: AnyPlan, markers: Mapping[SinkPartition, Marker]) -> list[SinkPartition]:
    """Return the sink partitions whose marker does not prove that they have written the batch."""
    proof = (plan.batch + 1, plan.digest)
    found = {number for number, marker in markers.items() if (marker.next, marker.digest) == proof}
    return [number for number in map(SinkPartition, range(plan.sinks)) if number not in found]
