"""Owners: what Kubernetes deletes with a Pipeline, and in which order, without a finalizer.

A driver that is told to end finishes its batch, and needs its user, its rights and its network until then. So these
objects have two kinds of owners: the Pipeline, and each of its drivers' pods. Kubernetes deletes an object when the
last of its owners is gone: the user of a deleted Pipeline goes after its last driver, with or without an operator.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from tailrace.config.resource import KIND
from tailrace_operator.model import Object, Resource
from tailrace_operator.objects import owner
from tailrace_operator.platform import TOPIC

NEEDED = ("ServiceAccount", "Role", "RoleBinding", "NetworkPolicy", "KafkaUser")  # until a driver has ended
DELETE = "Delete"  # the deletionPolicy of a Pipeline whose topic goes with it


def of_pipeline(made: Object, resource: Resource, shared: Container[str]) -> list[Object]:
    """Return the owners of an object; none of a topic that is to outlive its Pipeline, as what others name."""
    if made["kind"] == TOPIC and not goes(made, resource, shared):
        return []
    reference = owner(KIND, resource.key.name, resource.uid)
    # A deletion in the foreground ends when the driver has ended.
    return [{**reference, "blockOwnerDeletion": made["kind"] == "Deployment"}]


def goes(topic: Object, resource: Resource, shared: Container[str]) -> bool:
    """Return whether a topic is deleted with its Pipeline: only one that was made for it, and that no other shares."""
    own = {f"{resource.key.name}.rejected"}
    if resource.partitions:  # a shadow's sink topic was made for it alone
        own.add(resource.spec["config"]["sink"]["topic"])
    name = topic["spec"]["topicName"]
    return resource.spec.get("deletionPolicy") == DELETE and name in own and name not in shared


def kept(objects: Iterable[Object], pods: Mapping[str, str]) -> list[Object]:
    """Return the objects that drivers need until they have ended, owned by these pods: their uids, by name."""
    return [kept_by(each, pods) for each in objects if _outlasts(each)]


def kept_by(made: Object, pods: Mapping[str, str]) -> Object:
    """Return an object, owned by these pods as well if a driver needs it."""
    if not _outlasts(made) or not pods:
        return made
    more = [_pod(name, uid) for name, uid in sorted(pods.items())]
    return {**made, "metadata": {**made["metadata"], "ownerReferences": [*made["metadata"]["ownerReferences"], *more]}}


def _outlasts(made: Object) -> bool:
    return made["kind"] in NEEDED or (made["kind"] == TOPIC and bool(made["metadata"].get("ownerReferences")))


def _pod(name: str, uid: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": name,
        "uid": uid,
        "controller": False,
        "blockOwnerDeletion": False,
    }
