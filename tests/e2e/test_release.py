"""A release on a real Kubernetes, from nothing to nothing: every record once, whoever is killed or replaced meanwhile.

The tests are one story and run in this order. After each, a reader that knows nothing of Tailrace counts everything.
"""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path

import pytest

from e2e import release as releases
from e2e.release import NAME, START_LIMIT, Release
from support import cluster
from support.helm import CHART

pytestmark = [pytest.mark.timeout(3000)]


def test_development_is_installed_from_nothing_and_tweets_flow(release: Release) -> None:
    """Helm waits until the driver is ready, in a namespace that takes restricted pods only."""
    since = time.monotonic()
    try:
        release.helm("install", "--wait", "--timeout=15m")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{release.look()}") from error
    print(f"\ninstalled, and ready, in {releases.since(since)}", flush=True)  # noqa: T201
    releases.hand(release)
    release.kubectl("wait", "kafkauser/hand", "pod/hand", "--for=condition=Ready", "--timeout=5m")
    with release.feeding():
        release.feed("tweets", 2000)
    release.count("install")


@pytest.fixture
def running(release: Release) -> Release:
    """The release, when whatever was done to it before is over."""
    release.settled()
    return release


def test_helm_test_is_content(release: Release) -> None:
    """`tailrace doctor` finds nothing wrong, in a pod as the driver's and with its certificate."""
    said = cluster.helm("test", NAME, "-n", release.namespace, "--logs")
    assert "Succeeded" in said


def test_executors_are_the_drivers_own(running: Release) -> None:
    """They belong to its pod, and have no token."""
    executors = running.pods("executor")
    assert executors
    for each in executors:
        assert [owner["name"] for owner in each["metadata"]["ownerReferences"]] == [running.driver()]
        assert each["spec"]["automountServiceAccountToken"] is False


def test_a_driver_that_is_killed_is_started_again(running: Release) -> None:
    """In the same pod, and the executors of its first life are deleted."""
    before, restarts = running.executors(), running.restarts()
    with running.feeding():
        running.kill(running.driver(), "driver", "tailrace run")
        running.until(lambda: running.restarts() > restarts, "the driver's container to be started again")
        running.settled()
    running.count("driver killed")
    assert not running.executors() & before


def test_an_executor_that_is_killed_is_replaced(running: Release) -> None:
    """By its driver, which goes on."""
    restarts = running.restarts()
    with running.feeding():
        [executor] = running.executors()
        running.kill(executor, "executor", "KubernetesExecutorBackend")
        running.until(lambda: running.executors() not in (set(), {executor}), "another executor")
        running.settled()
    running.count("executor killed")
    assert running.restarts() == restarts


def test_a_gateway_that_is_killed_is_started_again(running: Release) -> None:
    """In the same executor, by the next task."""
    running.feed("tweets", 500)
    running.count("before a gateway is killed")  # the first task has started it
    [executor], restarts = running.executors(), running.restarts()
    with running.feeding():
        running.kill(executor, "executor", "tailrace.gateway.server")
        running.feed("tweets", 500)
    running.count("gateway killed")
    assert (running.executors(), running.restarts()) == ({executor}, restarts)


def test_a_broker_that_is_killed_is_waited_for(running: Release) -> None:
    """The only one there is; its container is started again, and has its data."""
    [broker] = cluster.items("pods", running.namespace, "-l", "strimzi.io/kind=Kafka")

    def restarts() -> int:
        [pod] = cluster.items("pods", running.namespace, "-l", "strimzi.io/kind=Kafka")
        return int(pod["status"]["containerStatuses"][0]["restartCount"])

    before = restarts()
    with running.feeding():
        running.kill(releases.name(broker), "kafka", "kafka.Kafka")
        running.until(lambda: restarts() > before, "the broker's container to be started again")
        running.settled()
        running.feed("tweets", 500)
    running.count("broker killed")


