"""What a driver may do in a world: the errors with which it may end, for a supervisor to restart it, and its waits.

What ends in another way, or is waited for in vain, is stuck.
"""

from __future__ import annotations

from faults.worlds.world import BROKER_STRIKES, DOUBTED, GUARDED, Place, Strike, Work, World
from tailrace.errors import (
    BrokerUnreachable,
    CheckpointFailed,
    KafkaFailed,
    NotAuthorized,
    OffsetsOutOfRange,
    PlanOfAnother,
    SourceChanged,
    TailraceError,
    TopicUnknown,
)
from tailrace.kafka.source import CERTAIN_AFTER

_LOST = (OffsetsOutOfRange, SourceChanged, PlanOfAnother)  # refusals of a pipeline whose input was deleted
_IMPATIENT = (Place.THREADS, Place.DROPIN)  # only `tailrace run` begins again in the same process
_QUIET = 4.0
_WAYS_ON = ("on_data_loss: reset", "start the pipeline again")


class Stuck(Exception):
    """Raised if something was waited for in vain, or ended for no reason."""


def excuses(world: World) -> tuple[type[TailraceError], ...]:
    """Return the errors that the world's strikes explain."""
    found: tuple[type[TailraceError], ...] = ()
    if BROKER_STRIKES.intersection(world.strikes):
        found += BrokerUnreachable, KafkaFailed
    if {Strike.OUTAGE, Strike.SILENCE}.intersection(world.strikes) and world.place in _IMPATIENT:
        found += BrokerUnreachable, KafkaFailed
    if Strike.RESTORE in world.strikes and world.place in _IMPATIENT:
        # An older plan may have fewer sink partitions than have open transactions, which hide the markers for a while.
        found += (BrokerUnreachable,)
    if Strike.REGISTRY in world.strikes:
        found += (KafkaFailed,)
    if GUARDED.intersection(world.strikes):
        found += (NotAuthorized,)
    if Strike.STORE in world.strikes:
        found += (CheckpointFailed,)
    if DOUBTED.intersection(world.strikes):
        found += (TopicUnknown,)  # between its deletion and its creation, or while it is hidden
        found += (SourceChanged,) if world.work is Work.DISTINCT else ()  # so says Spark's reader
    return found


def quiet_after(world: World) -> float:
    """Return for how many seconds a driver is idle before it is believed.

    Before it takes a topic for another one, it asks the brokers for a while, and has nothing to do meanwhile.
    """
    return _QUIET if DOUBTED.isdisjoint(world.strikes) else _QUIET + 1.5 * CERTAIN_AFTER


def way_on_without(error: TailraceError) -> bool:
    """Whether a driver is refused because input is gone, with the advice that lets the pipeline go on without it."""
    return isinstance(error, _LOST) and any(way in error.then for way in _WAYS_ON)
