"""The driver as a pod, and its executors as pods that it makes: what Spark must be told, and what Spark does not say.

Spark runs in client mode: the driver is an ordinary pod, whoever made it, and its executors belong to it, so that they
go with it. It imports neither Spark nor a client of Kubernetes: what is asked of the API here is a list and a deletion.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.config import Pipeline
from tailrace.errors import DriverPodUnknown, ExecutorsMissing

MASTER = "k8s://"
OWNER = "tailrace.dev/driver"  # the label of an executor that names its driver's pod
EXECUTORS_LIMIT = 300.0
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
API = "https://kubernetes.default.svc"
_ANSWER_LIMIT = 10.0
_LOOK = 0.5

# Which variable of the pod says what Spark has to be told.
_IDENTITY = {"spark.driver.host": "POD_IP", "spark.kubernetes.driver.pod.name": "POD_NAME"}
# Each is an object that Spark would make or look for, a right that the driver would need for it, and no use here.
_NOT_NEEDED = {
    "spark.kubernetes.executor.disableConfigMap": "true",
    "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
    "spark.kubernetes.driver.service.deleteOnTermination": "false",
}


def asked_for(pipeline: Pipeline) -> bool:
    """Whether the pipeline's executors are to be pods."""
    return pipeline.spark.get("spark.master", "").startswith(MASTER)


def settings(pipeline: Pipeline, environment: Mapping[str, str]) -> dict[str, str]:
    """What Spark is told of the driver's pod, where the pipeline does not say otherwise."""
    if not asked_for(pipeline):
        return {}
    made = dict(_NOT_NEEDED)
    for name, variable in _IDENTITY.items():
        if name in pipeline.spark:
            continue
        if not environment.get(variable):
            raise DriverPodUnknown(
                f"spark.master is {pipeline.spark['spark.master']}, and the variable {variable} is not set",
                kept="nothing was read or written, and no executor was asked for",
                then=f"set {variable} from the pod's own fields, as the chart does, or set {name} in `spark:`",
            )
        made[name] = environment[variable]
    if environment.get("POD_NAMESPACE"):
        made["spark.kubernetes.namespace"] = environment["POD_NAMESPACE"]
    if environment.get("POD_NAME"):
        made[f"spark.kubernetes.executor.label.{OWNER}"] = environment["POD_NAME"]
    return made


@dataclass(frozen=True)
class Executors:
    """The executor pods of one driver's pod, as the API shows them."""

    api: str
    namespace: str
    owner: str
    account: Path = ACCOUNT

    @classmethod
    def of(cls, pipeline: Pipeline, environment: Mapping[str, str]) -> Executors | None:
        """Those of this driver, if it is a pod that knows its name and namespace."""
        name, namespace = environment.get("POD_NAME"), environment.get("POD_NAMESPACE")
        if not asked_for(pipeline) or not name or not namespace:
            return None
        return cls(API, namespace, name)

    def sweep(self) -> str:
        """Delete those that are there; what to tell about it.

        At the start of a driver these are of an earlier one in the same pod, which was killed: the pod is still there,
        so nobody else deletes them.
        """
        try:
            left = len(self._ask("GET")["items"])
            if left:
                self._ask("DELETE")
        except (OSError, ValueError, KeyError) as error:
            return f"executors that an earlier driver of this pod may have left were not looked for: {_short(error)}"
        return f"{left} executors that an earlier driver of this pod has left are deleted" if left else ""

    def why(self) -> str:
        """In a line, what keeps them from running."""
        try:
            items = self._ask("GET")["items"]
        except (OSError, ValueError, KeyError) as error:
            return f"the API does not say why: {_short(error)}"
        reasons = sorted({_reason(each) for each in items})
        return (
            "; ".join(reasons) if reasons else "there is not one pod of them: the driver may not make any, or a quota"
        )

    def _ask(self, method: str) -> dict[str, Any]:
        query = urllib.parse.urlencode({"labelSelector": f"{OWNER}={self.owner}"})
        url = f"{self.api}/api/v1/namespaces/{self.namespace}/pods?{query}"
        token = (self.account / "token").read_text(encoding="utf-8").strip()
        request = urllib.request.Request(url, method=method, headers={"Authorization": f"Bearer {token}"})
        authority = self.account / "ca.crt"
        context = ssl.create_default_context(cafile=str(authority)) if self.api.startswith("https:") else None
        with urllib.request.urlopen(request, timeout=_ANSWER_LIMIT, context=context) as answer:
            found = json.load(answer)
        if not isinstance(found, dict):
            raise ValueError(f"the API answers with {type(found).__name__}")
        return found


def await_executors(
    count: Callable[[], int], stopped: threading.Event, why: Callable[[], str], limit: float = EXECUTORS_LIMIT
) -> None:
    """Until the first executor has registered, or a stop is asked for. Spark itself would wait for ever, in silence."""
    until = time.monotonic() + limit
    while count() < 1 and not stopped.wait(_LOOK):
        if time.monotonic() >= until:
            raise ExecutorsMissing(
                f"not one executor has come in {limit:.0f} s: {why()}",
                kept="nothing was read or written",
                then=f"kubectl get events, and kubectl describe pods -l {OWNER}",
            )


def _reason(pod: Mapping[str, Any]) -> str:
    """Phase, and what the kubelet or the scheduler says."""
    status = pod.get("status", {})
    said = [
        each.get("reason", "")
        for container in status.get("containerStatuses", [])
        for each in container.get("state", {}).values()
    ]
    said += [each.get("message", "") for each in status.get("conditions", []) if each.get("status") == "False"]
    return ": ".join([status.get("phase", "Unknown"), *[each for each in said if each][:1]])


def _short(error: Exception) -> str:
    return f"{error.code} {error.reason}" if isinstance(error, urllib.error.HTTPError) else f"{error}"
