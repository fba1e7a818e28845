"""Fixtures: the cluster, the images on its nodes, and one release that the tests of a module share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import provided
from e2e import release as releases
from e2e.provided import CRDS, REAL
from e2e.release import Release
from support import cluster


@pytest.fixture(scope="session")
def kubernetes() -> None:
    """Provide a cluster whose nodes have the images; E2E_LOAD is the command that loads the images named after it."""
    if cluster.missing():
        pytest.skip(cluster.missing())
    command = os.environ.get("E2E_LOAD")
    if command:
        try:
            provided.load(command)
        except provided.Unloaded as error:
            pytest.exit(str(error), 1)


@pytest.fixture(scope="session")
def definitions(kubernetes: None) -> Iterator[None]:
    """Provide Strimzi's definitions, from its operator (E2E_STRIMZI=real) or from files next to the checkout."""
    there = provided.defined()
    if REAL and not there:
        raise AssertionError("E2E_STRIMZI is real, but the cluster does not have Strimzi's operator")
    if there and not REAL and cluster.kubectl("get", "deployments", "-A", "-l", "app=strimzi", "-o", "name").strip():
        raise AssertionError("Strimzi's operator is in the cluster and would answer, too: set E2E_STRIMZI=real")
    if not there and not CRDS.is_dir():
        pytest.skip(f"Strimzi's definitions are not in {CRDS}: set SHARED_TOOLS")
    with provided.definitions():
        yield


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
