"""The Pipelines of a Kubernetes cluster, as `tailrace pipelines` sees them: thin requests to the API server.

The client is the extra `operator`: a driver has no use for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tailrace.config.resource import DIGEST, GROUP, OPERATION, OPERATIONS, OWNER, PLURAL, VERSION
from tailrace.errors import ClusterRefused, ExtraMissing

PROMOTED = f"{GROUP}/promoted"  # an annotation of a revision: the one that is to run in its place
_LIMIT = 20.0  # seconds for one answer
_BROKEN = 500  # from here on the server, or what is before it, failed at a request that it took
_KEPT = "nothing was changed"
_DOUBT = "it may have been changed: an answer that is missing says nothing"

Object = dict[str, Any]


@dataclass(frozen=True)
class Cluster:
    """The cluster of the kubeconfig's context, or the one around this pod; and a namespace of it."""

    api: Any
    namespace: str

    @classmethod
    def of(cls, namespace: str | None) -> Cluster:
        """Find the cluster; raise ClusterRefused if none is known."""
        try:
            from kubernetes import client, config
        except ImportError as error:
            raise ExtraMissing.of("operator", "tailrace pipelines", error) from error
        try:
            config.load_kube_config()
            found = config.list_kube_config_contexts()[1].get("context", {}).get("namespace")
        except config.ConfigException:
            try:
                config.load_incluster_config()
            except config.ConfigException as error:
                then = "set KUBECONFIG, or choose a context: kubectl config use-context"
                raise ClusterRefused("no cluster is known here", kept=_KEPT, then=then) from error
            found = None
        return cls(client, namespace or found or "default")

    def pipelines(self, everywhere: bool) -> list[Object]:
        """Return the Pipelines of the namespace, or of all."""
        custom, more = self.api.CustomObjectsApi(), {"_request_timeout": _LIMIT}
        with self._asking("listing Pipelines"):
            if everywhere:
                found = custom.list_cluster_custom_object(GROUP, VERSION, PLURAL, **more)
            else:
                found = custom.list_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURAL, **more)
        items: list[Object] = found["items"]
        return items

    def pipeline(self, name: str) -> Object:
        """Return a Pipeline."""
        custom = self.api.CustomObjectsApi()
        with self._asking(f"asking for the Pipeline {name}"):
            found: Object = custom.get_namespaced_custom_object(
                GROUP, VERSION, self.namespace, PLURAL, name, _request_timeout=_LIMIT
            )
        return found

    def change(self, name: str, spec: Object) -> None:
        """Change keys of a Pipeline's spec; None removes one."""
        custom = self.api.CustomObjectsApi()
        with self._asking(f"changing the Pipeline {name}", _DOUBT):
            custom.patch_namespaced_custom_object(
                GROUP, VERSION, self.namespace, PLURAL, name, {"spec": spec}, _request_timeout=_LIMIT
            )

    def note(self, name: str, revision: str, notes: dict[str, str | None]) -> None:
        """Change annotations of a revision; None removes one."""
        apps = self.api.AppsV1Api()
        with self._asking(f"changing the revision {revision} of {name}", _DOUBT):
            apps.patch_namespaced_controller_revision(
                f"{name}-{revision}", self.namespace, {"metadata": {"annotations": notes}}, _request_timeout=_LIMIT
            )

    def create(self, kind: str, plural: str, prefix: str, spec: Object) -> str:
        """Create a resource with a name that begins so, and return its name."""
        custom = self.api.CustomObjectsApi()
        made = {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": {"generateName": prefix}, "spec": spec}
        with self._asking(f"creating a {kind}", "one may have been created: an answer that is missing says nothing"):
            found = custom.create_namespaced_custom_object(
                GROUP, VERSION, self.namespace, plural, made, _request_timeout=_LIMIT
            )
        return str(found["metadata"]["name"])

    def operation(self, name: str) -> Object:
        """Return the status of a PipelineOperation; empty until the operator has seen it."""
        custom = self.api.CustomObjectsApi()
        with self._asking(f"asking for the {OPERATION} {name}"):
            found: Object = custom.get_namespaced_custom_object(
                GROUP, VERSION, self.namespace, OPERATIONS, name, _request_timeout=_LIMIT
            )
        return found.get("status") or {}

    def revisions(self, name: str) -> dict[str, dict[str, str]]:
        """Return what is known about a Pipeline's revisions: their annotations, oldest first."""
        apps = self.api.AppsV1Api()
        with self._asking(f"asking for the revisions of {name}"):
            found = apps.list_namespaced_controller_revision(
                self.namespace, label_selector=f"{OWNER}={name}", _request_timeout=_LIMIT
            )
        ordered = sorted(found.items, key=lambda each: int(each.revision))
        return {str(each.metadata.labels[DIGEST]): dict(each.metadata.annotations or {}) for each in ordered}

    def driver(self, name: str) -> str:
        """Return the pod of the driver to listen to: one that is ready, or else the newest."""
        core = self.api.CoreV1Api()
        select = f"tailrace.dev/pipeline={name},tailrace.dev/component=driver"
        with self._asking(f"asking for the drivers of {name}"):
            found = core.list_namespaced_pod(self.namespace, label_selector=select, _request_timeout=_LIMIT).items
        if not found:
            then = f"tailrace pipelines status {name}"
            raise ClusterRefused(f"the Pipeline {name} has no driver's pod", kept=_KEPT, then=then)

        def order(pod: Any) -> tuple[bool, Any]:
            ready = any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions or ())
            return ready, pod.metadata.creation_timestamp

        return str(max(found, key=order).metadata.name)

    def logs(self, pod: str, follow: bool, lines: int | None) -> Iterator[str]:
        """Yield the lines of a driver's log."""
        core = self.api.CoreV1Api()
        more = {"tail_lines": lines} if lines is not None else {}
        with self._asking(f"reading the log of {pod}"):
            answer = core.read_namespaced_pod_log(
                pod, self.namespace, container="driver", follow=follow, _preload_content=False,
                _request_timeout=(_LIMIT, None if follow else _LIMIT), **more,
            )  # fmt: skip
            rest = b""
            for chunk in answer.stream():
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    yield line.decode(errors="replace")
            if rest:
                yield rest.decode(errors="replace")

    @contextmanager
    def _asking(self, doing: str, unanswered: str = _KEPT) -> Iterator[None]:
        from urllib3.exceptions import HTTPError  # what the client does not make an ApiException, nor an OSError

        try:
            yield
        except self.api.ApiException as error:
            there = f"{doing} in namespace {self.namespace}"
            if error.status == 404:
                what = f"{there}: not found"
                then = "tailrace pipelines list --all-namespaces"
            elif error.status in (401, 403):
                what, then = f"{there}: not allowed", f"kubectl auth can-i list {PLURAL}.{GROUP} -n {self.namespace}"
            else:
                what, then = f"{there}: {error.status} {_reason(error)}", "kubectl cluster-info"
            kept = unanswered if (error.status or 0) >= _BROKEN else _KEPT
            raise ClusterRefused(what, kept=kept, then=then) from error
        except (OSError, HTTPError) as error:
            what = f"{doing}: no answer, or a part of one ({type(error).__name__})"
            raise ClusterRefused(what, kept=unanswered, then="kubectl cluster-info") from error


def _reason(error: Any) -> str:
    """Return the API server's words; its short ones if it has no others."""
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason)
