"""Observing: Kubernetes' objects become what a reconcile works with. It changes nothing."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from tailrace.config.resource import OWNER
from tailrace_operator import operate, revisions
from tailrace_operator.cache import Found
from tailrace_operator.model import (
    APPLIED,
    LIVE,
    PARTITIONS,
    REVISION,
    SINCE,
    TEMPLATE,
    WHY,
    Key,
    Object,
    Operation,
    Pod,
    Progress,
    Report,
    Resource,
    Rollout,
    Seen,
)

_ON_ITS_WAY = ("ContainerCreating", "PodInitializing")  # nothing is wrong yet
STANDBY = "standby"  # the phase of a driver that waits for its turn
_ENDED = ("Failed", "Succeeded")  # phases of a pod that the kubelet has ended, and that nobody may ever delete
_OVERDUE = 300.0  # seconds; the kubelet kills a pod that takes longer than it may
_DEADLINE = 600.0  # seconds; Kubernetes' own, if a Deployment names none
_PATIENCE = 3.0  # seconds for a driver's answer
_LONGEST = 1024  # characters of a message that are kept


def resource(body: Mapping[str, Any]) -> Resource:
    """Return the Pipeline."""
    about = body["metadata"]
    return Resource(
        key=Key(about["namespace"], about["name"]),
        uid=about["uid"],
        generation=int(about["generation"]),
        spec=body.get("spec") or {},
        status=body.get("status") or {},
        partitions=int(notes(body).get(PARTITIONS, 0)),
    )


def notes(body: Mapping[str, Any]) -> Mapping[str, str]:
    """Return an object's annotations."""
    return body["metadata"].get("annotations") or {}


def revision_of(body: Mapping[str, Any]) -> str:
    """Return the revision that a Deployment was made of, or one of its ReplicaSets."""
    return notes(body).get(REVISION, "")


def seen(
    pipeline: Mapping[str, Any],
    records: Iterable[Mapping[str, Any]],
    deployment: Mapping[str, Any] | None,
    drivers: Iterable[Mapping[str, Any]],
    port: int | None,
    operation: Operation | None = None,
) -> Seen:
    """Put together what was observed, and ask the leading driver; `port` is where drivers answer, if they do."""
    drivers = list(drivers)
    known = sorted((revisions.parse(each) for each in records), key=lambda each: each.number)
    alive = [each for each in drivers if (each.get("status") or {}).get("phase") not in _ENDED]
    every = sorted((pod(each) for each in alive), key=lambda each: (each.created, each.name))
    pods = tuple(each for each in every if not each.leaving)
    heard = [found for found in (ask(each, port) for each in pods) if found is not None]
    heard.sort(key=lambda each: each.phase == STANDBY)  # the one that leads knows most
    return Seen(
        resource=resource(pipeline),
        revisions=tuple(known),
        rollout=rollout(deployment) if deployment is not None else None,
        pods=pods,
        leaving=sum(not _overdue(each, time.time()) for each in alive if "deletionTimestamp" in each["metadata"]),
        drivers={each["metadata"]["name"]: str(each["metadata"].get("uid", "")) for each in drivers},
        report=heard[0] if heard else None,
        operation=operation,
    )


def _overdue(body: Mapping[str, Any], now: float) -> bool:
    """Return whether a pod should have ended long ago: its node is lost, and does not confirm it.

    Nothing waits for it then. What moves offsets asks the brokers whether a driver runs, and fences one that they miss.
    """
    due = datetime.fromisoformat(body["metadata"]["deletionTimestamp"])  # with the time that it was given to end
    return now - due.timestamp() > _OVERDUE


def turn(found: Found) -> Operation | None:
    """Return the operation whose turn it is, with the state of its Job.

    Kubernetes deletes the Job of an operation a while after it, and a new one of that name has not run by then.
    """
    operation = operate.next_of([operate.parse(each) for each in found.operations])
    if operation is None:
        return None
    job = next((each for each in found.jobs if each["metadata"]["name"] == operation.name), None)
    stale = operate.is_before(operation, str(found.pipeline["metadata"].get("creationTimestamp") or ""))
    return replace(operation, job=operate.state(job, operation.uid), stale=stale)


