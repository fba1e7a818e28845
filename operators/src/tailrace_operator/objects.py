"""What the operator writes about resources of its own kinds: references to their owners, and their status."""

from __future__ import annotations

from tailrace.config.resource import GROUP, VERSION
from tailrace_operator.model import Key, Object


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


def selector(key: Key, component: str) -> str:
    """Return the labels of a Pipeline's pods of one kind."""
    return f"tailrace.dev/component={component},tailrace.dev/pipeline={key.name},tailrace.dev/release={key.name}"


def with_status(kind: str, namespace: str, name: str, uid: str, status: Object) -> Object:
    """Return a resource with a status, to be written."""
    about = {"name": name, "namespace": namespace, "uid": uid}
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": about, "status": status}


def short(words: str) -> str:
    """Return a message in one line that fits a status and an Event."""
    line = " ".join(words.split())
    return line if len(line) <= 500 else f"{line[:497]}..."
