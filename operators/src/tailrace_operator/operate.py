"""One-shot operations: a command of `tailrace` that runs once, beside a pipeline or while it rests, and never again.

An operation is a resource of its own, so that its history is what was asked for; no offset stands in a spec, where a
GitOps tool would apply it for ever. What moves offsets needs a pipeline without a driver: it rests until the command
has ended, whatever its spec says, and then goes on. The command runs in a Job with the image, the account and the
mounts of the driver.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from tailrace.config.resource import OPERATION, OWNER
from tailrace_operator.model import Ended, JobState, Object, Operation
from tailrace_operator.objects import owner

_AT_ONCE = 60.0  # seconds
_LIMIT = 900  # seconds: a pipeline does not rest for ever because its brokers are away
FILE = "/etc/tailrace/pipeline/pipeline.yaml"
_READS = ("show", "export", "list", "diff")  # commands that change nothing
_ASKS = ("set", "reset", "rewind", "accept", "import", "replay")  # commands that ask before they act
BEGIN, COMPARE, ACCEPT = ("shadow", "begin"), ("shadow", "diff"), ("offsets", "accept")
_LAST_WORDS = "/dev/termination-log"  # Kubernetes shows it in the pod's status
_COUNTS = {
    "live": "live", "shadow": "shadow", "equal": "equal", "different": "different",
    "onlyLive": "only_live", "onlyShadow": "only_shadow",
}  # fmt: skip
_NOT_A_COMMANDS = ("ports", "startupProbe", "livenessProbe", "readinessProbe", "lifecycle", "command")


def parse(body: Mapping[str, Any]) -> Operation:
    """Return an operation."""
    about, status = body["metadata"], body.get("status") or {}
    return Operation(
        name=about["name"],
        uid=about["uid"],
        created=str(about["creationTimestamp"]),
        run=tuple(map(str, body["spec"]["run"])),
        phase=str(status.get("phase", "")),
        started=str(status.get("started", "")),
        finished=str(status.get("finished", "")),
        message=str(status.get("message", "")),
        result=status.get("result") or {},
    )


def state(body: Mapping[str, Any] | None, uid: str) -> JobState:
    """Return how far the Job is of the operation that has this uid."""
    if body is None:
        return JobState.NONE
    if not any(each["uid"] == uid for each in body["metadata"].get("ownerReferences") or ()):
        return JobState.OF_ANOTHER
    conditions = {each["type"]: each["status"] for each in (body.get("status") or {}).get("conditions", ())}
    if conditions.get("Complete") == "True":
        return JobState.DONE
    return JobState.FAILED if conditions.get("Failed") == "True" else JobState.RUNNING


def next_of(operations: Sequence[Operation]) -> Operation | None:
    """Return the operation whose turn it is: the oldest that has not ended."""
    left = [each for each in operations if each.phase not in (Ended.SUCCEEDED, Ended.FAILED)]
    return min(left, key=lambda each: (each.created, each.name), default=None)


def needs_rest(operation: Operation) -> bool:
    """Return whether no driver may run meanwhile."""
    return not operation.stale and operation.run[0] in ("offsets", "shadow") and operation.run[1] not in _READS


def accepts(operation: Operation) -> bool:
    """Return whether a pipeline is to continue with the sink of its configuration, whatever its last plan says."""
    return tuple(operation.run[:2]) == ACCEPT


def is_old(operation: Operation, now: float) -> bool:
    """Return whether it was asked for so long ago that a pipeline is not to rest for it any longer."""
    return now - datetime.fromisoformat(operation.created).timestamp() > _LIMIT


def is_before(operation: Operation, pipeline: str) -> bool:
    """Return whether it was asked for before its Pipeline was made; what is applied at once may be a minute apart."""
    if not pipeline:
        return False
    made, asked = (datetime.fromisoformat(each).timestamp() for each in (pipeline, operation.created))
    return made - asked > _AT_ONCE


def is_dry_run(operation: Operation) -> bool:
    """Return whether it only shows what it would change."""
    return "--dry-run" in operation.run


def job(operation: Operation, deployment: Object) -> Object:
    """Return the Job of an operation, made of the driver's Deployment."""
    template = deployment["spec"]["template"]
    pod = {key: value for key, value in template["spec"].items() if key != "terminationGracePeriodSeconds"}
    [driver] = [each for each in pod["containers"] if each["name"] == "driver"]
    container = {key: value for key, value in driver.items() if key not in _NOT_A_COMMANDS}
    container |= {"name": "operation", "args": arguments(operation.run)}
    about = deployment["metadata"]
    labels = {**template["metadata"]["labels"], "tailrace.dev/component": "test", OWNER: about["name"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": operation.name,
            "namespace": about["namespace"],
            "labels": {**about["labels"], OWNER: about["name"]},
            "ownerReferences": [owner(OPERATION, operation.name, operation.uid)],
        },
        "spec": {
            # Whether it did anything is not known of one that failed: a person looks, and asks again.
            "backoffLimit": 0,
            "activeDeadlineSeconds": _LIMIT,
            "podReplacementPolicy": "Failed",
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    **pod,
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": False,
                    "containers": [container],
                },
            },
        },
    }


def arguments(run: Sequence[str]) -> list[str]:
    """Return a command's arguments, with the configuration's file, and the answer to its question."""
    made = [*run[:2], FILE, *run[2:]]
    if tuple(run[:2]) == COMPARE:
        return [*made, f"--counts-file={_LAST_WORDS}"]
    return [*made, "--yes"] if run[1] in _ASKS and not {"--yes", "-y", "--dry-run"} & set(run) else made


def status(operation: Operation, phase: Ended, message: str, now: str) -> Object:
    """Return an operation's status."""
    made: Object = {"phase": phase.value, "message": " ".join(message.split())[:1000]}
    if phase is not Ended.WAITING:
        made["started"] = operation.started or now
    if phase in (Ended.SUCCEEDED, Ended.FAILED):
        made["finished"] = now
    if counts := result(operation, phase, message):
        made |= {"result": counts, "message": counted(counts)}
    return made


def result(operation: Operation, phase: Ended, words: str) -> dict[str, int]:
    """Return what a comparison counted, from its last words; empty of any other operation."""
    if tuple(operation.run[:2]) != COMPARE or phase is not Ended.SUCCEEDED:
        return {}
    try:
        found = json.loads(words)
        return {to: int(found[name]) for to, name in _COUNTS.items()}
    except (ValueError, KeyError, TypeError):  # of an image that does not say them: its log does
        return {}


def counted(counts: Mapping[str, int]) -> str:
    """Return what a comparison counted, for people."""
    return (
        f"compared {counts['live']:,} live and {counts['shadow']:,} shadow records: "
        f"{counts['equal']:,} equal, {counts['different']:,} different, "
        f"{counts['onlyLive']:,} only in live, {counts['onlyShadow']:,} only in shadow"
    )
