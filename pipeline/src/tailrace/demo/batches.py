"""Progress across successive drivers, added up from their events.

A killed driver leaves a batch open and its successor plans it again, so batches are counted by batch number, not by
the number of events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One line of the live table."""

    batch: int
    read: int
    written: int | None
    rejected: int | None
    skipped: int
    lag: int | None
    commit_ms: float | None


class Batches:
    """The open batch, and the input records of those written."""

    def __init__(self) -> None:
        self.open: int | None = None
        self.written = -1
        self.skipped = 0
        self.idle = False
        self._records: dict[int, int] = {}

    def apply(self, event: Event) -> Row | None:
        """Apply an event; return the table's row if it closes a batch."""
        kind = event.get("event")
        if kind == "planned":
            self.open = int(event["batch"])
            self._records[self.open] = int(event.get("records") or 0)
            self.idle = False
        elif kind == "written":
            self.open = None
            self.written = max(self.written, int(event["batch"]))
            self.skipped += int(event.get("skipped") or 0)
            return row_of(event)
        elif kind == "idle":
            self.idle = event.get("lag") == 0
        return None

    def ended(self) -> None:
        """Forget the open batch of a driver that has ended."""
        self.open = None
        self.idle = False

    @property
    def consumed(self) -> int:
        """The input records of every batch up to the last one written.

        An earlier batch whose end no driver reported is delivered too: no driver continues before it is.
        """
        return sum(records for batch, records in self._records.items() if batch <= self.written)


def row_of(event: Event) -> Row:
    """Return the table's row for a written batch."""
    commit = event.get("commit_ms")
    return Row(
        batch=int(event["batch"]),
        read=int(event.get("in") or 0),
        written=_number(event.get("out")),
        rejected=_number(event.get("rejected")),
        skipped=int(event.get("skipped") or 0),
        lag=_number(event.get("lag")),
        commit_ms=None if commit is None else float(commit),
    )


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None
