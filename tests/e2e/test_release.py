"""A release on a real Kubernetes, from install to uninstall: every record once, whatever is killed or replaced.

The tests build on each other and run in this order. After each, an independent reader counts everything.
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


def test_dev_environment_installs_from_nothing_and_tweets_flow(release: Release) -> None:
    """Helm waits until the driver is ready, in a namespace that accepts only restricted pods."""
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
    """Return the release once it has settled after the previous test."""
    release.settled()
    return release


def test_helm_test_succeeds(release: Release) -> None:
    """`tailrace doctor` finds nothing wrong, in a pod like the driver's and with its certificate."""
    output = cluster.helm("test", NAME, "-n", release.namespace, "--logs")
    assert "Succeeded" in output


def test_executors_are_owned_by_the_driver(running: Release) -> None:
    """They are owned by its pod, and have no token."""
    executors = running.pods("executor")
    assert executors
    for each in executors:
        assert [owner["name"] for owner in each["metadata"]["ownerReferences"]] == [running.driver()]
        assert each["spec"]["automountServiceAccountToken"] is False


def test_killed_driver_is_restarted(running: Release) -> None:
    """The kubelet restarts it in the same pod, and the previous executors are deleted."""
    before, restarts = running.executors(), running.restarts()
    with running.feeding():
        running.kill(running.driver(), "driver", "tailrace run")
        running.until(lambda: running.restarts() > restarts, "the driver's container to restart")
        running.settled()
    running.count("driver killed")
    assert not running.executors() & before


def test_killed_executor_is_replaced(running: Release) -> None:
    """The driver replaces it, and continues."""
    restarts = running.restarts()
    with running.feeding():
        [executor] = running.executors()
        running.kill(executor, "executor", "KubernetesExecutorBackend")
        running.until(lambda: running.executors() not in (set(), {executor}), "another executor")
        running.settled()
    running.count("executor killed")
    assert running.restarts() == restarts


def test_killed_gateway_is_restarted(running: Release) -> None:
    """The next task restarts it in the same executor."""
    running.feed("tweets", 500)
    running.count("before a gateway is killed")  # the first task starts it
    [executor], restarts = running.executors(), running.restarts()
    with running.feeding():
        running.kill(executor, "executor", "tailrace.gateway.server")
        running.feed("tweets", 500)
    running.count("gateway killed")
    assert (running.executors(), running.restarts()) == ({executor}, restarts)


def test_release_survives_the_kill_of_its_only_broker(running: Release) -> None:
    """The broker's container restarts with its data, and the pipeline waits for it."""
    # Strimzi's entity operator has `strimzi.io/kind=Kafka` as well.
    brokers = ("pods", running.namespace, "-l", "strimzi.io/component-type=kafka")
    [broker] = cluster.items(*brokers)

    def restarts() -> int:
        [pod] = cluster.items(*brokers)
        return int(pod["status"]["containerStatuses"][0]["restartCount"])

    before = restarts()
    with running.feeding():
        running.kill(releases.name(broker), "kafka", "kafka.Kafka")
        running.until(lambda: restarts() > before, "the broker's container to restart")
        running.settled()
        running.feed("tweets", 500)
    running.count("broker killed")


def test_evicted_executor_is_replaced(running: Release) -> None:
    """As when a node is drained: the disruption budget permits it, and the driver makes another executor."""
    [executor] = running.executors()
    with running.feeding():
        running.evict(executor)
        running.until(lambda: running.executors() not in (set(), {executor}), "another executor")
        running.settled()
    running.count("executor evicted")


def test_evicted_driver_hands_over(running: Release) -> None:
    """As when its node is drained: it works on until the pod that replaces it is ready; the test prints the gap."""
    old = running.driver()
    with running.feeding():
        since = running.flows()
        running.evict(old)
        running.until(lambda: releases.gone(old, running.namespace), "the evicted driver to end")
        running.settled()
        running.flows()
    running.count("driver evicted")
    [waited] = [each for each in running.events(running.driver()) if each["event"] == "standby"]
    assert waited["leader"] is not None
    print(f"driver evicted: longest silence {running.gap(since):.1f} s", flush=True)  # noqa: T201


@pytest.mark.parametrize("upgrade", ["hand-over", "drain"])
def test_upgrade_keeps_exactly_once_while_records_flow(running: Release, upgrade: str) -> None:
    """The new driver continues where the old one stopped; the test prints the longest gap in the output."""
    old = running.driver()
    with running.feeding():
        since = running.flows()
        started = time.monotonic()
        running.helm("upgrade", "--wait", "--timeout=15m", f"--set=pipelineDefaults.upgrade={upgrade}", _turn())
        running.until(lambda: old not in {releases.name(pod) for pod in running.pods("driver")}, "the old driver to go")
        running.settled()
        running.flows()
    running.count(f"upgrade by {upgrade}")
    took = releases.since(started)
    print(f"upgrade by {upgrade}: {took}, longest silence {running.gap(since):.1f} s", flush=True)  # noqa: T201


