"""The driver as a pod, and the executor pods that it creates: what Spark must be given, and what it does not report.

Spark runs in client mode: the driver is an ordinary pod that owns its executors, so they are deleted with it. This
module imports neither Spark nor a Kubernetes client: all it needs from the API is one list and one deletion.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.config import Pipeline
from tailrace.errors import DriverPodUnknown, ExecutorsMissing
from tailrace.startup.api_server import ACCOUNT, API, FAILURES, Pods, short

MASTER = "k8s://"
OWNER = "tailrace.dev/driver"  # the label of an executor that names its driver's pod
_SESSION = "tailrace.dev/session"  # and the pipeline: a backfill that someone starts in that pod has executors, too
_LOOK = 0.5

# Spark's settings that identify the driver, and the pod's variables that hold them.
_IDENTITY = {"spark.driver.host": "POD_IP", "spark.kubernetes.driver.pod.name": "POD_NAME"}
# Each avoids an object that Spark would create or look up, which has no use here and needs another right.
_NOT_NEEDED = {
    "spark.kubernetes.executor.disableConfigMap": "true",
    "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
    "spark.kubernetes.driver.service.deleteOnTermination": "false",
}


def asked_for(pipeline: Pipeline) -> bool:
    """Return whether the pipeline's executors are pods."""
    return pipeline.spark.get("spark.master", "").startswith(MASTER)


def settings(pipeline: Pipeline, environment: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's settings for the driver's pod, except those that the pipeline sets itself."""
    if not asked_for(pipeline):
        return {}
    made = dict(_NOT_NEEDED)
    for name, variable in _IDENTITY.items():
        if name in pipeline.spark:
            continue
        if not environment.get(variable):
            raise DriverPodUnknown(
                f"spark.master is {pipeline.spark['spark.master']}, but the variable {variable} is not set",
                kept="nothing was read or written, and no executor was requested",
                then=f"set {variable} from the pod's own fields, as the chart does, or set {name} in `spark:`",
            )
        made[name] = environment[variable]
    if environment.get("POD_NAMESPACE"):
        made["spark.kubernetes.namespace"] = environment["POD_NAMESPACE"]
    if environment.get("POD_NAME"):
        made[f"spark.kubernetes.executor.label.{OWNER}"] = environment["POD_NAME"]
        made[f"spark.kubernetes.executor.label.{_SESSION}"] = _session(pipeline)
    return made


def _session(pipeline: Pipeline) -> str:
    """Return what distinguishes the pipeline in a label, which may be shorter than its name."""
    return hashlib.sha256(pipeline.pipeline.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Executors:
    """The executor pods of one driver, as the API shows them."""

    api: str
    namespace: str
    owner: str
    session: str
    account: Path = ACCOUNT

    @classmethod
    def of(cls, pipeline: Pipeline, environment: Mapping[str, str]) -> Executors | None:
        """Return those of this driver, or None unless it is a pod that knows its name and namespace."""
        name, namespace = environment.get("POD_NAME"), environment.get("POD_NAMESPACE")
        if not asked_for(pipeline) or not name or not namespace:
            return None
        return cls(API, namespace, name, _session(pipeline))

    @property
    def _pods(self) -> Pods:
        return Pods(self.namespace, self.api, self.account)

    @property
    def _selector(self) -> str:
        return f"{OWNER}={self.owner},{_SESSION}={self.session}"

    def sweep(self) -> str:
        """Delete leftover executors, and return a note about it, or empty text.

        At the start of a driver they belong to an earlier one of its pipeline in the same pod, which was killed: the
        pod still exists, so nothing else deletes them.
        """
        try:
            left = len(self.pods())
            if left:
                self._pods.delete(selector=self._selector)
        except FAILURES as error:
            return f"could not look for executors that an earlier driver of this pod may have left: {short(error)}"
        return f"deleted {left} executors left by an earlier driver of this pod" if left else ""

    def pods(self) -> list[dict[str, Any]]:
        """Return their pods; one of FAILURES if the API does not tell."""
        return self._pods.select(self._selector)

    def remove(self, name: str) -> None:
        """Remove one at once, without asking its node."""
        self._pods.delete(name=name, at_once=True)

    def why(self) -> str:
        """Describe in one line what keeps them from running."""
        try:
            items = self.pods()
        except FAILURES as error:
            return f"the API could not be asked why: {short(error)}"
        reasons = sorted({_reason(each) for each in items})
        return (
            "; ".join(reasons)
            if reasons
            else "no executor pod exists: the driver may not create any, or a quota is used up"
        )


def await_executors(count: Callable[[], int], stopped: threading.Event, why: Callable[[], str], limit: float) -> None:
    """Wait for the first executor or a stop request. Spark itself would wait forever, in silence."""
    until = time.monotonic() + limit
    while count() < 1 and not stopped.wait(_LOOK):
        if time.monotonic() >= until:
            raise ExecutorsMissing(
                f"no executor has registered in {limit:.0f} s: {why()}",
                kept="nothing was read or written",
                then=f"kubectl get events, and kubectl describe pods -l {OWNER}; if nodes are added too slowly, raise "
                "executors.patience",
            )


def _reason(pod: Mapping[str, Any]) -> str:
    """Return the phase, and the reason that the kubelet or the scheduler gives."""
    status = pod.get("status", {})
    reasons = [
        each.get("reason", "")
        for container in status.get("containerStatuses", [])
        for each in container.get("state", {}).values()
    ]
    reasons += [each.get("message", "") for each in status.get("conditions", []) if each.get("status") == "False"]
    return ": ".join([status.get("phase", "Unknown"), *[each for each in reasons if each][:1]])
