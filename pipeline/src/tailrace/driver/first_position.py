"""Where a new pipeline begins: recorded before its first batch, and followed while another job may still go on.

A group, a file or the latest records may tell another place at the next start. So it is recorded, as a plan that holds
no batch. With `offsets.from`, the group counts until the pipeline has read something.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from tailrace.config import Reset
from tailrace.driver.context import Context
from tailrace.errors import NotAuthorized, OffsetStoreUnusable
from tailrace.kafka import source
from tailrace.kafka.clients import TopicPartitions
from tailrace.progress.plan import BEFORE_FIRST, Away, Plan, position
from tailrace.progress.stream_plan import AnyPlan, StreamPlan


def chosen(context: Context, ids: Mapping[str, str]) -> tuple[TopicPartitions, Plan | None]:
    """Return where a pipeline without a plan begins, and the plan that records it, if a next start may differ."""
    positions, stored, _ = context.mirror.begin(context.cluster)
    # The list of topics that the ids were asked for may be older. Without its id, a topic that is created again later
    # would be taken for the same; so would one that was, before the id was asked for.
    while late := {topic for topic, _ in positions} - ids.keys():
        ids = {**ids, **source.sure_ids(late, context.cluster)}
        positions, stored, _ = context.mirror.begin(context.cluster)
    if not stored and context.pipeline.source.auto_offset_reset is not Reset.LATEST:
        return positions, None
    plan = pinned(context, ids, positions)
    if not stored:
        context.mirror.settled(positions)
    return positions, plan


def pinned(
    context: Context,
    ids: Mapping[str, str],
    positions: TopicPartitions,
    away: Away | None = None,
    *,
    chosen: bool = False,
) -> Plan:
    """Record where a new pipeline begins, and return the plan; `chosen`: a person has chosen it."""
    new = position(context.pipeline, BEFORE_FIRST, ids, positions, time.time())
    plan = replace(new, run="" if chosen else context.run, away=away or {})
    context.ledger.settle(plan, positions)
    return plan


def by_hand(plan: AnyPlan | None) -> bool:
    """Return whether a person has chosen where a pipeline begins that has read nothing yet."""
    if isinstance(plan, StreamPlan):
        return plan.chosen
    return plan is not None and not plan.run


def moved(context: Context, plan: AnyPlan, positions: TopicPartitions) -> TopicPartitions:
    """Return where the group is by now, if elsewhere: until the first record, its own job may have gone on.

    A group that has expired, or may no longer be read, does not tell where; nor does an offset out of range, for which
    the first start has chosen another one. A job of Tailrace that still runs refuses the start.
    """
    if context.pipeline.offsets.from_ is None or not follows(plan):
        return {}
    try:
        _, stored, reset = context.mirror.begin(context.cluster)
    except OffsetStoreUnusable:
        return {}
    except NotAuthorized:
        if context.mirror.tells(context.cluster):  # what is refused is to begin there
            raise
        return {}
    now = {place: offset for place, offset in stored.items() if place not in reset}
    return now if now.items() - positions.items() else {}


def follows(plan: AnyPlan) -> bool:
    """Return whether the group of `offsets.from` still says where the pipeline begins."""
    empty = plan.is_empty_beginning if isinstance(plan, StreamPlan) else plan.batch == BEFORE_FIRST
    return empty and not by_hand(plan)
