"""The successor of a driver whose pod is about to end: when a node is drained, or a certificate was renewed.

Kubernetes creates the replacement of a pod as soon as the pod is deleted, and lets the old one finish. So a driver that
works on until its successor is ready hands its pipeline over, as in an upgrade. Without a successor in sight (the
release is removed) it does not wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tailrace.startup.api_server import FAILURES, Pods, ending, ready, short

APPEARS = 5.0  # seconds within which Kubernetes has created a replacement
_LOOK = 0.5


@dataclass(frozen=True)
class Others:
    """The other drivers' pods of the pipeline."""

    ready: tuple[str, ...]
    coming: tuple[str, ...]

    @classmethod
    def of(cls, pods: Iterable[Mapping[str, Any]], own: str) -> Others:
        """Sort the pods; those that are ending count for nothing."""
        others = [each for each in pods if each["metadata"]["name"] != own and not ending(each)]
        names = [(str(each["metadata"]["name"]), ready(each)) for each in others]
        return cls(
            tuple(name for name, is_ready in names if is_ready), tuple(name for name, is_ready in names if not is_ready)
        )


def await_successor(
    pods: Pods, selector: str, own: str, limit: float, *, appears: float = APPEARS, look: float = _LOOK
) -> str:
    """Wait until another pod with these labels is ready, or none will be; return what ended the wait."""
    began, problem = time.monotonic(), ""
    while True:
        others = Others((), ())
        try:
            others, problem = Others.of(pods.select(selector), own), ""
        except FAILURES as error:
            problem = f"; the API could not be asked: {short(error)}"
        waited = time.monotonic() - began
        if others.ready:
            return f"{others.ready[0]} is ready"
        if not others.coming and waited >= min(appears, limit):
            return f"no other driver's pod exists{problem}"
        if waited >= limit:
            return f"{others.coming[0]} is not ready after {limit:.0f} s"
        time.sleep(look)


def resign(pods: Pods | None, own: str, stop: Callable[[str], None], reason: str) -> None:
    """Delete this driver's own pod, so that another one replaces it; outside a pod, or if refused, stop."""
    if pods is None:
        stop(reason)
        return
    try:
        pods.delete(name=own)
    except FAILURES as error:
        stop(f"{reason}, and its pod could not be replaced: {short(error)}")
