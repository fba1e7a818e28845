"""Graceful shutdown, with a deadline for the batch in progress.

A batch that was given up is like one that was killed: its plan is in the ledger, and the next start delivers what is
missing of it, each record once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tailrace.errors import DrainUnfinished

_LOOK = 0.02


@dataclass
class Stop:
    """A stop request, set by a signal; the batch in progress is finished first, unless the stop is hurried."""

    event: threading.Event = field(default_factory=threading.Event)
    hurried: threading.Event = field(default_factory=threading.Event)
    reason: str = ""

    def __call__(self, reason: str) -> None:
        """Request the stop; the first reason is kept."""
        self.reason = self.reason or reason
        self.event.set()

    def hurry(self, reason: str) -> None:
        """Request the stop without waiting for the batch in progress."""
        self(reason)
        self.hurried.set()

    def drained(self, working: Callable[[], bool], limit: float) -> bool:
        """Wait while there is work; return False if the limit or a hurried stop came before its end."""
        end = time.monotonic() + limit
        while working():
            if time.monotonic() >= end or self.hurried.wait(_LOOK):
                return not working()
        return True


def unfinished(stop: Stop, batch: int, limit: float) -> DrainUnfinished:
    """Return the error for a batch that was given up."""
    why = "a second signal came" if stop.hurried.is_set() else f"batch.drain is {limit:g} s"
    return DrainUnfinished(
        f"batch {batch} was not finished after a stop was requested ({stop.reason}), and was given up: {why}",
        kept="what was committed of the batch stays; the next start delivers what is missing of it, each record once",
        then="start the pipeline again; raise batch.drain, or lower batch.max_records, if batches take that long",
    )
