"""The pod template of the executors, from which a node that has stopped answering is left out for a while.

Kubernetes calls a node ready for most of a minute after its power was lost, and the scheduler prefers it: it looks
empty. The executor that replaces a lost one would be put there, and wait. Spark reads the template for each executor,
so the driver gives it a copy that it can change.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

SETTING = "spark.kubernetes.executor.podTemplateFile"
LEFT_OUT = 60.0  # seconds; by then Kubernetes has noticed too
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class ExecutorTemplate:
    """The copy of one driver's template; used by one thread."""

    def __init__(self, original: Path, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.file = folder / "executor.json"
        self._plain: dict[str, Any] = yaml.safe_load(original.read_text(encoding="utf-8"))
        self._clock = clock
        self._left_out: dict[str, float] = {}  # nodes, and until when
        self._write()

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> ExecutorTemplate | None:
        """Copy the template that Spark is told to use; None if that is no file of this machine."""
        named = Path(settings.get(SETTING, ""))
        return cls(named, Path(tempfile.mkdtemp(prefix="tailrace-executors-"))) if named.is_file() else None

    @property
    def left_out(self) -> frozenset[str]:
        """The nodes on which no new executor is put."""
        return frozenset(self._left_out)

    def leave_out(self, node: str) -> None:
        """Put no new executor on this node for a while."""
        self._left_out[node] = self._clock() + LEFT_OUT
        self._write()

    def readmit(self, *, every: bool = False) -> None:
        """Allow the nodes again whose time is over, or every one."""
        kept = {node: until for node, until in self._left_out.items() if not every and until > self._clock()}
        if kept != self._left_out:
            self._left_out = kept
            self._write()

    def _write(self) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(without(self._plain, self._left_out)), encoding="utf-8")
        os.replace(new, self.file)  # Spark may be reading it


def without(template: Mapping[str, Any], nodes: Iterable[str]) -> dict[str, Any]:
    """Return a pod template whose pods are not put on these nodes, whatever else it requires of a node."""
    found: dict[str, Any] = copy.deepcopy(dict(template))
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in sorted(nodes)]
    if not fields:
        return found
    place = found
    for key in ("spec", "affinity", "nodeAffinity", _REQUIRED):
        place[key] = place.get(key) or {}
        place = place[key]
    # A node must match one term, and all of that term.
    place["nodeSelectorTerms"] = [
        {**term, "matchFields": [*term.get("matchFields", []), *fields]}
        for term in place.get("nodeSelectorTerms") or [{}]
    ]
    return found
