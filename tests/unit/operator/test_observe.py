"""Kubernetes' objects, as the operator reads them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tailrace_operator import observe, revisions
from tailrace_operator.cache import Cache
from tailrace_operator.model import SINCE, Key, Progress, Resource, Revision

PIPELINE: dict[str, Any] = {"metadata": {"name": "p", "namespace": "ns", "uid": "u", "generation": 1}, "spec": {}}


def ago(seconds: float) -> str:
    """Return a time as Kubernetes writes it."""
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def at_rest_before(seconds: float, **progressing: str) -> list[dict[str, str]]:
    """Return the conditions of a template that was applied while no pod was to run, and has had none since."""
    complete = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"} | progressing
    return [complete, {"type": "Available", "status": "False", "lastTransitionTime": ago(seconds)}]


def deployment(**status: Any) -> dict[str, Any]:
    """Return a Deployment of two replicas."""
    about = {"name": "p", "namespace": "ns", "generation": 4, "labels": {"streaming.tailrace.dev/pipeline": "p"}}
    return {"metadata": about, "spec": {"replicas": 2}, "status": {"observedGeneration": 4, **status}}


LATE = [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "too late"}]


@pytest.mark.parametrize(
    ("status", "progress"),
    [
        ({}, Progress.ROLLING),
        ({"replicas": 2, "updatedReplicas": 2, "readyReplicas": 2}, Progress.DONE),
        ({"replicas": 3, "updatedReplicas": 2, "readyReplicas": 3}, Progress.ROLLING),
        ({"replicas": 2, "updatedReplicas": 2, "readyReplicas": 1}, Progress.ROLLING),
        ({"replicas": 3, "updatedReplicas": 1, "conditions": LATE}, Progress.LATE),
        ({"observedGeneration": 3, "conditions": LATE}, Progress.ROLLING),
    ],
)
def test_progress_is_that_of_the_newest_spec(status: dict[str, Any], progress: Progress) -> None:
    """What the controller says about an earlier one is no ground for going back."""
    assert observe.rollout(deployment(**status)).progress is progress


@pytest.mark.parametrize(
    ("seconds", "reason", "ready", "progress"),
    [
        (700, "NewReplicaSetAvailable", 0, Progress.LATE),
        (500, "NewReplicaSetAvailable", 0, Progress.ROLLING),
        (700, "ReplicaSetUpdated", 0, Progress.ROLLING),
        # A standby is missing, and has been for long: the driver works.
        (700, "NewReplicaSetAvailable", 1, Progress.ROLLING),
    ],
)
def test_template_that_was_applied_at_rest_has_a_deadline_too(
    seconds: float, reason: str, ready: int, progress: Progress
) -> None:
    """Kubernetes counts it as complete from the beginning."""
    conditions = at_rest_before(seconds, reason=reason)
    status = {"replicas": 2, "updatedReplicas": 2, "readyReplicas": ready, "conditions": conditions}
    assert observe.rollout(deployment(**status)).progress is progress


@pytest.mark.parametrize("kind", ["deadline", "unavailable"])
@pytest.mark.parametrize(
    ("told", "since", "progress"),
    [(900, 60, Progress.ROLLING), (60, 900, Progress.LATE), (1200, 900, Progress.LATE), (900, None, Progress.LATE)],
)
def test_deadline_of_the_template_before_is_not_that_of_the_next(
    kind: str, told: float, since: float | None, progress: Progress
) -> None:
    """A correction to what was there before, made during an outage, was rolled back at once."""
    status: dict[str, Any]
    if kind == "deadline":
        status = {"conditions": [LATE[0] | {"lastUpdateTime": ago(told)}]}
    else:
        status = {"conditions": at_rest_before(max(told, since or 0), reason="NewReplicaSetAvailable")}
    made = deployment(replicas=2, updatedReplicas=2, **status)
    if since is not None:
        made["metadata"]["annotations"] = {SINCE: ago(since)}
    assert observe.rollout(made).progress is progress


def test_pod_that_crashed_says_why() -> None:
    """The last words of the container that ended, and not only that it waits."""
    ended = {"terminated": {"exitCode": 2, "message": "TR-102 function missing\n"}}
    container = {
        "name": "driver",
        "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
        "lastState": ended,
    }
    about = {"name": "p-1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    found = observe.pod({"metadata": about, "status": {"containerStatuses": [container]}})
    assert (found.waiting, found.message, found.exit_code, found.restarts, found.ready) == (
        "CrashLoopBackOff",
        "TR-102 function missing",
        2,
        3,
        False,
    )


def test_pod_that_no_node_takes_says_so() -> None:
    """It has no container yet."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    about = {"name": "p-1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    found = observe.pod({"metadata": about, "status": {"conditions": [condition]}})
    assert (found.waiting, found.message) == ("Unschedulable", "0/1 nodes")


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing"])
def test_pod_that_is_being_made_has_nothing_to_complain_about(reason: str) -> None:
    """Every pod waits for that."""
    container = {"name": "driver", "restartCount": 0, "state": {"waiting": {"reason": reason}}}
    about = {"name": "p-1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    assert observe.pod({"metadata": about, "status": {"containerStatuses": [container]}}).waiting == ""


@pytest.mark.parametrize(("since", "leaving"), [(-60, 1), (200, 1), (400, 0)])
def test_driver_that_was_told_to_end_is_in_the_way_until_it_should_be_gone(since: int, leaving: int) -> None:
    """It still finishes its batch, and no operation may begin; but nobody confirms the end on a node that is lost."""
    about = {"name": "p-1", "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": ago(since)}
    seen = observe.seen(PIPELINE, (), deployment(), ({"metadata": about, "status": {}},), None)
    assert (seen.pods, seen.leaving) == ((), leaving)


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_pod_that_the_kubelet_has_ended_is_no_driver(phase: str) -> None:
    """An evicted one stays until somebody deletes it, and no operation would ever begin; it keeps what it mounts."""
    about = {"name": "p-1", "creationTimestamp": "2026-01-01T00:00:00Z", "uid": "of p-1"}
    leaving = about | {"name": "p-2", "deletionTimestamp": ago(0)}
    pods = [{"metadata": each, "status": {"phase": phase}} for each in (about, leaving)]
    seen = observe.seen(PIPELINE, (), deployment(), pods, None)
    assert (seen.pods, seen.leaving) == ((), 0)
    assert seen.drivers["p-1"] == "of p-1"


def test_driver_that_waits_for_its_turn_is_not_ready() -> None:
    """Kubernetes calls it ready; the pipeline is not, if nobody leads."""
    body = {"phase": "standby", "ready": True, "stalled": False}
    assert not observe.report(body).ready
    assert observe.report(body | {"phase": "leading"}).ready


def test_revision_survives_its_record() -> None:
    """A rollback needs nothing but the cluster."""
    resource = Resource(Key("ns", "p"), "uid", 1, {})
    rights = {"readPrefixes": ["a-"]}
    for made in (
        Revision("a", {"config": {}}, 3),
        Revision("b", {}, 4, "since", "why"),
        Revision("c", {}, topics=rights),
    ):
        assert revisions.parse(revisions.record(resource, made)) == made


def test_older_state_of_an_object_does_not_replace_a_newer_one() -> None:
    """A watch may be behind what was just applied."""
    cache, key = Cache(), Key("ns", "p")
    cache.pipeline({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}}, gone=False)

    def body(version: str, uid: str = "d") -> dict[str, Any]:
        labels = {"streaming.tailrace.dev/pipeline": "p"}
        return {"metadata": {"name": "p", "namespace": "ns", "uid": uid, "resourceVersion": version, "labels": labels}}

    def held() -> Any:
        found = cache.of(key)
        assert found is not None
        return found.deployment

    cache.put("Deployment", body("12"))
    cache.put("Deployment", body("9"))
    assert held() == body("12")
    cache.put("Deployment", body("3", uid="another"))
    assert held() == body("3", uid="another")
    cache.put("Deployment", body("4", uid="another"), gone=True)
    assert held() is None
    cache.pipeline({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}}, gone=True)
    assert cache.of(key) is None


def test_driver_of_a_helm_release_is_not_a_pipelines() -> None:
    """Although it has the pipeline's name: what it says would be taken for the new driver's."""
    cache, key = Cache(), Key("ns", "p")
    cache.pipeline({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}}, gone=False)
    for release in ("p", "tailrace"):
        labels = {"tailrace.dev/pipeline": "p", "tailrace.dev/component": "driver", "tailrace.dev/release": release}
        cache.put("Pod", {"metadata": {"name": f"{release}-1", "namespace": "ns", "uid": release, "labels": labels}})
    found = cache.of(key)
    assert found is not None
    assert [each["metadata"]["name"] for each in found.drivers] == ["p-1"]
