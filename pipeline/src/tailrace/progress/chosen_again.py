"""Giving up an open batch of which nothing was delivered, so that its records are read again, with the next batch.

Other code, or another number of sink partitions, would divide the batch differently under the same number and digest,
while tasks of its driver may still run: the marker of such a task would stand for rows that only the other division
has. So the batch is given up: a marker in each sink partition of its plan refuses those tasks from then on.

A crash may leave some of these markers. As long as nothing of the batch is delivered, the next start continues. A task
may deliver its sink partition after others were given up; the batch is then in progress again, so their markers are
taken back.
"""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.config import Delivery
from tailrace.progress.marker import CHOSEN_AGAIN, REOPENED, Marker
from tailrace.progress.plan import SinkPartition
from tailrace.progress.stream_plan import AnyPlan

Markers = Mapping[SinkPartition, Marker]


def given_up(plan: AnyPlan, markers: Markers) -> frozenset[SinkPartition]:
    """Return the sink partitions of the open batch in which a start has given it up."""
    found = ((number, markers.get(number)) for number in _parts(plan))
    return frozenset(
        number
        for number, marker in found
        if marker is not None and marker.digest == CHOSEN_AGAIN and marker.next == plan.batch + 1
    )


def unwritten(plan: AnyPlan, markers: Markers) -> dict[SinkPartition, Marker]:
    """Return, for each sink partition that a late task could still write, the marker that refuses the batch."""
    marker = Marker.of(plan.batch, CHOSEN_AGAIN, plan.sinks)
    return {number: marker for number in _parts(plan) if number not in markers or markers[number].next <= plan.batch}


def reopened(plan: AnyPlan, markers: Markers) -> dict[SinkPartition, Marker]:
    """Return the markers that allow the batch again where it was given up, if a part of it was delivered after all."""
    back = given_up(plan, markers)
    others = (markers[each] for each in _parts(plan) if each in markers and each not in back)
    if not any(marker.next > plan.batch and not marker.given_up for marker in others):
        return {}
    return dict.fromkeys(sorted(back), Marker(plan.batch, REOPENED, plan.sinks))


def _parts(plan: AnyPlan) -> list[SinkPartition]:
    if plan.done or plan.delivery is not Delivery.EXACTLY_ONCE:
        return []
    return [SinkPartition(number) for number in range(plan.sinks)]
