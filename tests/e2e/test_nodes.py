"""A release on several nodes: one of them is lost, or cut off, while records flow; each record comes out once.

E2E_NODES is a program that is called with node-kill, node-start, node-cut or node-mend and a node's name. Without it,
or with fewer than three nodes, the tests are skipped. The first node has the broker, and stays.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e import release as releases
from e2e.release import Release
from support import cluster
from support.cluster import Resource

pytestmark = [pytest.mark.timeout(3000)]

WAYS = pytest.mark.parametrize(("end", "mend"), [("node-kill", "node-start"), ("node-cut", "node-mend")])
VALUES = f"--values={Path(__file__).with_name('nodes.yaml')}"


def nodes() -> list[str]:
    """Return the nodes' names."""
    return sorted(releases.name(each) for each in cluster.items("nodes", "default"))


def act(what: str, node: str) -> None:
    """Kill, start, cut off or mend a node."""
    subprocess.run([os.environ["E2E_NODES"], what, node], check=True, timeout=300)


@contextmanager
def without(release: Release, node: str, end: str, mend: str) -> Iterator[None]:
    """Do without a node inside, and wait until it is back."""
    act(end, node)
    try:
        yield
    finally:
        act(mend, node)

        def back() -> bool:
            [found] = cluster.items("nodes", "default", f"--field-selector=metadata.name={node}")
            return releases.ready(found)

        release.until(back, f"{node} to be ready again")


@pytest.fixture(scope="module")
def several(kubernetes: None) -> None:
    """Skip without several nodes, and a way to lose one, before anything is installed."""
    if not os.environ.get("E2E_NODES") or len(nodes()) < 3:
        pytest.skip("E2E_NODES is not set, or there are fewer than three nodes")


@pytest.fixture(scope="module")
def spread(several: None, release: Release) -> Release:
    """Install a release whose pipelines run on all nodes but the first."""
    for node in nodes()[1:]:
        cluster.kubectl("label", "node", node, "work=yes", "--overwrite")
        cluster.kubectl("taint", "node", node, "work=yes:NoSchedule", "--overwrite")
    release.helm("install", "--wait", "--timeout=15m", VALUES, "--set=pipelineDefaults.driver.standbys=1")
    releases.hand(release)
    release.kubectl("wait", "kafkauser/hand", "pod/hand", "--for=condition=Ready", "--timeout=5m")
    return release


def leads(release: Release, pod: Resource) -> bool:
    """Tell whether this driver has taken the pipeline over."""
    return releases.ready(pod) and any(each["event"] == "ready" for each in release.events(releases.name(pod)))


def leader(release: Release, drivers: int) -> Resource:
    """Wait until so many drivers are ready, one of them leads, and each has an executor; return the one that leads."""
    found: list[Resource] = []

    def settled() -> bool:
        every = [each for each in release.pods("driver") if releases.ready(each)]
        found[:] = [each for each in every if leads(release, each)]
        executors = [each for each in release.pods("executor") if releases.ready(each)]
        return (len(every), len(found)) == (drivers, 1) and len(executors) >= drivers

    release.until(settled, f"{drivers} drivers with executors, of which one leads")
    return found[0]


def lose(release: Release, node: str, what: str, end: str, mend: str) -> None:
    """Let records flow, lose a node until they flow again, and mend it; count, and print the longest silence."""
    with release.feeding():
        since = release.flows()
        with without(release, node, end, mend):
            release.flows()
    release.count(what)
    print(f"{what}: longest silence {release.gap(since):.1f} s", flush=True)  # noqa: T201


@WAYS
def test_standby_takes_over_from_a_driver_whose_node_is_lost(spread: Release, end: str, mend: str) -> None:
    """Its lease in Kafka decides, long before Kubernetes notices; a driver that was only cut off is fenced."""
    node = leader(spread, 2)["spec"]["nodeName"]
    lose(spread, node, f"{end} of the driver's node, with a standby", end, mend)
    leader(spread, 2)


def without_standby(spread: Release) -> None:
    """Let one driver be all that there is."""
    spread.helm("upgrade", "--wait", "--timeout=15m", VALUES, "--set=pipelineDefaults.driver.standbys=0")


def test_driver_of_a_lost_node_is_replaced_without_a_standby(spread: Release) -> None:
    """Kubernetes notices the loss, and its replacement starts on another node."""
    without_standby(spread)
    lose(spread, leader(spread, 1)["spec"]["nodeName"], "node-kill of the driver's node", "node-kill", "node-start")


def test_driver_goes_on_when_its_node_is_mended(spread: Release) -> None:
    """Kubernetes may not notice that only the pods are cut off, and without a standby nobody takes over meanwhile."""
    without_standby(spread)
    found = leader(spread, 1)
    with spread.feeding():
        since = spread.flows()
        with without(spread, found["spec"]["nodeName"], "node-cut", "node-mend"):
            spread.until(lambda: not any(map(releases.ready, spread.pods("driver"))), "the driver to be called unready")
        spread.flows()
    spread.count("node-cut of the driver's node, mended")
    print(f"node-cut of the driver's node, mended: longest silence {spread.gap(since):.1f} s", flush=True)  # noqa: T201


@WAYS
def test_executor_of_a_lost_node_is_replaced(spread: Release, end: str, mend: str) -> None:
    """The driver gives it up after some seconds of silence, and repeats its tasks elsewhere."""
    without_standby(spread)
    node = leader(spread, 1)["spec"]["nodeName"]

    def elsewhere() -> str:
        """Return the node of an executor away from the driver; one beside it is deleted, and comes anew."""
        for each in spread.pods("executor"):
            if each["spec"].get("nodeName") == node:
                spread.kubectl("delete", "pod", releases.name(each), "--wait=true")
            elif releases.ready(each):
                return str(each["spec"]["nodeName"])
        return ""

    spread.until(lambda: bool(elsewhere()), "an executor on another node than the driver")
    lose(spread, elsewhere(), f"{end} of an executor's node", end, mend)
