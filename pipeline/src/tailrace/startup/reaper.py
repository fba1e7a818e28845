"""The reaper: removes the pods of executors that Spark has given up, because their node does not answer.

Spark counts the pod of a lost node as running, and makes no other, until Kubernetes has removed it. Kubernetes waits
for the node. What may still run there can commit nothing: its tasks are given to others, which fence it.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tailrace.startup.api_server import FAILURES, overdue
from tailrace.startup.pods import Executors

_LOOK = 1.0
_SWEEP_EVERY = 5.0
_ENDS_WITHIN = 3.0  # seconds that an executor has to end by itself, once Spark or Kubernetes has given it up
_ID = "spark-exec-id"  # Spark's label


class Reaper:
    """Watches the executors of one driver; used by one thread."""

    def __init__(
        self,
        executors: Executors,
        registered: Callable[[], frozenset[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executors = executors
        self._registered = registered
        self._clock = clock
        self._known: frozenset[str] = frozenset()
        self._dropped: dict[str, float] = {}  # ids of executors that Spark no longer has, and since when
        self._swept = clock()

    def look(self) -> list[str]:
        """Remove what will not end by itself; return the names of the pods."""
        now, registered = self._clock(), self._registered()
        for gone in self._known - registered:
            self._dropped.setdefault(gone, now)
        self._known = registered
        due = frozenset(each for each, since in self._dropped.items() if now - since >= _ENDS_WITHIN)
        if not due and now - self._swept < _SWEEP_EVERY:
            return []
        removed = self._remove(due)
        self._swept = now
        for each in due:
            del self._dropped[each]
        return removed

    def _remove(self, due: frozenset[str]) -> list[str]:
        now = datetime.datetime.now(datetime.UTC)
        late = [
            str(pod["metadata"]["name"])
            for pod in self._executors.pods()
            if overdue(pod, now, _ENDS_WITHIN) or (_id(pod) in due and _runs(pod))
        ]
        for name in late:
            self._executors.remove(name)
        return late

    def run(self, stopped: threading.Event, emit: Callable[[str], None]) -> None:
        """Look every second, until told to stop."""
        while not stopped.wait(_LOOK):
            with contextlib.suppress(*FAILURES):  # asked again soon
                for name in self.look():
                    emit(f"removed the executor {name}: its node does not answer")


def _id(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"].get("labels", {}).get(_ID, ""))


def _runs(pod: Mapping[str, Any]) -> bool:
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
