"""Every environment renders to resources that Kubernetes and Strimzi accept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from support.helm import CHART, ENVIRONMENTS, Resource, helm, of_kind, render, unfit


def test_environment_matches_the_schemas(resources: list[Resource], folder: Path) -> None:
    """An unknown field is an error."""
    assert unfit(resources, folder) == ""


def test_all_options_together_match_the_schemas(everything: list[Resource], folder: Path) -> None:
    """Every option that adds something is on."""
    assert unfit(everything, folder) == ""


def test_schemas_refuse_an_unknown_field(everything: list[Resource], folder: Path) -> None:
    """Otherwise the tests above would prove nothing."""
    [deployment, *_] = of_kind(json.loads(json.dumps(everything)), "Deployment")
    deployment["spec"]["template"]["spec"]["hostNetwrk"] = True
    assert "hostNetwrk" in unfit([deployment], folder)


def test_executor_templates_are_valid_pods(everything: list[Resource], folder: Path) -> None:
    """Spark makes the executors from them."""
    made = [
        yaml.safe_load(each["data"]["executor.yaml"])
        for each in of_kind(everything, "ConfigMap")
        if "executor.yaml" in each["data"]
    ]
    assert len(made) == 2
    assert unfit([{**each, "metadata": {**each["metadata"], "name": "x"}} for each in made], folder) == ""


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_lint_finds_no_problem(name: str) -> None:
    """Neither an error nor a warning."""
    done = helm("lint", "--strict", str(CHART), "--values", str(CHART / "environments" / f"{name}.yaml"))
    # Without a cluster, lint knows only Kubernetes' own APIs, so the chart's message about Strimzi is expected.
    problems = [line for line in done.stdout.splitlines() if "[ERROR]" in line or "[WARNING]" in line]
    assert all("kafka.strimzi.io/v1" in line for line in problems), done.stdout


def test_packaged_chart_renders_the_same(environment: str, resources: list[Resource], tmp_path: Path) -> None:
    """No file that a template reads is left out of the package."""
    done = helm("package", str(CHART), "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    [package] = tmp_path.glob("tailrace-*.tgz")
    values = str(CHART / "environments" / f"{environment}.yaml")
    apis = ("--api-versions", "kafka.strimzi.io/v1", "--api-versions", "monitoring.coreos.com/v1")
    made = helm("template", "t", str(package), "--namespace", "streams", "--values", values, *apis)
    assert made.returncode == 0, made.stderr
    assert [each for each in yaml.safe_load_all(made.stdout) if each] == resources


def test_each_object_has_a_unique_name(everything: list[Resource]) -> None:
    """Two objects with the same name would overwrite each other."""
    names = [(each["apiVersion"], each["kind"], each["metadata"]["name"]) for each in everything]
    assert sorted(names) == sorted(set(names))


def test_each_object_is_labelled_with_its_release(everything: list[Resource]) -> None:
    """It has the common labels, and the release's namespace."""
    for each in everything:
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "t", each["metadata"]["name"]
        assert labels["team"] == "streams", each["metadata"]["name"]
        assert each["metadata"]["namespace"] == "streams", each["metadata"]["name"]


def test_production_survives_the_loss_of_a_broker() -> None:
    """Three controllers and three brokers on separate nodes; three replicas of each record, two to acknowledge it."""
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


def test_only_kafka_outlives_a_release(environment: str, resources: list[Resource]) -> None:
    """In staging and production; in dev, nothing does."""
    kept = {
        each["kind"]
        for each in resources
        if each["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep"
    }
    assert kept == (set() if environment == "dev" else {"Kafka", "KafkaNodePool", "KafkaTopic"})


def test_topics_do_not_block_an_uninstall(environment: str, resources: list[Resource]) -> None:
    """If the cluster is deleted with the release, its topic operator can no longer remove finalizers."""
    [kafka] = of_kind(resources, "Kafka")
    variables = kafka["spec"]["entityOperator"]["template"]["topicOperatorContainer"].get("env", [])
    assert variables == ([{"name": "STRIMZI_USE_FINALIZERS", "value": "false"}] if environment == "dev" else [])


def test_monitoring_is_rendered_only_if_its_api_exists() -> None:
    """A cluster without Prometheus' operator accepts everything else."""
    values = {"monitoring": {"enabled": True}}
    assert of_kind(render("dev", values), "PodMonitor")
    assert not of_kind(render("dev", values, apis=("kafka.strimzi.io/v1",)), "PodMonitor", "PrometheusRule")


def test_each_rule_and_dashboard_file_becomes_one_object() -> None:
    """No file is left out."""
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
