"""Driver and executors have pods of their own kinds, survive the loss of a node, and leave one in order."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from support.helm import Resource, executor, named, refusal, render, revision

SPOT = {"key": "spot", "operator": "Exists"}
LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def both(**pipeline: Any) -> tuple[Resource, Resource]:
    """Return the pods of driver and executors, with these values of the pipeline."""
    made = render(values={"pipelineDefaults": pipeline})
    return named(made, "Deployment", "t-tweets")["spec"]["template"], executor(made)


def deployment(**pipeline: Any) -> Any:
    """Return the spec of the driver's Deployment."""
    return named(render(values={"pipelineDefaults": pipeline}), "Deployment", "t-tweets")["spec"]


def variables(pod: Resource) -> dict[str, Any]:
    """Return the variables of a pod's first container."""
    return {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}


def test_executors_may_live_where_the_driver_may_not() -> None:
    """On spot nodes: selector and toleration are theirs alone."""
    driver, executors = both(
        nodeSelector={"pool": "steady"},
        executors={"pod": {"nodeSelector": {"pool": "spot"}, "tolerations": [SPOT], "labels": {"cost": "low"}}},
    )
    assert driver["spec"]["nodeSelector"] == {"pool": "steady"}
    assert executors["spec"]["nodeSelector"] == {"pool": "spot"}
    assert SPOT in executors["spec"]["tolerations"]
    assert SPOT not in driver["spec"]["tolerations"]
    assert executors["metadata"]["labels"]["cost"] == "low"
    assert "cost" not in driver["metadata"]["labels"]


@pytest.mark.parametrize("role", ["driver", "executors"])
def test_role_has_variables_volumes_and_sidecars_of_its_own(role: str) -> None:
    """They are added to those of the pipeline, in the pods of one role only."""
    pods = dict(
        zip(
            ("driver", "executors"),
            both(
                env={"SHARED": "1", "CHANGED": "pipeline"},
                podAnnotations={"note": "all"},
                **{
                    role: {
                        "pod": {
                            "env": {"OWN": "2", "CHANGED": "role"},
                            "annotations": {"own": "x"},
                            "volumes": [{"name": "models", "emptyDir": {}}],
                            "volumeMounts": [{"name": "models", "mountPath": "/models"}],
                            "sidecars": [{"name": "proxy", "image": "proxy:1"}],
                        }
                    }
                },
            ),
            strict=True,
        )
    )
    own = pods.pop(role)
    [other] = pods.values()
    assert {name: variables(own)[name] for name in ("SHARED", "OWN", "CHANGED")} == {
        "SHARED": "1", "OWN": "2", "CHANGED": "role",
    }  # fmt: skip
    assert variables(other)["CHANGED"] == "pipeline"
    assert "OWN" not in variables(other)
    assert (own["metadata"]["annotations"], other["metadata"]["annotations"]) == (
        {"note": "all", "own": "x"},
        {"note": "all"},
    )
    assert {"name": "models", "emptyDir": {}} in own["spec"]["volumes"]
    assert {"name": "models", "mountPath": "/models"} in own["spec"]["containers"][0]["volumeMounts"]
    assert [each["name"] for each in own["spec"]["containers"]][1:] == ["proxy"]
    assert len(other["spec"]["containers"]) == 1


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        ({"volumes": [{"name": "run", "emptyDir": {}}]}, "which the chart itself mounts"),
        ({"volumes": [{"name": "live", "emptyDir": {}}]}, "which the chart itself mounts"),
        ({"sidecars": [{"name": "executor", "image": "x"}]}, "one of the chart's own containers"),
        ({"env": {"POD_NAME": "x"}}, "which the chart itself sets"),
        ({"env": {"DB_PASSWORD": "hunter2"}}, "which is a secret"),
    ],
    ids=["volume", "probe", "sidecar", "variable", "secret"],
)
def test_what_a_role_may_not_replace_is_refused(pod: dict[str, Any], message: str) -> None:
    """With the place in the values; a secret's value is not repeated."""
    found = refusal({"pipelineDefaults": {"executors": {"pod": pod}}})
    assert message in found
    assert "executors.pod." in found
    assert "hunter2" not in found


def test_pods_leave_a_lost_node_within_seconds() -> None:
    """Kubernetes would wait five minutes; a driver that still runs there is fenced."""
    for pod in both(nodeLossSeconds=7):
        found = {each["key"]: each for each in pod["spec"]["tolerations"]}
        assert {name: found[name]["tolerationSeconds"] for name in LOST} == dict.fromkeys(LOST, 7)
        assert all(found[name]["effect"] == "NoExecute" for name in LOST)