def test_an_executor_is_evicted_as_a_drained_node_does(running: Release) -> None:
    """The budget lets it go, and the driver makes another."""
    [executor] = running.executors()
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": executor, "namespace": running.namespace},
    }
    path = f"/api/v1/namespaces/{running.namespace}/pods/{executor}/eviction"
    with running.feeding():
        running.kubectl("create", "--raw", path, "-f", "-", told=json.dumps(eviction))
        running.until(lambda: running.executors() not in (set(), {executor}), "another executor")
        running.settled()
    running.count("executor evicted")


@pytest.mark.parametrize("upgrade", ["hand-over", "drain"])
def test_an_upgrade_while_records_flow(running: Release, upgrade: str) -> None:
    """The new driver goes on where the old one has stopped; how long nothing came out is printed."""
    old = running.driver()
    with running.feeding():
        time_before = _now()
        running.until(lambda: running.hand("silence", "hashtags", str(time_before))["records"] > 0, "records to flow")
        started = time.monotonic()
        running.helm("upgrade", "--wait", "--timeout=15m", f"--set=pipelineDefaults.upgrade={upgrade}", _turn())
        running.until(lambda: old not in {releases.name(pod) for pod in running.pods("driver")}, "the old driver to go")
        running.settled()
        after = _now()
        running.until(lambda: running.hand("silence", "hashtags", str(after))["records"] > 0, "records to flow again")
    running.count(f"upgrade by {upgrade}")
    gap = running.hand("silence", "hashtags", str(time_before))["longest"] / 1000
    print(f"upgrade by {upgrade}: {releases.since(started)}, longest silence {gap:.1f} s", flush=True)  # noqa: T201


def test_executors_come_with_a_backlog_and_go_after_it(running: Release) -> None:
    """One is enough for the calm; what waits for longer than a few seconds brings another."""
    at = "--set=pipelines[0].config.executors"
    limits = [f"{at}.{limit}" for limit in ("min=1", "max=2", "backlog=2s", "settle=30s")]
    running.helm("upgrade", "--wait", "--timeout=15m", *limits)
    running.settled()
    assert len(running.executors()) == 1
    running.feed("tweets", 60_000)
    running.until(lambda: len(running.executors()) == 2, "a second executor")
    running.count("executors scaled up")
    running.until(lambda: len(running.executors()) == 1, "the second executor to go")
    running.feed("tweets", 1000)
    running.count("executors scaled down")
    wishes = [each["wanted"] for each in running.events(running.driver()) if each["event"] == "executors"]
    print(f"executors wanted: {wishes}", flush=True)  # noqa: T201
    assert (max(wishes), wishes[-1]) == (2, 1)


def test_a_rollback_takes_an_upgrade_back(running: Release) -> None:
    """The driver's pod is made from the template before the last upgrade again, while records flow."""

    def turn() -> str | None:
        [pod] = running.pods("driver")
        found: str | None = pod["metadata"].get("annotations", {}).get("turn")
        return found

    named = (NAME, "-n", running.namespace)
    earlier = json.loads(cluster.helm("history", *named, "-o", "json"))[-2]["revision"]
    values = json.loads(cluster.helm("get", "values", *named, "--revision", str(earlier), "-o", "json"))
    wanted, started = values["pipelineDefaults"]["podAnnotations"]["turn"], time.monotonic()
    assert turn() != wanted
    with running.feeding():
        cluster.helm("rollback", *named, "--wait", "--timeout=15m")
        running.until(lambda: len(running.pods("driver")) == 1, "the upgrade's driver to go")
        running.settled()
    assert turn() == wanted
    running.count("rollback")
    print(f"rollback: {releases.since(started)}", flush=True)  # noqa: T201


