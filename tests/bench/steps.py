"""The time of a batch by step on Tailrace's side, from its events."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

Events = Sequence[tuple[float, dict[str, Any]]]  # each with the time when it came

STEPS = {
    "whole": "batch",
    "plan": "look, choose, write the plan",
    "job": "deliver",
    "commit": "of that, the longest transaction's commit",
    "rest": "report",
}


def steps(events: Events, since: float = 0.0, until: float = float("inf")) -> dict[str, float]:
    """Return the median of each step in ms, over the batches that ended between `since` and `until`.

    A batch lasts from the end of the previous one to its own end; a wait for records counts as part of `plan`.
    """
    planned = {event["batch"]: at for at, event in events if event.get("event") == "planned"}
    written = {event["batch"]: (at, event) for at, event in events if event.get("event") == "written"}
    found: list[dict[str, float]] = []
    for batch, (at, event) in written.items():
        before = written.get(batch - 1)
        if before is None or batch not in planned or not since <= at <= until:
            continue
        total, plan, job = at - before[0], planned[batch] - before[0], float(event["seconds"])
        parts = {"whole": total, "plan": plan, "job": job, "rest": max(0.0, total - plan - job)}
        found.append({name: 1000 * value for name, value in parts.items()} | {"commit": float(event["commit_ms"])})
    return {name: statistics.median(each[name] for each in found) for name in STEPS} if found else {}
