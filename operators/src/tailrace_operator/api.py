"""The requests to the API server: applied by the server, with one field manager, and counted."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from typing import Any

from kubernetes import client, config, dynamic
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import ForbiddenError, NotFoundError, ResourceNotFoundError

from tailrace.config.resource import GROUP, KIND, OPERATION, VERSION
from tailrace.errors import ConfigInvalid
from tailrace_operator.model import MANAGER, Key, Object
from tailrace_operator.platform import KINDS, OPTIONAL

log = logging.getLogger(__name__)

_ALL = len({KINDS[kind] for kind in OPTIONAL})
_AGAIN = 60.0  # seconds; looking for a kind that is not there asks for all that are
_LIMIT = 20.0  # seconds for one request
_SECRET = ("Secret", "ConfigMap")  # only whether they exist is asked, and nothing of what they hold
_REFUSED = frozenset({400, 403, 422, 500})  # the last of a value whose type is another one
_FORBIDDEN = 403
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_VERSIONS = {
    **KINDS,
    "ControllerRevision": "apps/v1",
    "ReplicaSet": "apps/v1",
    "Pod": "v1",
    "Job": "batch/v1",
    "Event": "v1",
    "Secret": "v1",
}
_VERSIONS |= dict.fromkeys((KIND, OPERATION), f"{GROUP}/{VERSION}")


class ApiServer:
    """A cluster's API server; used by many threads."""

    def __init__(self, api: client.ApiClient) -> None:
        self._client = dynamic.DynamicClient(api)
        self._lock = threading.Lock()
        self._kinds: dict[str, Any] = {}
        self._known: tuple[frozenset[str], float] | None = None
        self.asked: Counter[str] = Counter()

    @classmethod
    def around(cls) -> ApiServer:
        """Return the one of this pod, or of the kubeconfig."""
        try:
            config.load_incluster_config()
        except config.ConfigException:
            try:
                config.load_kube_config()
            except config.ConfigException as error:
                raise ConfigInvalid(
                    "no cluster is known here: neither a pod's service account nor a kubeconfig",
                    kept="nothing was changed",
                    then="set KUBECONFIG, or run this in a pod with a service account",
                ) from error
        return cls(client.ApiClient())

    def require_definitions(self) -> None:
        """Refuse a cluster without the operator's own kinds: a watch of a kind that is not there never begins."""
        try:
            for kind in (KIND, OPERATION):
                self._resource(kind)
        except ResourceNotFoundError as error:
            raise ConfigInvalid(
                f"the cluster does not know the kinds {KIND} and {OPERATION} of {GROUP}",
                kept="nothing was changed",
                then="helm install tailrace-crds charts/tailrace-crds; Kubernetes starts the operator again",
            ) from error

    def known(self) -> frozenset[str]:
        """Return the API versions of other operators that this cluster has; those that lack are asked for again."""
        now = time.monotonic()
        if self._known is None or (len(self._known[0]) < _ALL and now - self._known[1] > _AGAIN):
            self._known = frozenset(KINDS[kind] for kind in OPTIONAL if self._resource(kind) is not None), now
        return self._known[0]

    def apply(self, body: Object) -> Object:
        """Create or change an object, and return it; raise ConfigInvalid or PermissionError if that is refused."""
        self._count("apply")
        resource = self._resource(body["kind"])
        if resource is None:
            raise ApiException(status=404, reason=f"the cluster does not know the kind {body['kind']}")
        try:
            made = self._client.server_side_apply(
                resource,
                body=body,
                namespace=body["metadata"]["namespace"],
                field_manager=MANAGER,
                force_conflicts=True,
                _request_timeout=_LIMIT,
            )
        except ApiException as error:
            # A person wrote parts of it, whose values only the API server knows; a shadow's spec as an overlay.
            own = body["kind"] in (KIND, OPERATION)
            if error.status not in (_REFUSED if own else _REFUSED - {500}):
                raise
            what = f"the API server refuses the {body['kind']}: {' '.join(_words(error).split())}"
            if error.status == _FORBIDDEN and not own:  # a quota, or rights: it may change without the spec
                raise PermissionError(what) from error
            then = "correct spec.shadow" if own else "correct the spec"
            raise ConfigInvalid(what, kept="the driver's Deployment was left as it is", then=then) from error
        return _plain(made)

    def list(self, kind: str, namespace: str, selector: str) -> list[Object]:
        """Return the objects of a kind that have these labels; none if the cluster does not know the kind."""
        resource = self._resource(kind)
        if resource is None:
            return []
        self._count("list")
        found = self._client.get(resource, namespace=namespace, label_selector=selector, _request_timeout=_LIMIT)
        return [_plain(each) for each in found.items]

    def uid(self, key: Key) -> str:
        """Return the uid of a Pipeline; empty if there is none, or it is being deleted."""
        self._count("get")
        try:
            found = self._client.get(
                self._resource(KIND), namespace=key.namespace, name=key.name, _request_timeout=_LIMIT
            )
        except NotFoundError:
            return ""
        return "" if found.metadata.deletionTimestamp else str(found.metadata.uid)

    def find(self, kind: str, namespace: str, name: str) -> Object | None:
        """Return an object, of a Secret or ConfigMap only its metadata; raise PermissionError if that is refused."""
        resource = self._resource(kind)
        if resource is None:
            return None
        self._count("get")
        more = {"header_params": {"Accept": _METADATA}} if kind in _SECRET else {}
        try:
            return _plain(self._client.get(resource, namespace=namespace, name=name, _request_timeout=_LIMIT, **more))
        except NotFoundError:
            return None
        except ForbiddenError as error:
            raise PermissionError(f"{kind} {namespace}/{name}: {error.reason}") from error

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object, if it is there."""
        resource = self._resource(kind)
        if resource is None:
            return
        self._count("delete")
        try:
            self._client.delete(resource, namespace=namespace, name=name, _request_timeout=_LIMIT)
        except NotFoundError:
            return

    def write_status(self, body: Object) -> None:
        """Replace the status of a Pipeline or an operation; nobody else writes it."""
        self._count("status")
        about = body["metadata"]
        try:
            self._client.server_side_apply(
                self._resource(body["kind"]).subresources["status"],
                body=body,
                name=about["name"],
                namespace=about["namespace"],
                field_manager=MANAGER,
                force_conflicts=True,
                _request_timeout=_LIMIT,
            )
        except (NotFoundError, ApiException) as error:
            if error.status not in (404, 409):  # deleted meanwhile, or made anew
                raise

    def tell(self, event: Object) -> None:
        """Make an Event; one that is refused or lost stops nothing, because the status says the same."""
        self._count("event")
        about = event["metadata"]
        try:
            self._client.create(
                self._resource("Event"), body=event, namespace=about["namespace"], _request_timeout=_LIMIT
            )
        except ApiException as error:
            log.debug("%s: no Event: %s", about["namespace"], error.reason)

    def _resource(self, kind: str) -> Any:
        """Return what the client knows about a kind; None of another operator's that is not there."""
        with self._lock:
            if kind not in self._kinds:
                try:
                    self._kinds[kind] = self._client.resources.get(api_version=_VERSIONS[kind], kind=kind)
                except ResourceNotFoundError:
                    if kind not in OPTIONAL:
                        raise
                    return None
            return self._kinds[kind]

    def _count(self, verb: str) -> None:
        with self._lock:
            self.asked[verb] += 1


def _words(error: ApiException) -> str:
    """Return the API server's words; its short ones if it has no others."""
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason)


def _plain(found: Any) -> Object:
    made: Object = found.to_dict()
    return made