def test_an_expired_certificate_is_refused_and_said(running: Release) -> None:
    """The driver says which certificate has expired; with a new one it goes on by itself."""
    if os.environ.get("E2E_STRIMZI") == "real":
        pytest.skip("Strimzi's own operator renews a certificate that is put in its place")

    from e2e.standin.certificates import Signed, issue

    def secret(name: str) -> dict[str, bytes]:
        found = json.loads(running.kubectl("get", "secret", name, "-o", "json"))["data"]
        return {key: base64.b64decode(value) for key, value in found.items()}

    def certificate(days: float) -> None:
        made = issue(authority, user, days)
        data = {"user.crt": made.certificate, "user.key": made.key}
        patch = {"data": {key: base64.b64encode(value).decode() for key, value in data.items()}}
        running.kubectl("patch", "secret", user, "--patch", json.dumps(patch))

    user = f"{NAME}-tweets"
    authority = Signed(secret(f"{NAME}-kafka-clients-ca-cert")["ca.crt"], secret(f"{NAME}-kafka-clients-ca")["ca.key"])
    certificate(-1)
    running.kubectl("rollout", "restart", f"deploy/{NAME}-tweets")

    def refused() -> bool:
        select = f"tailrace.dev/component=driver,tailrace.dev/release={NAME}"
        said = running.kubectl("logs", "-l", select, check=False)
        return "TR-509" in said and f"CN={user}, has expired" in said

    running.until(refused, "the driver to say that its certificate has expired")
    certificate(30)
    running.settled()
    running.feed("tweets", 500)
    running.count("certificate expired and renewed")


def test_a_stateful_pipeline_survives_the_loss_of_its_driver(release: Release) -> None:
    """Its state is on the object store inside, and the driver's pod is gone for good."""
    more = f"--values={Path(__file__).parent / 'stateful.yaml'}"
    release.helm("upgrade", "--wait", "--timeout=15m", more)
    release.settled("counts")
    release.feed("words", 2000)
    release.count("stateful", "words")
    driver = release.driver("counts")
    with release.feeding("words"):
        release.kubectl("delete", "pod", driver, "--grace-period=0", "--force")
        release.until(lambda: len(release.pods("driver", "counts")) == 1, "another driver")
        release.settled("counts")
    release.feed("words", 1000)
    assert release.driver("counts") != driver
    release.count("stateful, driver lost", "words")


def test_a_wrong_value_fails_at_install_and_is_named(release: Release) -> None:
    """A word that nobody knows, and a value that contradicts another; nothing is made."""
    before = release.kubectl("get", "all", "-o", "name")
    for wrong, named in (
        ("pipelines[0].config.sink.topc=x", "topc"),
        ("kafka.strimzi.replication=3", "kafka.strimzi.replication is 3"),
    ):
        said = cluster.helm(
            "install", "wrong", str(CHART), "-n", release.namespace,
            f"--values={CHART / 'environments' / 'dev.yaml'}", f"--set={wrong}", check=False,
        )  # fmt: skip
        assert named in said
        print(f"{wrong}: refused", flush=True)  # noqa: T201
    assert "wrong" not in cluster.helm("list", "-n", release.namespace, "-q")
    assert release.kubectl("get", "all", "-o", "name") == before


def test_nothing_is_left_of_a_release(release: Release) -> None:
    """But what Kubernetes puts into each namespace."""
    release.kubectl("delete", "kafkauser/hand", "pod/hand", "configmap/hand", "--wait=true")
    cluster.helm("uninstall", NAME, "-n", release.namespace, "--wait", "--timeout=5m")

    def left() -> list[str]:
        kinds = "pods,configmaps,secrets,services,serviceaccounts,roles,rolebindings,networkpolicies,deployments"
        kinds += ",statefulsets,jobs,poddisruptionbudgets,persistentvolumeclaims"
        kinds += ",kafkas,kafkanodepools,kafkatopics,kafkausers"
        found = cluster.items(kinds, release.namespace)
        names = [f"{each['kind']} {each['metadata']['name']}" for each in found]
        return [name for name in names if name not in {"ConfigMap kube-root-ca.crt", "ServiceAccount default"}]

    try:
        release.until(lambda: not left(), "nothing to be left", limit=START_LIMIT / 3)
    except AssertionError as error:
        raise AssertionError(f"{left()} is left\n{error}") from error


def _now() -> int:
    return int(time.time() * 1000)


def _turn() -> str:
    """A value that makes an upgrade of what changes nothing."""
    return f"--set-string=pipelineDefaults.podAnnotations.turn={_now()}"
