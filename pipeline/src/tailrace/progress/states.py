"""The state machine of one sink partition's producer, as one table.

This decides whether a record can be lost or duplicated: which step may follow which, and what is forgotten after a
doubt. The gateway acts only as this table permits.
"""

from __future__ import annotations

from enum import StrEnum

from tailrace.errors import InvariantBroken
from tailrace.progress.plan import BatchId


class State(StrEnum):
    """What is known of the transactional id of a sink partition."""

    UNKNOWN = "unknown"  # no producer, or none that can be trusted
    FENCED = "fenced"  # a fresh producer: every older owner is fenced, the marker is not read yet
    READY = "ready"  # the marker is known, and no other producer can have written since without fencing this one
    OPEN = "open"  # a transaction has begun
    SEALED = "sealed"  # the marker is in the transaction
    COMMITTING = "committing"  # the commit has been sent: its outcome is unknown


class Event(StrEnum):
    """What happens to a sink partition."""

    FENCE = "fence"
    READ = "read"
    BEGIN = "begin"
    SEAL = "seal"
    COMMIT = "commit"
    COMMITTED = "committed"
    DOUBT = "doubt"  # anything with an uncertain outcome: the producer is destroyed


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.UNKNOWN, Event.FENCE): State.FENCED,
    (State.FENCED, Event.READ): State.READY,
    (State.READY, Event.READ): State.READY,
    (State.READY, Event.BEGIN): State.OPEN,
    (State.OPEN, Event.SEAL): State.SEALED,
    (State.SEALED, Event.COMMIT): State.COMMITTING,
    (State.COMMITTING, Event.COMMITTED): State.READY,
    **{(state, Event.DOUBT): State.UNKNOWN for state in State},
}


def after(state: State, event: Event) -> State:
    """Return the next state; raise InvariantBroken for an event that the table does not list."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise InvariantBroken(f"a sink partition that is {state} cannot {event}") from None


# When a cached producer may be used again (docs/decisions/0008).


def unfit(state: State, heard: str) -> str:
    """Return why the next transaction may not use the same epoch, as the producer knows; empty if it may."""
    return heard or ("" if state is State.READY else f"state: it is {state}")


def overtaken(made_in: str, run: str, owner: str, here: str) -> str:
    """Return why a cached producer is out of date, as the task shows; empty if it is not."""
    if made_in != run:
        return "earlier run: it was created for that"
    if owner and owner != here:
        return "moved: another executor has written this sink partition since"
    return ""


def repeated(decided: BatchId | None, batch: BatchId) -> str:
    """Return why a cached producer may not decide on a batch again; empty if it may decide on this one.

    Whoever wrote since must have fenced it. But a broker that has lost the markers' group may not know what it wrote
    itself, and only a fresh producer asks one that does.
    """
    return "repeated: it has decided on this batch" if decided is not None and decided >= batch else ""


def remembers(last: BatchId | None, batch: BatchId) -> bool:
    """Return whether the marker need not be read: this same producer wrote the previous batch."""
    return last is not None and last == batch - 1