@pytest.mark.parametrize(
    "given",
    [{"nodeLossSeconds": -1}, {"tolerations": [{"operator": "Exists"}]}],
    ids=["switched off", "everything is tolerated"],
)
def test_kubernetes_own_patience_with_a_lost_node_can_be_kept(given: dict[str, Any]) -> None:
    """Nor is a toleration of the user's own overruled."""
    for pod in both(**given):
        assert not [each for each in pod["spec"].get("tolerations", []) if each.get("key") in LOST]


def test_toleration_of_the_users_own_counts() -> None:
    """One taint is theirs, the other is the chart's."""
    own = {"key": LOST[0], "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
    driver, _ = both(tolerations=[own])
    found = {each["key"]: each["tolerationSeconds"] for each in driver["spec"]["tolerations"]}
    assert found == {LOST[0]: 60, LOST[1]: 10}


def test_driver_notices_a_lost_executor_within_a_minute() -> None:
    """Spark's own limit is two minutes; a pipeline may set another."""

    def limit(**config: Any) -> str:
        made = revision(render(values={"pipelineDefaults": {"config": config}}))["data"]["pipeline.yaml"]
        return str(yaml.safe_load(made)["spark"]["spark.network.timeout"])

    assert limit() == "25s"
    assert limit(spark={"spark.network.timeout": "3m"}) == "3m"


def test_executors_of_a_lost_node_are_missed_soon() -> None:
    """Spark's watch overlooks a pod that is deleted at once; only its next look at all pods makes another."""
    made = revision(render())["data"]["pipeline.yaml"]
    assert yaml.safe_load(made)["spark"]["spark.kubernetes.executor.apiPollingInterval"] == "5s"


def test_standby_waits_on_another_node() -> None:
    """If there is one; both run the same configuration."""
    spec = deployment(driver={"standbys": 1})
    assert spec["replicas"] == 2
    [term] = spec["template"]["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert term["podAffinityTerm"]["labelSelector"]["matchLabels"] == spec["selector"]["matchLabels"]
    assert deployment()["replicas"] == 1
    assert "affinity" not in deployment()["template"]["spec"]


def test_affinity_of_the_users_own_is_kept_with_a_standby() -> None:
    """It may have reasons that the chart does not know."""
    spec = deployment(driver={"standbys": 1, "pod": {"affinity": {"nodeAffinity": {}}}})
    assert spec["template"]["spec"]["affinity"] == {"nodeAffinity": {}}


def test_standby_beside_a_driver_that_drains_first_is_refused() -> None:
    """Without --standby the second driver would fence the first, and the first the second, forever."""
    assert "driver.standbys is 1" in refusal({"pipelineDefaults": {"upgrade": "drain", "driver": {"standbys": 1}}})


def test_driver_of_a_drained_node_works_on_until_its_successor_is_ready() -> None:
    """Its hook waits for another pod of the same pipeline, and the kubelet for the hook and the last batch."""
    template = deployment(successorSeconds=45)["template"]
    [container] = template["spec"]["containers"]
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command[:2] == ["tailrace", "handover"]
    options = dict(each.removeprefix("--").split("=", 1) for each in command[2:])
    assert options["limit"] == "45"
    chosen = dict(each.split("=") for each in options["selector"].strip(",").split(","))
    assert chosen.items() <= template["metadata"]["labels"].items()
    assert chosen["tailrace.dev/component"] == "driver"
    assert template["spec"]["terminationGracePeriodSeconds"] == 120 + 60 + 45


@pytest.mark.parametrize("given", [{"successorSeconds": 0}, {"upgrade": "drain"}], ids=["switched off", "drain"])
def test_driver_ends_at_once_where_nobody_is_to_wait(given: dict[str, Any]) -> None:
    """A driver that drains has no successor beside it."""
    [container] = deployment(**given)["template"]["spec"]["containers"]
    assert "lifecycle" not in container


@pytest.mark.parametrize(("upgrade", "by_successor"), [("hand-over", True), ("drain", False)])
def test_renewed_certificate_is_a_hand_over(upgrade: str, by_successor: bool) -> None:
    """Or a restart in place, where drivers do not overlap."""
    [container] = deployment(upgrade=upgrade)["template"]["spec"]["containers"]
    assert "--until-renewed" in container["args"]
    assert ("--by-successor" in container["args"]) is by_successor
