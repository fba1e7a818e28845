"""Python's garbage collections in this process: how long each took, and how many objects it freed.

A worker keeps them until its next task, and sends them to the gateway with it.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass

_MOST = 256  # collections kept until they are next taken


@dataclass(frozen=True)
class Collection:
    """One collection."""

    generation: int
    seconds: float
    collected: int
    uncollectable: int


class Garbage:
    """Listens to Python's collector."""

    def __init__(self) -> None:
        self._since = 0.0
        self._kept: list[Collection] = []
        self._listening = False

    def listen(self) -> None:
        """Start listening; a second call does nothing."""
        if not self._listening:
            self._listening = True
            gc.callbacks.append(self._heard)

    def forget(self) -> None:
        """Stop listening."""
        if self._listening:
            self._listening = False
            gc.callbacks.remove(self._heard)

    def _heard(self, phase: str, info: dict[str, int]) -> None:
        # Collections do not overlap, and this may run at any allocation, so it takes no lock.
        if phase == "start":
            self._since = time.perf_counter()
        elif self._since and len(self._kept) < _MOST:
            spent = time.perf_counter() - self._since
            self._kept.append(Collection(info["generation"], spent, info["collected"], info["uncollectable"]))

    def taken(self) -> tuple[Collection, ...]:
        """Return the collections since the last call."""
        kept, self._kept = self._kept, []
        return tuple(kept)


@dataclass(frozen=True)
class Vitals:
    """What a worker reports about itself with each task."""

    pid: int
    collections: tuple[Collection, ...] = ()


OWN = Garbage()  # of this process