def test_executors_scale_with_the_backlog(running: Release) -> None:
    """One is enough without a backlog; a backlog of more than a few seconds adds another."""
    at = "--set=pipelines.tweets.config"
    limits = [f"{at}.executors.{limit}" for limit in ("min=1", "max=2", "backlog=2s", "settle=30s")]
    # The backlog must last: in growing batches, a quiet machine reads it within three seconds.
    running.helm("upgrade", "--wait", "--timeout=15m", *limits, f"{at}.batch.max_records=1000")
    running.settled()
    running.until(lambda: len(running.executors()) == 1, "the older driver's executor to go")
    running.feed("tweets", 60_000)
    running.until(lambda: len(running.executors()) == 2, "a second executor")
    running.count("executors scaled up")
    running.until(lambda: len(running.executors()) == 1, "the second executor to go")
    running.feed("tweets", 1000)
    running.count("executors scaled down")
    wishes = [each["wanted"] for each in running.events(running.driver()) if each["event"] == "executors"]
    print(f"executors wanted: {wishes}", flush=True)  # noqa: T201
    assert (max(wishes), wishes[-1]) == (2, 1)


def test_rollback_restores_the_previous_template(running: Release) -> None:
    """The driver's pod is made from the template before the last upgrade, while records flow."""

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


def test_old_driver_outlives_an_upgrade_that_cannot_work(running: Release) -> None:
    """It is killed, then its pod is deleted; each time it comes back with its own configuration, and goes on.

    Once it ran the configuration of the failed upgrade, and both drivers were down.
    """
    old, selected = running.driver(), f"deploy/{NAME}-tweets"
    kept = running.kubectl("get", selected, "-o", "jsonpath={.spec.template.spec.volumes[0].configMap.name}")
    with running.feeding():
        running.helm("upgrade", "--set=pipelines.tweets.config.process.function=nowhere.py:nothing")
        running.until(lambda: "TR-102" in _logs(running), "the new driver to miss its function")
        running.kill(old, "driver", "tailrace run")
        running.until(lambda: releases.restarts(running.pod(old)) > 0, "the old driver's container to restart")
        running.until(lambda: releases.ready(running.pod(old)), "the old driver to be ready again")
        running.kubectl("delete", "pod", old, "--wait=true")
        running.until(lambda: any(map(releases.ready, running.pods("driver"))), "a pod with the old configuration")
    running.count("an upgrade that cannot work")
    [ready] = [each for each in running.pods("driver") if releases.ready(each)]
    assert releases.revision(ready) == kept
    with running.feeding():
        running.kubectl("rollout", "undo", selected)
        running.settled()
    running.feed("tweets", 500)
    running.count("rollout undo")
    cluster.helm("rollback", NAME, "-n", running.namespace, "--wait", "--timeout=15m")
    running.settled()
    assert releases.revision(running.pods("driver")[0]) == kept
    select = ("-l", "tailrace.dev/pipeline=tweets,tailrace.dev/revision")
    revisions = cluster.items("configmaps", running.namespace, *select)
    print(f"revisions on the cluster: {len(revisions)}", flush=True)  # noqa: T201
    assert 1 < len(revisions) <= 5


def test_expired_certificate_is_refused_and_named(running: Release) -> None:
    """The driver reports which certificate has expired; with a new one it continues by itself."""
    if os.environ.get("E2E_STRIMZI") == "real":
        pytest.skip("Strimzi's own operator would replace the expired certificate")

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
        log = _logs(running)
        return "TR-509" in log and f"CN={user}, has expired" in log

    running.until(refused, "the driver to report its expired certificate")
    certificate(30)
    running.settled()
    running.feed("tweets", 500)
    running.count("certificate expired and renewed")


def test_stateful_pipeline_survives_the_loss_of_its_driver(release: Release) -> None:
    """Its state is on the embedded object store; the driver's pod is deleted."""
    more = f"--values={Path(__file__).parent / 'stateful.yaml'}"
    # `kubectl rollout undo` above owns what it has changed in the Deployment; without this, Helm reports a conflict.
    release.helm("upgrade", "--wait", "--timeout=15m", "--force-conflicts", more)
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


def test_wrong_value_fails_at_install_and_is_named(release: Release) -> None:
    """An unknown key and a contradictory value both fail, and nothing is created."""
    before = release.kubectl("get", "all", "-o", "name")
    for wrong, named in (
        ("pipelines.tweets.config.sink.topc=x", "topc"),
        ("kafka.strimzi.replication=3", "kafka.strimzi.replication is 3"),
    ):
        output = cluster.helm(
            "install", "wrong", str(CHART), "-n", release.namespace,
            f"--values={CHART / 'environments' / 'dev.yaml'}", f"--set={wrong}", check=False,
        )  # fmt: skip
        assert named in output
        print(f"{wrong}: refused", flush=True)  # noqa: T201
    assert "wrong" not in cluster.helm("list", "-n", release.namespace, "-q")
    assert release.kubectl("get", "all", "-o", "name") == before


def test_uninstall_leaves_nothing_behind(release: Release) -> None:
    """Only the objects that Kubernetes puts into every namespace remain."""
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


def _logs(release: Release) -> str:
    select = f"tailrace.dev/component=driver,tailrace.dev/release={NAME}"
    return release.kubectl("logs", "-l", select, check=False)


def _now() -> int:
    return int(time.time() * 1000)


def _turn() -> str:
    """Return a changed value, so that an upgrade with no other change replaces the driver's pod."""
    return f"--set-string=pipelineDefaults.podAnnotations.turn={_now()}"
