"""Python's garbage collections of this process: how long each took, and what it freed.

A worker keeps them until its next task, and hands them to the gateway with it.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass

_MOST = 256  # collections that are kept for whoever asks next


@dataclass(frozen=True)
class Collection:
    """One collection."""

    generation: int
    seconds: float
    collected: int
    uncollectable: int


class Garbage:
    """Listens to the collector."""

    def __init__(self) -> None:
        self._since = 0.0
        self._kept: list[Collection] = []
        self._listening = False

    def listen(self) -> None:
        """From here on; a second time does nothing."""
        if not self._listening:
            self._listening = True
            gc.callbacks.append(self._heard)

    def forget(self) -> None:
        """Listen no more."""
        if self._listening:
            self._listening = False
            gc.callbacks.remove(self._heard)

    def _heard(self, phase: str, info: dict[str, int]) -> None:
        # Collections do not overlap, and this runs wherever an object was made: it takes no lock.
        if phase == "start":
            self._since = time.perf_counter()
        elif self._since and len(self._kept) < _MOST:
            spent = time.perf_counter() - self._since
            self._kept.append(Collection(info["generation"], spent, info["collected"], info["uncollectable"]))

    def taken(self) -> tuple[Collection, ...]:
        """The collections since the last call."""
        kept, self._kept = self._kept, []
        return tuple(kept)


@dataclass(frozen=True)
class Vitals:
    """What a worker tells of itself with each task."""

    pid: int
    collections: tuple[Collection, ...] = ()


OWN = Garbage()  # of this process
