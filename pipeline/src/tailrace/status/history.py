"""What happened lately, in bounded memory: the lag's course, sums of the batches by time, and a log in words.

All of it is shown on the status page. It is fed by the board, which holds the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tailrace.status.health import Speed
from tailrace.status.snapshots import Finished, LagSeen

_WINDOW = 60.0  # seconds over which speeds are measured
_LEAST = 3.0  # seconds between two looks that a speed needs
FINE: Final = (10.0, 360)  # seconds of a slot, and slots kept: an hour
COARSE: Final = (300.0, 288)  # a day
RECENT: Final = 600.0  # seconds over which rejected records are judged
_ENTRIES = 60
_LONGEST = 500  # characters of an entry


class Course:
    """The offsets at the looks of the last minute, for the speed of the records."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()
        self._places: frozenset[tuple[str, int]] = frozenset()

    def saw(self, seen: LagSeen) -> None:
        """Add a look; partitions that come or go begin a new course."""
        places = frozenset(seen.positions)
        if places != self._places:
            self._seen.clear()
            self._places = places
        self._seen.append((seen.at, sum(seen.ends.get(place, 0) for place in places), sum(seen.positions.values())))
        while self._seen[-1][0] - self._seen[0][0] > _WINDOW:
            self._seen.popleft()

    @property
    def speed(self) -> Speed | None:
        """Return the speeds over the window; None as long as too little is known."""
        if not self._seen or self._seen[-1][0] - self._seen[0][0] < _LEAST:
            return None
        (began, end, position), (now, last_end, last_position) = self._seen[0], self._seen[-1]
        spent = now - began
        return Speed(max(0.0, (last_end - end) / spent), max(0.0, (last_position - position) / spent))


@dataclass
class Slot:
    """The batches and the lag of a span of time."""

    at: float
    batches: int = 0
    read: int = 0
    out: int = 0
    rejected: int = 0
    longest: float = 0.0  # seconds of the slowest batch
    lag: int | None = None  # the most records
    age: float = 0.0  # of the oldest unread record, at most
    reasons: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the slot as /history shows it."""
        return {
            "at": self.at,
            "batches": self.batches,
            "in": self.read,
            "out": self.out,
            "rejected": self.rejected,
            "seconds": round(self.longest, 4),
            "lag": self.lag,
            "age": round(self.age, 3),
        }


class Slots:
    """Slots of equal length, the newest last; a span in which nothing happened has none."""

    def __init__(self, seconds: float, kept: int) -> None:
        self.seconds = seconds
        self._slots: deque[Slot] = deque(maxlen=kept)
        self._span = seconds * kept

    def _at(self, moment: float) -> Slot:
        start = moment - moment % self.seconds
        if not self._slots or self._slots[-1].at < start:
            self._slots.append(Slot(start))
        return self._slots[-1]  # a clock that was set back adds to the newest slot

    def finished(self, batch: Finished, seconds: float) -> None:
        """Add a batch."""
        slot = self._at(batch.at)
        slot.batches += 1
        slot.read += batch.records
        slot.out += batch.out
        slot.rejected += batch.rejected
        slot.longest = max(slot.longest, seconds)
        for reason, number in batch.reasons.items():
            slot.reasons[reason] = slot.reasons.get(reason, 0) + number

    def lag(self, seen: LagSeen) -> None:
        """Add a look at the lag."""
        slot = self._at(seen.at)
        slot.lag = max(slot.lag or 0, seen.records)
        slot.age = max(slot.age, seen.seconds)

    def since(self, moment: float) -> list[Slot]:
        """Return the slots that begin at this moment or later."""
        return [slot for slot in self._slots if slot.at >= moment]

    def as_dict(self, now: float) -> dict[str, Any]:
        """Return the slots of the span that ends now."""
        return {"seconds": self.seconds, "slots": [slot.as_dict() for slot in self.since(now - self._span)]}


def rejected_lately(slots: Slots, now: float) -> tuple[int, int, str]:
    """Return how many records were read and rejected lately, and the most frequent reason."""
    lately = slots.since(now - RECENT)
    reasons: dict[str, int] = {}
    for slot in lately:
        for reason, number in slot.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + number
    most = max(reasons, key=lambda reason: reasons[reason], default="")
    return sum(slot.read for slot in lately), sum(slot.rejected for slot in lately), most


class Journal:
    """What happened, in words, with its time; the newest last."""

    def __init__(self) -> None:
        self._entries: deque[dict[str, Any]] = deque(maxlen=_ENTRIES)
        self._change: dict[str, Any] | None = None

    def write(self, at: float, kind: str, text: str, before: bool = False) -> None:
        """Add an entry, perhaps of the run before; one that repeats the newest counts its repetitions."""
        text = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
        last = self._entries[-1] if self._entries else None
        if last is not None and (last["kind"], last["text"]) == (kind, text):
            last["at"], last["times"] = at, last["times"] + 1
            return
        entry = {"at": at, "kind": kind, "text": text, "times": 1}
        self._entries.append(entry)
        if kind == "change" and not (before and self._change is not None):
            self._change = entry

    @property
    def change(self) -> Mapping[str, Any] | None:
        """Return what was changed last, even if its entry is gone."""
        return self._change

    def lines(self) -> list[tuple[float, str, str]]:
        """Return the entries as when, kind and text, but for errors: they are kept by themselves."""
        entries = [entry for entry in self.entries() if entry["kind"] != "error"]
        return [(round(entry["at"], 1), entry["kind"], entry["text"]) for entry in entries]

    def entries(self) -> list[dict[str, Any]]:
        """Return the entries by their times: the error of an earlier run is read late."""
        return sorted((dict(entry) for entry in self._entries), key=lambda entry: float(entry["at"]))
