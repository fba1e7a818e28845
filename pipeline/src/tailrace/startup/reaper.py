"""The reaper: removes the pods of executors that Spark has given up, because their node does not answer.

Spark counts the pod of a lost node as running, and makes no other, until Kubernetes has removed it. Kubernetes waits
for the node. What may still run there can commit nothing: its tasks are given to others, which fence it. The executors
that replace those are kept away from the node, unless they find no other.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tailrace.startup.api_server import FAILURES, overdue, unschedulable
from tailrace.startup.executor_template import ExecutorTemplate
from tailrace.startup.pods import Executors

_LOOK = 1.0
_SWEEP_EVERY = 5.0
_ENDS_WITHIN = 3.0  # seconds that an executor has to end by itself, once Spark or Kubernetes has given it up
_ID = "spark-exec-id"  # Spark's label
_LOST = "its node does not answer"
_NO_PLACE = "no node has a place for it but one that did not answer, which may be used again"


class Reaper:
    """Watches the executors of one driver; used by one thread."""

    def __init__(
        self,
        executors: Executors,
        registered: Callable[[], frozenset[str]],
        clock: Callable[[], float] = time.monotonic,
        template: ExecutorTemplate | None = None,
    ) -> None:
        self._executors, self._template = executors, template
        self._registered = registered
        self._clock = clock
        self._known: frozenset[str] = frozenset()
        self._dropped: dict[str, float] = {}  # ids of executors that Spark no longer has, and since when
        self._swept = clock()

    def look(self) -> dict[str, str]:
        """Remove what will not end by itself; return the names of the pods, each with the reason."""
        now, registered = self._clock(), self._registered()
        for gone in self._known - registered:
            self._dropped.setdefault(gone, now)
        self._known = registered
        due = frozenset(each for each, since in self._dropped.items() if now - since >= _ENDS_WITHIN)
        if not due and now - self._swept < _SWEEP_EVERY:
            return {}
        if self._template is not None:
            self._template.readmit()
        removed = self._remove(due)
        self._swept = now
        for each in due:
            del self._dropped[each]
        return removed

    def _remove(self, due: frozenset[str]) -> dict[str, str]:
        now, pods = datetime.datetime.now(datetime.UTC), self._executors.pods()
        given_up = [pod for pod in pods if _id(pod) in due and _runs(pod)]
        late = given_up + [pod for pod in pods if pod not in given_up and overdue(pod, now, _ENDS_WITHIN)]
        found = dict.fromkeys(map(_name, late), _LOST) | dict.fromkeys(
            map(_name, self._placed(pods, given_up)), _NO_PLACE
        )
        for name in found:
            self._executors.remove(name)
        return found

    def _placed(self, pods: list[dict[str, Any]], given_up: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Leave the nodes of executors that were given up out; return those that find no place because of it."""
        if self._template is None:
            return []
        nowhere = [pod for pod in pods if unschedulable(pod)] if self._template.left_out else []
        if nowhere:
            self._template.readmit(every=True)
            return nowhere
        for node in {str(pod["spec"]["nodeName"]) for pod in given_up if pod.get("spec", {}).get("nodeName")}:
            self._template.leave_out(node)
        return []

    def run(self, stopped: threading.Event, emit: Callable[[str], None]) -> None:
        """Look every second, until told to stop."""
        while not stopped.wait(_LOOK):
            with contextlib.suppress(*FAILURES):  # asked again soon
                for name, why in self.look().items():
                    emit(f"removed the executor {name}: {why}")


def _name(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["name"])


def _id(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"].get("labels", {}).get(_ID, ""))


def _runs(pod: Mapping[str, Any]) -> bool:
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
