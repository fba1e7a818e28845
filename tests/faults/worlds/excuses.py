"""The errors with which a driver may end in a world: a supervisor restarts it then."""

from __future__ import annotations

from faults.worlds.world import BROKER_STRIKES, Strike, World
from tailrace.errors import (
    BrokerUnreachable,
    CheckpointFailed,
    KafkaFailed,
    NotAuthorized,
    TailraceError,
    TopicUnknown,
)


def excuses(world: World) -> tuple[type[TailraceError], ...]:
    """Return the errors that the world's strikes explain."""
    found: tuple[type[TailraceError], ...] = ()
    if BROKER_STRIKES.intersection(world.strikes):
        found += BrokerUnreachable, KafkaFailed
    if Strike.REGISTRY in world.strikes:
        found += (KafkaFailed,)
    if Strike.RIGHTS in world.strikes:
        found += (NotAuthorized,)
    if Strike.STORE in world.strikes:
        found += (CheckpointFailed,)
    if Strike.RECREATE in world.strikes:
        found += (TopicUnknown,)  # between its deletion and its creation
    return found
