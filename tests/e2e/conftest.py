"""Fixtures: the cluster, the images on its nodes, and one release that the tests of a module share."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import release as releases
from e2e.images import BUILT, PRODUCT
from e2e.release import Release
from support import cluster
from support.helm import SHARED, STRIMZI

REAL = os.environ.get("E2E_STRIMZI") == "real"
CRDS = SHARED / "strimzi" / "crds"


@pytest.fixture(scope="session")
def kubernetes() -> None:
    """Provide a cluster whose nodes have the images; E2E_LOAD is the command that loads the images named after it."""
    if cluster.missing():
        pytest.skip(cluster.missing())
    load = os.environ.get("E2E_LOAD")
    if load:
        started = time.monotonic()
        for image in (*PRODUCT, *BUILT):
            _load([*shlex.split(load), image])
        print(f"images loaded in {releases.since(started)}")  # noqa: T201


def _load(command: list[str]) -> None:
    """Load an image; once more if that fails, because a node may not answer on a busy machine."""
    for _ in range(2):
        ran = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
        if not ran.returncode:
            return
        print(f"{shlex.join(command)} ended with {ran.returncode}: {ran.stderr}")  # noqa: T201
    pytest.exit(f"{shlex.join(command)} ended with {ran.returncode}: {ran.stderr}", ran.returncode)


@pytest.fixture(scope="session")
def definitions(kubernetes: None) -> Iterator[None]:
    """Provide Strimzi's definitions, from its operator (E2E_STRIMZI=real) or from files next to the checkout."""
    if STRIMZI in cluster.kubectl("api-versions").split():
        if not REAL and cluster.kubectl("get", "deployments", "-A", "-l", "app=strimzi", "-o", "name").strip():
            raise AssertionError("Strimzi's operator is in the cluster and would answer, too: set E2E_STRIMZI=real")
        yield
        return
    if REAL:
        raise AssertionError("E2E_STRIMZI is real, but the cluster does not have Strimzi's operator")
    if not CRDS.is_dir():
        pytest.skip(f"Strimzi's definitions are not in {CRDS}: set SHARED_TOOLS")
    cluster.kubectl("apply", "--server-side", "-f", str(CRDS))
    cluster.kubectl("wait", "--for=condition=Established", "-f", str(CRDS), "--timeout=60s")
    try:
        yield
    finally:
        cluster.kubectl("delete", "-f", str(CRDS), "--wait=true", "--timeout=60s", check=False)


@pytest.fixture(scope="module")
def release(definitions: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """Provide an empty namespace, and an operator that handles Strimzi's resources there.

    E2E_NAMESPACE names an existing release to run single tests on repeatedly; it is not removed.
    """
    existing = os.environ.get("E2E_NAMESPACE")
    if existing:
        yield Release.found(existing)
        return
    with cluster.namespace() as namespace:
        made = Release(namespace)
        if REAL:
            yield made
            return
        with releases.standin(namespace, Path(tmp_path_factory.mktemp("standin")) / "log"):
            yield made
