"""The life of one sink partition's producer, as one table.

Whether a record can be lost or duplicated is decided here: which step may follow which, and what is forgotten
after a doubt. The gateway acts, this table permits.
"""

from __future__ import annotations

from enum import StrEnum

from tailrace.errors import InvariantBroken
from tailrace.progress.plan import BatchId


class State(StrEnum):
    """What is known of the transactional id of a sink partition."""

    UNKNOWN = "unknown"  # no producer, or none that may be believed
    FENCED = "fenced"  # a fresh producer: every older owner is fenced, the marker is not read yet
    READY = "ready"  # the marker is known, and nobody else can have written since without fencing this producer
    OPEN = "open"  # a transaction has begun
    SEALED = "sealed"  # the marker is in the transaction
    COMMITTING = "committing"  # the commit is on its way: its outcome is not known


class Event(StrEnum):
    """What happens to a sink partition."""

    FENCE = "fence"
    READ = "read"
    BEGIN = "begin"
    SEAL = "seal"
    COMMIT = "commit"
    COMMITTED = "committed"
    ABORTED = "aborted"
    DOUBT = "doubt"  # anything whose outcome is not certain: the producer is destroyed


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.UNKNOWN, Event.FENCE): State.FENCED,
    (State.FENCED, Event.READ): State.READY,
    (State.READY, Event.READ): State.READY,
    (State.READY, Event.BEGIN): State.OPEN,
    (State.OPEN, Event.SEAL): State.SEALED,
    (State.SEALED, Event.COMMIT): State.COMMITTING,
    (State.COMMITTING, Event.COMMITTED): State.READY,
    (State.OPEN, Event.ABORTED): State.READY,
    (State.SEALED, Event.ABORTED): State.READY,
    **{(state, Event.DOUBT): State.UNKNOWN for state in State},
}


def after(state: State, event: Event) -> State:
    """The state that follows; an event that the table does not list must not happen."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise InvariantBroken(f"a sink partition that is {state} cannot {event}") from None


# What a producer that was kept may go on with (docs/decisions/0008).


def unfit(state: State, heard: str) -> str:
    """Why the next transaction may not take the same epoch, by what the producer knows itself; empty where it may."""
    return heard or ("" if state is State.READY else f"state: it is {state}")


def overtaken(made_in: str, run: str, owner: str, here: str) -> str:
    """Why a kept producer must be an old one, by what the task says; empty where nothing speaks against it."""
    if made_in != run:
        return "earlier run: it was made for that"
    if owner and owner != here:
        return "moved: another executor has written this sink partition since"
    return ""


def remembers(last: BatchId | None, batch: BatchId) -> bool:
    """Whether the marker need not be read: this very producer has written the batch before."""
    return last is not None and last == batch - 1
