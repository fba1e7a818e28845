"""Open transactions of other producers: a read_committed source waits behind them, before anything is read.

A run that read uncommitted records may have stopped behind one, or left a batch there. A task that waited would hold up
its own transaction, and with it the readers of the sink; Spark would take the earlier end for lost data.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tailrace.driver.context import Context
from tailrace.driver.doubts import Doubt, certain, since
from tailrace.driver.lead import refuse_overtaken
from tailrace.kafka import source
from tailrace.kafka.clients import TopicPartitions
from tailrace.progress.plan import BatchId, Place
from tailrace.progress.positions import named
from tailrace.status.events import Noted

_EVERY = 0.2  # seconds between two looks
LEAD_EVERY = 5.0  # seconds between two questions whether this driver still leads


def wait(
    context: Context,
    ends: TopicPartitions,
    batch: BatchId,
    before: str,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Wait until the source can be read up to these offsets; return False if a stop was requested first.

    A log that certainly ends earlier is not waited for. Raise DriverFenced if another driver takes over meanwhile;
    `before` names the offsets for people.
    """
    doubts: dict[Place, Doubt] = {}
    pause, noted, asked = 0.0, False, clock()
    while not context.stop.event.wait(pause):
        pause, now = _EVERY, clock()
        last = source.ends(context.pipeline, ends, context.cluster)
        tops = source.beyond(ends, last, context.cluster)
        doubts = since(doubts, [place for place, top in tops.items() if top < ends[place]], now)
        if not tops.keys() - certain(doubts, now):
            return True
        held = sorted(tops.keys() - doubts.keys())
        if held and not noted:
            noted, place = True, held[0]
            context.emit(
                Noted(
                    f"an open transaction of another producer ends {named(place)} at {last[place]}, before {before}, "
                    f"{ends[place]}{f'; so it is with {len(held) - 1} more' if len(held) > 1 else ''}: waiting for "
                    "its end"
                )
            )
        if now - asked > LEAD_EVERY:
            refuse_overtaken(context.ledger, context.pipeline, batch)
            asked = now
        context.watcher.tick()
    return False
