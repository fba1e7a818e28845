"""Every environment renders into what Kubernetes and Strimzi take."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from support import schemas
from support.helm import CHART, ENVIRONMENTS, LIMIT, SHARED, Resource, helm, of_kind, render, tool

NOT_OURS = {"PodMonitor", "PrometheusRule"}  # no schema of theirs is at hand


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The schemas, made once."""
    folder = tmp_path_factory.mktemp("schemas")
    definitions = SHARED / "strimzi" / "crds"
    schemas.write(folder, definitions if definitions.is_dir() else None)
    return folder


def conform(resources: list[Resource], folder: Path) -> str:
    """What kubeconform finds wrong."""
    known = [each for each in resources if each["kind"] not in NOT_OURS]
    if not list(folder.glob("kafka-*")):
        known = [each for each in known if not each["apiVersion"].startswith("kafka.strimzi.io")]
    done = subprocess.run(
        [tool("kubeconform"), "-strict", "-output", "json", "-schema-location",
         f"{folder}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"],
        input="---\n".join(json.dumps(each) + "\n" for each in known),
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    found = json.loads(done.stdout).get("resources") or []
    return "\n".join(f"{each['kind']} {each['name']}: {each['msg']}" for each in found) or done.stderr


def test_an_environment_is_valid(resources: list[Resource], folder: Path) -> None:
    """By the schemas, in which an unknown field is an error."""
    assert conform(resources, folder) == ""


def test_everything_at_once_is_valid(everything: list[Resource], folder: Path) -> None:
    """Every option that adds something is on."""
    assert conform(everything, folder) == ""


def test_the_schemas_refuse_an_unknown_field(everything: list[Resource], folder: Path) -> None:
    """Or the tests above would prove nothing."""
    [deployment, *_] = of_kind(json.loads(json.dumps(everything)), "Deployment")
    deployment["spec"]["template"]["spec"]["hostNetwrk"] = True
    assert "hostNetwrk" in conform([deployment], folder)


def test_the_templates_of_executors_are_pods(everything: list[Resource], folder: Path) -> None:
    """Spark reads them as such."""
    made = [
        yaml.safe_load(each["data"]["executor.yaml"])
        for each in of_kind(everything, "ConfigMap")
        if "executor.yaml" in each["data"]
    ]
    assert len(made) == 2
    assert conform([{**each, "metadata": {**each["metadata"], "name": "x"}} for each in made], folder) == ""


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_lint_finds_nothing(name: str) -> None:
    """Not even a hint."""
    done = helm("lint", "--strict", str(CHART), "--values", str(CHART / "environments" / f"{name}.yaml"))
    # Without a cluster Helm's lint knows no APIs but Kubernetes' own, and says what a user would read.
    problems = [line for line in done.stdout.splitlines() if "[ERROR]" in line or "[WARNING]" in line]
    assert all("kafka.strimzi.io/v1" in line for line in problems), done.stdout


def test_each_object_has_a_name_of_its_own(everything: list[Resource]) -> None:
    """Two of one name would be one object."""
    names = [(each["apiVersion"], each["kind"], each["metadata"]["name"]) for each in everything]
    assert sorted(names) == sorted(set(names))


def test_each_object_says_whose_it_is(everything: list[Resource]) -> None:
    """By the labels that people and tools look for."""
    for each in everything:
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "t", each["metadata"]["name"]
        assert labels["team"] == "streams", each["metadata"]["name"]
        assert each["metadata"]["namespace"] == "streams", each["metadata"]["name"]


def test_production_loses_a_broker_and_goes_on() -> None:
    """Three controllers, three brokers apart; three copies of each record, two of them before it counts."""
    made = render("prod")
    [kafka] = of_kind(made, "Kafka")
    config = kafka["spec"]["kafka"]["config"]
    assert (config["default.replication.factor"], config["min.insync.replicas"]) == (3, 2)
    assert (config["transaction.state.log.replication.factor"], config["transaction.state.log.min.isr"]) == (3, 2)
    assert config["offsets.topic.replication.factor"] == 3
    assert kafka["spec"]["kafka"]["rack"]["topologyKey"] == "topology.kubernetes.io/zone"
    pools = {each["metadata"]["name"]: each["spec"] for each in of_kind(made, "KafkaNodePool")}
    assert {name: (pool["roles"], pool["replicas"]) for name, pool in pools.items()} == {
        "controllers": (["controller"], 3),
        "brokers": (["broker"], 3),
    }
    for pool in pools.values():
        assert (
            "requiredDuringSchedulingIgnoredDuringExecution" in pool["template"]["pod"]["affinity"]["podAntiAffinity"]
        )
    assert {each["spec"]["replicas"] for each in of_kind(made, "KafkaTopic")} == {3}


def test_what_is_kept_is_declared(environment: str, resources: list[Resource]) -> None:
    """Kafka outlives a release in staging and production, and nothing else does."""
    kept = {
        each["kind"]
        for each in resources
        if each["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep"
    }
    assert kept == (set() if environment == "dev" else {"Kafka", "KafkaNodePool", "KafkaTopic"})


def test_topics_do_not_hold_up_an_uninstall(environment: str, resources: list[Resource]) -> None:
    """Where the cluster goes with the release, its topic operator cannot let go of finalizers any more."""
    [kafka] = of_kind(resources, "Kafka")
    variables = kafka["spec"]["entityOperator"]["template"]["topicOperatorContainer"].get("env", [])
    assert variables == ([{"name": "STRIMZI_USE_FINALIZERS", "value": "false"}] if environment == "dev" else [])


def test_monitoring_is_there_where_its_api_is() -> None:
    """A cluster without Prometheus' operator takes the rest."""
    values = {"monitoring": {"enabled": True}}
    assert of_kind(render("dev", values), "PodMonitor")
    assert not of_kind(render("dev", values, apis=("kafka.strimzi.io/v1",)), "PodMonitor", "PrometheusRule")


def test_rules_and_dashboards_are_those_of_the_folders() -> None:
    """Each file is one object."""
    made = render("prod")
    rules = {each["metadata"]["name"]: each["spec"] for each in of_kind(made, "PrometheusRule")}
    assert set(rules) == {f"t-{file.stem}" for file in (CHART / "rules").glob("*.yaml")}
    assert all(spec["groups"] for spec in rules.values())
    boards = {
        each["metadata"]["name"]: each
        for each in of_kind(made, "ConfigMap")
        if "-dashboard-" in each["metadata"]["name"]
    }
    assert set(boards) == {f"t-dashboard-{file.stem}" for file in (CHART / "dashboards").glob("*.json")}
    for each in boards.values():
        assert [json.loads(text) for text in each["data"].values()]
