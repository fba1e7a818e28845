"""What the operator writes about resources of its own kinds: references to their owners, and their status."""

from __future__ import annotations

from tailrace.config.resource import GROUP, VERSION
from tailrace_operator.model import Object


def owner(kind: str, name: str, uid: str) -> Object:
    """Return the reference by which Kubernetes deletes an object after its owner."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def with_status(kind: str, namespace: str, name: str, uid: str, status: Object) -> Object:
    """Return a resource with a status, to be written."""
    about = {"name": name, "namespace": namespace, "uid": uid}
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": about, "status": status}