def rollout(body: Mapping[str, Any]) -> Rollout:
    """Return how far a Deployment is; one whose controller has not seen its newest spec is rolling.

    Kubernetes counts no deadline for a template that was applied while no pod was to run. Of one that was there before
    it keeps what it said of the template between: neither says anything about a roll-out that has begun since.
    """
    about, spec, status = body["metadata"], body["spec"], body.get("status") or {}
    marks = notes(body)
    wanted = int(spec.get("replicas", 1))
    conditions = {each["type"]: each for each in status.get("conditions", ())}
    progressing = conditions.get("Progressing", {})
    progress, message = Progress.ROLLING, str(progressing.get("message", ""))
    if int(status.get("observedGeneration", 0)) >= int(about["generation"]):
        counts = [int(status.get(name, 0)) for name in ("replicas", "updatedReplicas", "readyReplicas")]
        if counts == [wanted] * 3:
            progress = Progress.DONE
        elif progressing.get("reason") == "ProgressDeadlineExceeded" and _is_over(
            spec, marks, progressing, time.time()
        ):
            progress = Progress.LATE
        elif not counts[2] and _unavailable(spec, marks, conditions, time.time()):
            progress, message = Progress.LATE, f"no pod is ready since {conditions['Available']['lastTransitionTime']}"
    return Rollout(
        revision=revision_of(body),
        applied=marks.get(APPLIED, ""),
        generation=int(about["generation"]),
        progress=progress,
        replicas=wanted,
        ready=int(status.get("readyReplicas", 0)),
        message=message,
        owned=OWNER in (about.get("labels") or {}),
        template=marks.get(TEMPLATE, ""),
        live=json.loads(marks.get(LIVE, "{}")),
        why=marks.get(WHY, ""),
        since=marks.get(SINCE, ""),
    )


def _is_over(spec: Mapping[str, Any], marks: Mapping[str, str], progressing: Mapping[str, Any], now: float) -> bool:
    """Return whether the deadline that was missed is that of this template, or its own has passed as well."""
    told = progressing.get("lastUpdateTime")
    return told is None or _at(told) >= _at(marks.get(SINCE)) or now - _at(marks.get(SINCE)) > _deadline(spec)


def _unavailable(
    spec: Mapping[str, Any], marks: Mapping[str, str], conditions: Mapping[str, Mapping[str, Any]], now: float
) -> bool:
    """Return whether a roll-out that counts as complete has no pod that works, for longer than one may take."""
    available = conditions.get("Available", {})
    complete = conditions.get("Progressing", {}).get("reason") == "NewReplicaSetAvailable"
    if not complete or available.get("status") != "False" or "lastTransitionTime" not in available:
        return False
    return now - max(_at(available["lastTransitionTime"]), _at(marks.get(SINCE))) > _deadline(spec)


def _deadline(spec: Mapping[str, Any]) -> float:
    return float(spec.get("progressDeadlineSeconds", _DEADLINE))


def _at(moment: str | None) -> float:
    return datetime.fromisoformat(moment).timestamp() if moment else 0.0


def pod(body: Mapping[str, Any]) -> Pod:
    """Return a driver's pod, with the reason why it does not run, if it does not."""
    status = body.get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions", ())}
    container: Object = next((each for each in status.get("containerStatuses", ()) if each["name"] == "driver"), {})
    now, before = container.get("state", {}), container.get("lastState", {})
    ended = now.get("terminated") or before.get("terminated") or {}
    waiting = now.get("waiting") or {}
    scheduled = conditions.get("PodScheduled", {})
    reason, text = waiting.get("reason", ""), waiting.get("message", "")
    owners = body["metadata"].get("ownerReferences") or ()
    if reason in _ON_ITS_WAY:
        reason = ""
    if scheduled.get("status") == "False":
        reason, text = scheduled.get("reason", ""), scheduled.get("message", "")
    return Pod(
        name=body["metadata"]["name"],
        created=str(body["metadata"]["creationTimestamp"]),
        address=str(status.get("podIP", "")),
        ready=conditions.get("Ready", {}).get("status") == "True",
        restarts=int(container.get("restartCount", 0)),
        waiting=str(reason),
        message=str(ended.get("message") or text)[-_LONGEST:].strip(),
        exit_code=int(ended["exitCode"]) if "exitCode" in ended else None,
        leaving="deletionTimestamp" in body["metadata"],
        made_by=next((each["name"] for each in owners if each["kind"] == "ReplicaSet"), ""),
    )


def ask(driver: Pod, port: int | None) -> Report | None:
    """Ask a driver about itself; None if it does not answer."""
    if port is None or not driver.address or not driver.ready:
        return None
    host = f"[{driver.address}]" if ":" in driver.address else driver.address
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/status", timeout=_PATIENCE) as answer:
            return replace(report(json.load(answer)), driver=driver.name)
    except (OSError, ValueError, KeyError):
        return None


def report(body: Mapping[str, Any]) -> Report:
    """Return what a driver's /status says; one that waits for its turn reads nothing, however ready it is."""
    lag = body.get("lag") or {}
    return Report(
        ready=bool(body["ready"]) and body["phase"] != STANDBY,
        stalled=bool(body["stalled"]),
        phase=str(body["phase"]),
        lag=lag.get("records"),
        rates={name: value for name, value in (body.get("rates") or {}).items() if value is not None},
        batch=body.get("batch") or {},
        executors=(body.get("executors") or {}).get("present"),
    )
