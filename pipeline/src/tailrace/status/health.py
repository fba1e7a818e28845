"""Whether a pipeline is well: the one decision that the page, the terminal and programs show.

`assess` is pure: what the driver knows at a moment in, a state with its reason, its beginning and the next command out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from tailrace.status.fault_search import FaultSearch

PATIENT: Final = 30.0  # seconds that a record may wait before the pipeline counts as behind, at least
SEARCHED: Final = 10.0  # seconds from which a search for faulty records is a state; most are shorter
HELD: Final = 60.0  # seconds for which an open transaction of another producer may hold records back
REJECTING: Final = 0.5  # share of rejected records from which a pipeline is not well
FEW: Final = 20  # rejected records that are too few to judge by


class Phase(StrEnum):
    """What a driver is doing."""

    STARTING = "starting"
    STANDBY = "standby"
    LEADING = "leading"
    STOPPING = "stopping"


class State(StrEnum):
    """How a pipeline is."""

    WELL = "well"
    BEHIND = "behind"  # batches finish, and records wait for too long
    SEARCHING = "searching"  # no batch finishes until the records are found at which the function raises
    REJECTING = "rejecting"  # batches finish, and most of their records are rejected
    STUCK = "stuck"  # no batch finishes although there is work
    STARTING = "starting"
    STANDBY = "standby"
    ENDING = "ending"


@dataclass(frozen=True)
class Speed:
    """How fast records arrive and how fast they are read, in records a second, over the last minute."""

    arriving: float
    reading: float

    def until_read(self, lag: int) -> float | None:
        """Return the seconds until a lag is gone; None if it does not shrink."""
        gain = self.reading - self.arriving
        return lag / gain if gain > 0.01 * self.arriving and gain > 0 else None


@dataclass(frozen=True)
class Sight:
    """What a driver knows of its pipeline at one moment; times are seconds since 1970."""

    now: float
    phase: Phase
    since: float  # of the phase
    ready: bool = False
    step: str = "starts"  # of a start: what the driver does
    leader: str = ""  # of a standby: who leads, if it is known
    stalled: str = ""  # why the driver counts as stalled, if it does
    moved: float = 0.0  # when a batch was last finished, or could have begun
    away: tuple[float, str] | None = None  # since when no broker answers, and what was asked
    search: FaultSearch | None = None  # of the batch in progress
    rejects: bool = False  # whether the records that the search finds are rejected; otherwise the pipeline stops
    lag: int | None = None  # records
    age: float = 0.0  # of the oldest unread record, in seconds
    held: tuple[int, float] = (0, 0.0)  # offsets behind open transactions of other producers, and for how many seconds
    speed: Speed | None = None
    patience: float = PATIENT
    read: int = 0  # records of the batches of the last minutes
    rejected: int = 0  # of those
    reason: str = ""  # the most frequent reason of a rejection
    executors: tuple[int, int] | None = None  # wanted and present


@dataclass(frozen=True)
class Health:
    """The state of a pipeline, for a person: since when, why, and what to do."""

    state: State
    since: float
    why: str
    next: str = ""
    until: float | None = None  # seconds until the lag is read, if it shrinks
    runbook: str = ""  # the page in docs/runbooks, without its ending

    @property
    def well(self) -> bool:
        """Whether nobody has to do anything."""
        return self.state in {State.WELL, State.STANDBY}

    def as_dict(self) -> dict[str, Any]:
        """Return the part `health` of the status document."""
        return {
            "state": self.state.value,
            "well": self.well,
            "since": self.since,
            "why": self.why,
            "next": self.next,
            "until": self.until,
            "runbook": self.runbook,
        }


def assess(sight: Sight, before: Health | None = None) -> Health:
    """Decide how the pipeline is; a state that lasts keeps its beginning."""
    found = _assessed(sight)
    if before is not None and before.state is found.state and before.since < found.since:
        return replace(found, since=before.since)
    return found


def _assessed(sight: Sight) -> Health:
    match sight.phase:
        case Phase.STOPPING:
            return Health(State.ENDING, sight.since, "A stop was requested: the batch in progress is finished first.")
        case Phase.STANDBY:
            who = f"{sight.leader} leads" if sight.leader else "No driver leads"
            return Health(State.STANDBY, sight.since, f"{who}; this driver can take over at once.")
    if sight.away is not None:
        since, what = sight.away
        return Health(
            State.STUCK,
            since,
            f"The brokers do not answer: {what}. Delivered records are safe, and the driver goes on when they answer.",
            "tailrace doctor FILE",
            runbook="stalled",
        )
    if sight.stalled:
        return Health(State.STUCK, sight.moved, _stalled(sight), "tailrace doctor FILE", runbook="stalled")
    if sight.search is not None and sight.search.since + SEARCHED <= sight.now < sight.search.until:
        return _searching(sight, sight.search)
    if not sight.ready:
        return Health(State.STARTING, sight.since, f"The driver {sight.step}.")
    return _leading(sight)


def _stalled(sight: Sight) -> str:
    waiting = f", and {sight.lag:,} records wait" if sight.lag else ""
    missing = ""
    if sight.executors is not None and sight.executors[1] < sight.executors[0]:
        missing = f" Only {sight.executors[1]} of {sight.executors[0]} executors are present."
    return f"No batch has finished for {duration(sight.now - sight.moved)}{waiting}.{missing}"


def _searching(sight: Sight, search: FaultSearch) -> Health:
    then = (
        "They are rejected, and the others are delivered"
        if sight.rejects
        else "Then the pipeline stops, and its error names the first of them"
    )
    waiting = f" {sight.lag:,} records wait." if sight.lag else ""
    return Health(
        State.SEARCHING,
        search.since,
        f"Batch {search.batch} failed: {search.why}. The driver looks for the records at which that happens, for at "
        f"most another {duration(search.until - sight.now)}. {then}.{waiting}",
        "nothing for now: the log names the records once they are found, and tailrace preview FILE tries a mended "
        "function",
    )


def _leading(sight: Sight) -> Health:
    lag = sight.lag or 0
    held, held_for = sight.held
    if held and held_for > HELD:
        return Health(
            State.BEHIND,
            sight.now - held_for,
            f"{held:,} offsets wait behind a transaction that another producer has left open for {duration(held_for)}.",
            "kafka-transactions.sh --bootstrap-server HOST:PORT describe-producers --topic TOPIC --partition N",
            runbook="upstream-transaction",
        )
    # Records may be older than their arrival here, so what counts is also how long the lag takes to arrive.
    arriving = sight.speed.arriving if sight.speed is not None else 0.0
    if lag and sight.age > sight.patience and lag > arriving * sight.patience:
        until = sight.speed.until_read(lag) if sight.speed is not None else None
        return Health(
            State.BEHIND,
            sight.now,
            f"{lag:,} records wait, the oldest for {duration(sight.age)}. {_pace(sight.speed)}",
            "" if until is not None else _remedy(sight.speed),
            until,
            "lag-growing",
        )
    if sight.rejected >= FEW and sight.rejected > REJECTING * sight.read:
        most = f", most often: {sight.reason}" if sight.reason else ""
        return Health(
            State.REJECTING,
            sight.now,
            f"{sight.rejected:,} of the last {sight.read:,} records were rejected{most}. The rejected topic has them.",
            "tailrace rejected list FILE",
            runbook="rejected-ratio",
        )
    if sight.lag is None:
        return Health(State.WELL, sight.now, "Batches are delivered; the lag is not known yet.")
    if not lag:
        return Health(State.WELL, sight.now, "Everything that has arrived is delivered.")
    return Health(State.WELL, sight.now, "Records are delivered as they arrive.")


def _remedy(speed: Speed | None) -> str:
    if speed is None:
        return ""
    if not speed.reading:  # more capacity does not help a batch that fails again and again
        return "look at the last lines of the driver's log: they say what the batch in progress waits for"
    return "add executors, or sink partitions if each has one"


def _pace(speed: Speed | None) -> str:
    if speed is None:
        return "How fast it catches up is not known yet."
    pace = f"{speed.reading:,.0f} records are read a second, {speed.arriving:,.0f} arrive"
    if speed.reading < speed.arriving:
        return f"It falls further behind: {pace}."
    return f"It catches up: {pace}." if speed.until_read(1) is not None else f"It keeps its distance: {pace}."


def duration(seconds: float) -> str:
    """Format a duration for people."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.1f} s"
