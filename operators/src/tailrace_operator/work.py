"""The queue of Pipelines to reconcile: each once, never twice at a time, and again later if it failed.

kopf handles an object's events one after another, but a Pipeline's objects are many, and its driver is asked at times
when nothing happens; so events only say which Pipeline to look at.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable

from tailrace_operator.model import Key

log = logging.getLogger(__name__)

EVERY = 15.0  # seconds until a Pipeline is looked at again, when nothing happens
SOON = 8.0  # seconds at most until one that waits for something is looked at again
SHORTEST, LONGEST = 1.0, 120.0  # seconds until what failed is tried again


class Work:
    """Threads that reconcile what is due."""

    def __init__(
        self, reconcile: Callable[[Key], str], done: Callable[[Key, str, float], None], threads: int, *, soon: str = ""
    ) -> None:
        """Reconcile with so many threads; `soon` is the outcome after which a Pipeline is looked at again sooner."""
        self._soon = soon
        self._reconcile = reconcile
        self._done = done
        self._condition = threading.Condition()
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._busy: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._pauses: dict[Key, float] = {}
        self._ending = False
        self._threads = [threading.Thread(target=self._run, name=f"reconcile-{n}", daemon=True) for n in range(threads)]

    def start(self) -> None:
        """Begin."""
        for each in self._threads:
            each.start()

    def stop(self, limit: float = 20.0) -> None:
        """Let what is being reconciled finish, and begin nothing else."""
        with self._condition:
            self._ending = True
            self._condition.notify_all()
        for each in self._threads:
            each.join(limit)

    def add(self, key: Key, after: float = 0.0) -> None:
        """Reconcile a Pipeline after so many seconds, or earlier if it is due earlier."""
        when = time.monotonic() + after
        with self._condition:
            if when < self._due.get(key, float("inf")):
                self._due[key] = when
                heapq.heappush(self._heap, (when, key))
                self._condition.notify()

    @property
    def waiting(self) -> int:
        """How many Pipelines are due now."""
        now = time.monotonic()
        with self._condition:
            return sum(when <= now for when in self._due.values())

    def _run(self) -> None:
        while (key := self._next()) is not None:
            started = time.monotonic()
            try:
                phase = self._reconcile(key)
                outcome, again = phase or "gone", EVERY if phase else None
                self._failures.pop(key, None)
                if phase and phase == self._soon:
                    again = self._pauses[key] = min(self._pauses.get(key, SHORTEST / 2) * 2, SOON)
                else:
                    self._pauses.pop(key, None)
            except Exception as error:  # one Pipeline's trouble is not that of the others
                failures = self._failures[key] = self._failures.get(key, 0) + 1
                again = min(SHORTEST * 2 ** (failures - 1), LONGEST)
                outcome = "error"
                log.warning("%s: %s: %s; again in %.0f s", key, type(error).__name__, _line(error), again)
                log.debug("%s", key, exc_info=True)
            self._done(key, outcome, time.monotonic() - started)
            with self._condition:
                self._busy.discard(key)
                self._condition.notify()
            if again is not None:
                self.add(key, again)

    def _next(self) -> Key | None:
        """Wait for a Pipeline that is due and that no other thread reconciles."""
        with self._condition:
            while not self._ending:
                key, wait = self._pop()
                if key is not None:
                    self._busy.add(key)
                    return key
                self._condition.wait(wait)
        return None

    def _pop(self) -> tuple[Key | None, float | None]:
        now, held = time.monotonic(), []
        found, wait = None, None
        while self._heap:
            when, key = self._heap[0]
            if self._due.get(key) != when:  # it was made due earlier, and done
                heapq.heappop(self._heap)
                continue
            if when > now:
                wait = when - now
                break
            heapq.heappop(self._heap)
            if key in self._busy:
                held.append((when, key))
                continue
            del self._due[key]
            found = key
            break
        for each in held:
            heapq.heappush(self._heap, each)
        return found, wait


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
