"""The Kubernetes that KUBECONFIG names, for the end-to-end tests: kubectl, helm, and a Kafka that its pods can reach.

The Kafka is the embedded one, on the address of a node that is this machine; a stand-in for a broker elsewhere. It has
neither TLS nor rights, so it says nothing about those.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from support.helm import tool
from tailrace.embedded import EmbeddedKafka

LIMIT = 900.0


def missing() -> str:
    """What the tests lack, or nothing."""
    if not os.environ.get("KUBECONFIG"):
        return "KUBECONFIG is not set"
    return "" if shutil.which("kubectl") else "kubectl is not on the PATH"


def kubectl(*arguments: str, check: bool = True) -> str:
    """What kubectl says."""
    return _run("kubectl", *arguments, check=check)


def helm(*arguments: str, check: bool = True) -> str:
    """What Helm says, and does to the cluster."""
    return _run(str(tool("helm")), *arguments, check=check)


def _run(*command: str, check: bool) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    return done.stdout + ("" if check else done.stderr)


def items(kind: str, namespace: str, *arguments: str) -> list[dict[str, Any]]:
    """The objects of a kind in a namespace."""
    found = json.loads(kubectl("-n", namespace, "get", kind, "-o", "json", *arguments))["items"]
    return [each for each in found if isinstance(each, dict)]


@contextmanager
def namespace() -> Iterator[str]:
    """A namespace of its own, in which the API server refuses every pod that is not restricted."""
    name = f"tailrace-e2e-{uuid.uuid4().hex[:6]}"
    kubectl("create", "namespace", name)
    try:
        kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
        yield name
    finally:
        kubectl("delete", "namespace", name, "--wait=true", "--timeout=120s", check=False)


@contextmanager
def kafka() -> Iterator[EmbeddedKafka]:
    """The embedded Kafka, where pods reach it."""
    host = os.environ.get("E2E_HOST") or _node()
    with patch("tailrace.embedded.HOST", host), patch("tailrace.broker.HOST", host), EmbeddedKafka() as started:
        yield started


def _node() -> str:
    """The address of a node that is this machine."""
    nodes = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
    addresses = [
        each["address"] for node in nodes for each in node["status"]["addresses"] if each["type"] == "InternalIP"
    ]
    for address in addresses:
        with socket.socket() as probe:
            try:
                probe.bind((address, 0))
            except OSError:
                continue
            return str(address)
    raise AssertionError(f"no node ({addresses}) is this machine: set E2E_HOST to an address that pods can reach")
