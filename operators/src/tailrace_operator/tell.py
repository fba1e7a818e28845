"""Telling: the Events of a Pipeline, for people who ask `kubectl describe` why its driver was replaced, or was not.

An Event is news, and nothing depends on it: what is to be known later is in the status.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tailrace.config.resource import GROUP, KIND, VERSION
from tailrace_operator.build import Built
from tailrace_operator.changes import Effect, changed, part, why
from tailrace_operator.gates import is_up_to_people, words
from tailrace_operator.model import MANAGER, SINCE, WHY, Choice, Object, Resource, Revision, Seen
from tailrace_operator.objects import short

_PLATFORM = "the operator's platform or version"


class Reason(StrEnum):
    """Why an Event is made."""

    HAND_OVER = "HandOver"
    CHANGED = "ChangedInPlace"
    ROLLED_BACK = "RolledBack"


@dataclass(frozen=True)
class News:
    """What an Event says."""

    reason: str
    message: str
    warning: bool = False


def because(seen: Seen, run: Revision, built: Built) -> str:
    """Return why the driver's pod template differs from the one that was applied before."""
    before = seen.rollout
    if before is None or not before.template:
        return ""
    if before.template == built.template:
        return before.why if before.revision == run.name else ""
    old = next((each for each in seen.revisions if each.name == before.revision), None)
    return ", ".join(why(old.spec, run.spec) if old is not None else ()) or _PLATFORM


def marks(seen: Seen, run: Revision, built: Built, now: str) -> dict[str, str]:
    """Return the annotations of a Deployment that say why and when its pod template changed last."""
    before = seen.rollout
    same = before is not None and before.template == built.template
    found = {WHY: because(seen, run, built), SINCE: before.since if before is not None and same else now}
    return {name: text for name, text in found.items() if text}


def news(seen: Seen, run: Revision, built: Built, rolled_back: str) -> News | None:
    """Return what is to be told about objects that are about to be applied."""
    before, spec = seen.rollout, seen.resource.spec
    if before is None or not before.template:
        return None
    if before.template != built.template:
        verb = "restart" if built.deployment["spec"]["strategy"]["type"] == "Recreate" else "hand-over"
        text = f"revision {run.name}: {verb} because: {because(seen, run, built)}"
        if rolled_back:
            return News(Reason.ROLLED_BACK, f"revision {run.name} runs again: {rolled_back}", warning=True)
        return News(Reason.HAND_OVER, text)
    keys = changed(before.live, part(spec, Effect.LIVE), Effect.LIVE)
    return News(Reason.CHANGED, f"without another driver: {', '.join(keys)}") if keys else None


def waiting(before: Mapping[str, Any], choice: Choice) -> News | None:
    """Return what is to be told about something that is missing, unless the status has this reason already."""
    known = {each["type"]: each.get("reason") for each in before.get("conditions", ())}
    if not choice.waiting or known.get("DependenciesReady") == choice.waiting[0].reason:
        return None
    warning = choice.running or any(map(is_up_to_people, choice.waiting))
    return News(choice.waiting[0].reason, words(choice.waiting), warning=warning)


def event(resource: Resource, told: News) -> Object:
    """Return the Event."""
    now = datetime.datetime.now(datetime.UTC)
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    key = resource.key
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{key.name}.{int(now.timestamp() * 1e6):x}"[:253], "namespace": key.namespace},
        "involvedObject": {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "namespace": key.namespace,
            "name": key.name,
            "uid": resource.uid,
        },
        "type": "Warning" if told.warning else "Normal",
        "reason": str(told.reason),
        "message": short(told.message),
        "source": {"component": MANAGER},
        "reportingComponent": MANAGER,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
