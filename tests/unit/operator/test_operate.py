"""One-shot operations: whose turn it is, what runs, and what it says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tailrace_operator import operate
from tailrace_operator.cache import Found
from tailrace_operator.decide import decide
from tailrace_operator.model import Ended, JobState, Key, Operation, Progress, Resource, Rollout, Seen
from tailrace_operator.observe import turn
from tailrace_operator.status import Phase, status

REWIND = Operation("o-1", "uid", "2026-01-01", ("offsets", "rewind", "--to-time", "2026-01-01T00:00:00Z"))
SPEC: dict[str, Any] = {"config": {}}


def body(name: str, created: str, phase: str = "") -> dict[str, Any]:
    """Return an operation's resource."""
    about = {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": created}
    return {
        "metadata": about,
        "spec": {"pipeline": "p", "run": ["offsets", "show"]},
        "status": {"phase": phase} if phase else {},
    }


def job(name: str, conditions: list[dict[str, str]], uid: str = "") -> dict[str, Any]:
    """Return the Job of an operation."""
    about = {"name": name, "ownerReferences": [{"uid": uid or name}]}
    return {"metadata": about, "status": {"conditions": conditions}}


def test_oldest_that_has_not_ended_has_its_turn() -> None:
    """With the state of its own Job."""
    done = job("b", [{"type": "Complete", "status": "True"}])
    made = (body("c", "2026-01-03"), body("a", "2026-01-01", "Failed"), body("b", "2026-01-02", "Running"))
    found = turn(Found({"metadata": {}}, (), None, (), made, (done,)))
    assert found is not None
    assert (found.name, found.job) == ("b", JobState.DONE)
    assert turn(Found({"metadata": {}}, (), None, (), (made[1],), ())) is None


def test_job_of_an_operation_that_had_the_name_before_does_not_count() -> None:
    """Kubernetes deletes it some time after its operation, and the new one has not run."""
    former = job("b", [{"type": "Complete", "status": "True"}], uid="former")
    found = turn(Found({"metadata": {}}, (), None, (), (body("b", "2026-01-02"),), (former,)))
    assert found is not None
    assert found.job is JobState.OF_ANOTHER


@pytest.mark.parametrize(
    ("conditions", "state"),
    [
        ([], JobState.RUNNING),
        ([{"type": "Complete", "status": "True"}], JobState.DONE),
        ([{"type": "Failed", "status": "True"}], JobState.FAILED),
        ([{"type": "FailureTarget", "status": "True"}], JobState.RUNNING),
    ],
)
def test_job_has_ended_when_kubernetes_says_so(conditions: list[dict[str, str]], state: JobState) -> None:
    """Not when its pod has: that may be replaced."""
    assert operate.state(job("b", conditions), "b") is state
    assert operate.state(None, "u") is JobState.NONE


@pytest.mark.parametrize(
    ("run", "rests", "arguments"),
    [
        (("offsets", "rewind", "--to-time", "x"), True, ["offsets", "rewind", operate.FILE, "--to-time", "x", "--yes"]),
        (("offsets", "show"), False, ["offsets", "show", operate.FILE]),
        (("offsets", "accept", "-y"), True, ["offsets", "accept", operate.FILE, "-y"]),
        (("rejected", "replay", "--all"), False, ["rejected", "replay", operate.FILE, "--all", "--yes"]),
        (("rejected", "list"), False, ["rejected", "list", operate.FILE]),
    ],
)
def test_command_that_moves_offsets_needs_rest(run: tuple[str, ...], rests: bool, arguments: list[str]) -> None:
    """And each is given the file, and the answer to its question."""
    assert operate.needs_rest(replace(REWIND, run=run)) is rests
    assert operate.arguments(run) == arguments


def test_pipeline_rests_for_its_operation_and_says_so() -> None:
    """It is not suspended: it goes on afterwards."""
    rollout = Rollout("", "", 1, Progress.DONE, 0, 0)
    seen = Seen(Resource(Key("ns", "p"), "uid", 1, SPEC), rollout=rollout, operation=REWIND)
    choice = decide(seen)
    assert (choice.running, choice.resting) == (False, "o-1")
    assert status(seen, choice, "now")["phase"] == Phase.OPERATING
    beside = decide(replace(seen, operation=replace(REWIND, run=("rejected", "list"))))
    assert (beside.running, beside.resting) == (True, "")


def test_job_is_the_drivers_pod_with_another_command() -> None:
    """Neither its probes nor its name, so that nothing takes it for a driver."""
    driver = {
        "name": "driver",
        "image": "i",
        "args": ["run"],
        "livenessProbe": {},
        "readinessProbe": {},
        "lifecycle": {},
        "ports": [],
        "volumeMounts": [{"name": "kafka"}],
    }
    labels = {"tailrace.dev/component": "driver", "tailrace.dev/pipeline": "p"}
    pod = {"serviceAccountName": "p", "automountServiceAccountToken": True, "containers": [driver, {"name": "other"}]}
    about = {"name": "p", "namespace": "ns", "labels": {"app": "p"}}
    deployment = {"metadata": about, "spec": {"template": {"metadata": {"labels": labels}, "spec": pod}}}
    made = operate.job(REWIND, deployment)
    [container] = made["spec"]["template"]["spec"]["containers"]
    assert container == {
        "name": "operation",
        "image": "i",
        "args": operate.arguments(REWIND.run),
        "volumeMounts": [{"name": "kafka"}],
    }
    assert made["spec"]["template"]["metadata"]["labels"]["tailrace.dev/component"] != "driver"
    assert made["spec"]["template"]["spec"]["serviceAccountName"] == "p"
    assert made["spec"]["backoffLimit"] == 0
    assert made["metadata"]["ownerReferences"][0]["uid"] == "uid"
    assert driver["args"] == ["run"]


def test_status_keeps_when_it_began() -> None:
    """And says when it ended."""
    assert operate.status(REWIND, Ended.WAITING, "why", "t0") == {"phase": "Waiting", "message": "why"}
    running = operate.status(REWIND, Ended.RUNNING, "", "t1")
    assert running["started"] == "t1"
    ended = operate.status(replace(REWIND, started="t1"), Ended.FAILED, "TR-1\nmore", "t2")
    assert ended == {"phase": "Failed", "message": "TR-1 more", "started": "t1", "finished": "t2"}
