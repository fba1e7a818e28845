"""Applying: the only place that changes the cluster. Everything is applied by the server, with one field manager.

What a revision no longer has is removed afterwards. Earlier configurations stay as long as a driver may be restarted
with them; topics stay for ever, because they hold records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from tailrace.config.resource import OWNER
from tailrace_operator import owners
from tailrace_operator.build import Built
from tailrace_operator.model import Key, Object
from tailrace_operator.objects import selector
from tailrace_operator.platform import KINDS, TOPIC


class Cluster(Protocol):
    """What applying needs of the API server."""

    def apply(self, body: Object) -> Object:
        """Create or change an object, and return it."""

    def find(self, kind: str, namespace: str, name: str) -> Object | None:
        """Return an object, or its metadata; raise PermissionError if that is refused."""

    def list(self, kind: str, namespace: str, selector: str) -> list[Object]:
        """Return the objects of a kind that have these labels; none if the cluster does not know the kind."""

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object, if it is there."""


def taken(cluster: Cluster, key: Key, built: Built) -> Iterator[Object]:
    """Return what is there already and not this Pipeline's: applied, it would become its own, and go with it."""
    for each in built.objects:
        if each["kind"] == TOPIC:  # shared
            continue
        try:
            found = cluster.find(each["kind"], key.namespace, each["metadata"]["name"])
        except PermissionError:
            continue
        if found is not None and (found["metadata"].get("labels") or {}).get(OWNER) != key.name:
            yield each


def apply(cluster: Cluster, key: Key, built: Built, kept: int, pods: Mapping[str, str]) -> Object:
    """Apply all objects, remove those that are no longer part of it, and return the driver's Deployment.

    `pods` are the drivers' pods, with their uids: what they need outlasts them.
    """
    deployment: Object = {}
    for body in built.objects:
        made = cluster.apply(owners.kept_by(body, pods))
        if body["kind"] == "Deployment":
            deployment = made
    prune(cluster, key, built, kept)
    return deployment


def prune(cluster: Cluster, key: Key, built: Built, kept: int) -> None:
    """Remove what an earlier revision had; `kept` is the number of earlier configurations to keep."""
    wanted = {(each["kind"], each["metadata"]["name"]) for each in built.objects}
    mounted: set[str] | None = None
    for kind in KINDS:
        if kind == TOPIC:
            continue
        found = cluster.list(kind, key.namespace, f"{OWNER}={key.name}")
        gone = [each for each in found if (kind, each["metadata"]["name"]) not in wanted]
        if gone and kind == "ConfigMap":
            if mounted is None:
                mounted = configurations(cluster.list("ReplicaSet", key.namespace, selector(key, "driver")))
            gone = superfluous(gone, mounted, kept)
        for each in gone:
            cluster.delete(kind, key.namespace, each["metadata"]["name"])


def configurations(sets: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the names of the ConfigMaps that pods of these ReplicaSets mount."""
    found: set[str] = set()
    for each in sets:
        if each["spec"].get("replicas") or (each.get("status") or {}).get("replicas"):
            volumes = each["spec"]["template"]["spec"].get("volumes", ())
            found |= {volume["configMap"]["name"] for volume in volumes if "configMap" in volume}
    return found


def superfluous(earlier: Iterable[Object], mounted: set[str], kept: int) -> list[Object]:
    """Return the earlier configurations that no driver mounts, but for the newest ones."""
    free = [each for each in earlier if each["metadata"]["name"] not in mounted]
    free.sort(key=lambda each: (str(each["metadata"]["creationTimestamp"]), each["metadata"]["name"]))
    return free[: max(0, len(free) - kept)]
