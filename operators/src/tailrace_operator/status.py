"""The status of a Pipeline: a word, conditions with reasons, and what its driver says. Values in, values out.

Conditions and reasons are documented in docs/operator.md; a test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tailrace_operator.changes import why
from tailrace_operator.decide import newest
from tailrace_operator.gates import words
from tailrace_operator.model import Choice, Hold, Object, Progress, Revision, Seen
from tailrace_operator.objects import selector, short
from tailrace_operator.observe import STANDBY

_HISTORY = 5
_CODE = re.compile(r"\bTR-\d{3}\b")


class Phase(StrEnum):
    """A Pipeline in a word."""

    RUNNING = "Running"
    STARTING = "Starting"  # nothing has run yet
    UPGRADING = "Upgrading"  # the driver before still works
    ROLLED_BACK = "RolledBack"
    FAILING = "Failing"
    STALLED = "Stalled"
    OPERATING = "Operating"  # no driver, while an operation runs
    SUSPENDED = "Suspended"
    PAUSED = "Paused"
    WAITING = "Waiting"  # for something that the spec refers to
    INVALID = "Invalid"


@dataclass(frozen=True)
class Condition:
    """One condition: whether it holds, and why."""

    type: str
    holds: bool
    reason: str
    message: str = ""


@dataclass(frozen=True)
class Following:
    """What the status says about a shadow."""

    conditions: tuple[Condition, ...] = ()
    body: Mapping[str, Any] = field(default_factory=dict)


def conditions(seen: Seen, choice: Choice) -> list[Condition]:
    """Return all conditions, always in the same order."""
    return [
        _accepted(choice),
        _ready(seen, choice),
        _progressing(seen, choice),
        _rolled_back(choice),
        _stalled(seen),
        _dependencies(choice),
    ]


def _accepted(choice: Choice) -> Condition:
    if choice.hold in (Hold.INVALID, Hold.NAME_TAKEN):
        return Condition("Accepted", False, choice.hold.value, choice.why)
    return Condition("Accepted", True, "Valid")


def _ready(seen: Seen, choice: Choice) -> Condition:
    if seen.report is not None and seen.report.ready:
        return Condition("Ready", True, "Leading", "a driver reads new records")
    if choice.waiting and not choice.running:
        return Condition("Ready", False, choice.waiting[0].reason, short(words(choice.waiting)))
    if seen.rollout is not None and not seen.rollout.replicas:
        return Condition("Ready", False, "Suspended", "no driver is to run")
    if seen.report is not None and seen.report.phase == STANDBY:
        return Condition("Ready", False, "Standby", "a driver is warm and waits: one of another release leads")
    if seen.report is None and seen.rollout is not None and seen.rollout.ready:
        return Condition("Ready", True, "Unheard", "Kubernetes calls a driver ready; it did not answer the operator")
    broken = newest(seen)
    if broken is not None and (broken.waiting or broken.exit_code):
        reason = broken.waiting if broken.waiting.isidentifier() else "DriverEnded"
        return Condition("Ready", False, reason, short(f"{broken.name}: {broken.message}"))
    if not seen.pods:
        return Condition("Ready", False, "NoDriver", "there is no driver yet")
    return Condition("Ready", False, "Starting", "a driver starts")


def _progressing(seen: Seen, choice: Choice) -> Condition:
    if choice.hold is Hold.WAITING:
        return Condition("Progressing", False, choice.waiting[0].reason, short(f"what runs goes on: {choice.why}"))
    if choice.hold is not None:
        return Condition("Progressing", False, choice.hold.value, "nothing is changed")
    if choice.run is None or seen.rollout is None or seen.rollout.revision != choice.run.name:
        return Condition("Progressing", True, "Applying", "its objects are being applied")
    if seen.rollout.progress is Progress.DONE:
        return Condition("Progressing", False, "Complete")
    if seen.rollout.progress is Progress.LATE:
        return Condition("Progressing", False, "ProgressDeadlineExceeded", short(seen.rollout.message))
    because = f"because of {seen.rollout.why}; " if seen.rollout.why else ""
    return Condition("Progressing", True, "RollingOut", short(because + seen.rollout.message))


def _rolled_back(choice: Choice) -> Condition:
    if not choice.rolled_back or choice.run is None:
        return Condition("RolledBack", False, "NotNeeded")
    reason, _, words = choice.rolled_back.partition(": ")
    text = f"revision {choice.wanted.name} was left for {choice.run.name}: {words}"
    return Condition("RolledBack", True, reason, short(text))


def _stalled(seen: Seen) -> Condition:
    if seen.report is None:
        return Condition("Stalled", False, "Unknown", "no driver answered")
    if seen.report.stalled:
        return Condition("Stalled", True, "NoBatch", "there is lag, and no batch was finished for too long")
    return Condition("Stalled", False, "Working")


def _dependencies(choice: Choice) -> Condition:
    if choice.waiting:
        return Condition("DependenciesReady", False, choice.waiting[0].reason, short(words(choice.waiting)))
    if choice.run is None or not choice.running:
        return Condition("DependenciesReady", True, "NotNeeded", "no driver is about to start")
    return Condition("DependenciesReady", True, "Present")


def phase(seen: Seen, choice: Choice, found: Mapping[str, Condition]) -> Phase:
    """Return the word that says most."""
    if choice.waiting and (choice.hold is Hold.WAITING or not choice.running):
        return Phase.WAITING
    if choice.hold is not None:
        return Phase.PAUSED if choice.hold is Hold.PAUSED else Phase.INVALID
    if choice.resting:
        return Phase.OPERATING
    if not choice.running:
        return Phase.SUSPENDED
    if found["Stalled"].holds:
        return Phase.STALLED
    if found["RolledBack"].holds and found["Ready"].holds:
        return Phase.ROLLED_BACK
    if found["Ready"].holds:
        late = found["Progressing"].reason == "ProgressDeadlineExceeded"  # the driver before works
        return Phase.UPGRADING if found["Progressing"].holds or late else Phase.RUNNING
    return Phase.STARTING if found["Ready"].reason in ("NoDriver", "Starting", "Standby") else Phase.FAILING


def status(seen: Seen, choice: Choice, now: str, following: Following | None = None) -> Object:
    """Return the status; a condition that is as it was keeps the time of its last change."""
    following = following or Following()
    found = [*conditions(seen, choice), *following.conditions]
    before = {each["type"]: each for each in seen.resource.status.get("conditions", ())}
    report = seen.report
    broken = newest(seen)
    made: Object = {
        "observedGeneration": seen.resource.generation,
        "phase": phase(seen, choice, {each.type: each for each in found}).value,
        "revision": choice.wanted.name,
        "running": _running(seen),
        "lastStable": _stable(seen, choice),
        "drivers": len(seen.pods),
        "replicas": _executors(seen),
        "selector": selector(seen.resource.key, "executor"),
        "conditions": [_written(each, before.get(each.type, {}), seen.resource.generation, now) for each in found],
        "history": _history(seen, choice),
        "shadow": dict(following.body),
    }
    if report is not None:
        made["lag"] = report.lag
        made["rates"] = {name: round(value, 1) for name, value in report.rates.items()}
        names = ("number", "records", "out", "rejected", "finished")
        made["lastBatch"] = {name: report.batch[name] for name in names if report.batch.get(name) is not None}
    driver, why = (broken.name, broken.message) if broken is not None else ("", "")
    if choice.rolled_back and _CODE.search(why) is None:  # the cause says more than what its pod has ended with since
        why = choice.rolled_back
    if why:
        code = _CODE.search(why)
        error = {"driver": driver, "message": short(why), "code": code.group() if code is not None else ""}
        made["lastError"] = {name: value for name, value in error.items() if value}
    return {name: value for name, value in made.items() if value not in (None, "", {})}


def _running(seen: Seen) -> str:
    """Return the revision that works; while none does, the one that drivers are made of."""
    if seen.rollout is None:
        return ""
    leader = seen.report.driver if seen.report is not None and seen.report.phase != STANDBY else ""
    able = [each for each in seen.pods if each.ready and each.revision]
    able.sort(key=lambda each: each.name != leader)  # without a word from one, the oldest
    return able[0].revision if able else seen.rollout.revision


def _executors(seen: Seen) -> int | None:
    """Return how many executors are present; as before while a driver does not answer, and none without a driver."""
    if seen.report is not None and seen.report.executors is not None:
        return seen.report.executors
    return seen.resource.status.get("replicas", 0) if seen.pods else 0


def _stable(seen: Seen, choice: Choice) -> str:
    if choice.stable:
        return choice.stable
    found = [each.name for each in seen.revisions if each.stable and not each.failed]
    return found[-1] if found else ""


def _history(seen: Seen, choice: Choice) -> list[Object]:
    before = [None, *seen.revisions]
    return [_line(each, was, choice) for was, each in zip(before, seen.revisions, strict=False)][-_HISTORY:]


def _line(revision: Revision, before: Revision | None, choice: Choice) -> Object:
    failed = revision.failed or (choice.failed[1] if choice.failed and choice.failed[0] == revision.name else "")
    made = {
        "revision": revision.name,
        "number": revision.number,
        "changed": ", ".join(why(before.spec, revision.spec)) if before is not None else "",
        "stableSince": revision.stable,
        "failed": short(failed),
    }
    return {name: value for name, value in made.items() if value != ""}


def _written(each: Condition, before: Mapping[str, Any], generation: int, now: str) -> Object:
    holds = "True" if each.holds else "False"
    since = before.get("lastTransitionTime", now) if before.get("status") == holds else now
    return {
        "type": each.type,
        "status": holds,
        "reason": each.reason,
        "message": each.message,
        "observedGeneration": generation,
        "lastTransitionTime": since,
    }
