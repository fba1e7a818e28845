"""Where the time of a batch goes on Tailrace's side, by step, as its events tell."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

Events = Sequence[tuple[float, dict[str, Any]]]  # when each came, and what it says

STEPS = {
    "whole": "batch",
    "plan": "look, choose, write the plan",
    "job": "deliver",
    "commit": "of that, the longest transaction's commit",
    "rest": "report",
}


def steps(events: Events, since: float = 0.0, until: float = float("inf")) -> dict[str, float]:
    """Return the median of each step in ms, over the batches that ended in this time.

    A batch lasts from the end of the one before to its own end; a wait for records counts as part of `plan`.
    """
    planned = {event["batch"]: at for at, event in events if event.get("event") == "planned"}
    written = {event["batch"]: (at, event) for at, event in events if event.get("event") == "written"}
    found: list[dict[str, float]] = []
    for batch, (at, event) in written.items():
        before = written.get(batch - 1)
        if before is None or batch not in planned or not since <= at <= until:
            continue
        whole, plan, job = at - before[0], planned[batch] - before[0], float(event["seconds"])
        parts = {"whole": whole, "plan": plan, "job": job, "rest": max(0.0, whole - plan - job)}
        found.append({name: 1000 * value for name, value in parts.items()} | {"commit": float(event["commit_ms"])})
    return {name: statistics.median(each[name] for each in found) for name in STEPS} if found else {}
