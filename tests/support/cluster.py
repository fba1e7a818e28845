"""The Kubernetes cluster that KUBECONFIG names, for the end-to-end tests: kubectl, Helm, and temporary namespaces."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.helm import tool
from tailrace.testing import wait_until

LIMIT = 900.0

Resource = dict[str, Any]


def missing() -> str:
    """Return what the tests lack, or an empty string."""
    if not os.environ.get("KUBECONFIG"):
        return "KUBECONFIG is not set"
    return "" if shutil.which("kubectl") else "kubectl is not on the PATH"


def kubectl(*arguments: str, check: bool = True, told: str | None = None) -> str:
    """Run kubectl and return its output; `told` goes to its standard input."""
    return _run("kubectl", *arguments, check=check, told=told)


def helm(*arguments: str, check: bool = True) -> str:
    """Run Helm on the cluster and return its output."""
    return _run(str(tool("helm")), *arguments, check=check)


def _run(*command: str, check: bool, told: str | None = None) -> str:
    done = subprocess.run(command, input=told, capture_output=True, text=True, timeout=LIMIT, check=False)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    return done.stdout + ("" if check else done.stderr)


def items(kind: str, namespace: str, *arguments: str) -> list[Resource]:
    """Return the objects of a kind in a namespace."""
    found = json.loads(kubectl("-n", namespace, "get", kind, "-o", "json", *arguments))["items"]
    return [each for each in found if isinstance(each, dict)]


def wait_for_definitions(*what: str) -> None:
    """Wait until the API server offers these definitions; `kubectl wait` fails while one has no condition at all."""

    def established() -> bool:
        found = json.loads(kubectl("get", *what, "-o", "json"))
        every = [each.get("status", {}).get("conditions") or [] for each in found.get("items", [found])]
        return all(any(it["type"] == "Established" and it["status"] == "True" for it in each) for each in every)

    wait_until(established, f"the definitions {' '.join(what)} to be established", 120, every=0.5)


def apply(namespace: str, *objects: Resource) -> None:
    """Create or update the objects."""
    listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    kubectl("-n", namespace, "apply", "-f", "-", told=json.dumps(listed))


@contextmanager
def namespace() -> Iterator[str]:
    """Create a namespace in which the API server refuses every pod that is not restricted; delete it at the end."""
    name = f"tailrace-e2e-{uuid.uuid4().hex[:6]}"
    kubectl("create", "namespace", name)
    try:
        kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
        yield name
    finally:
        kubectl("delete", "namespace", name, "--wait=true", "--timeout=120s", check=False)
