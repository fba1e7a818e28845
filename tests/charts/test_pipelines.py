"""A pipeline in the values becomes a driver that runs the same configuration and upgrades as configured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.helm import Resource, executor, named, of_kind, render, revision
from tailrace.config.file import load
from tailrace.startup.pods import settings

ENVIRONMENT = {"POD_IP": "10.0.0.1", "POD_NAME": "t-tweets-x", "POD_NAMESPACE": "streams"}


def configuration(resources: list[Resource], folder: Path, name: str = "t-tweets") -> Any:
    """Read the configuration file as `tailrace run` does."""
    for file, text in revision(resources, name)["data"].items():
        (folder / file).write_text(text)
    return load(folder / "pipeline.yaml", {}).pipeline


def driver(resources: list[Resource], name: str = "t-tweets") -> Any:
    """Return the spec of the driver's Deployment."""
    return named(resources, "Deployment", name)["spec"]


def test_environments_configuration_loads(resources: list[Resource], tmp_path: Path) -> None:
    """The library reads it with the expected values."""
    read = configuration(resources, tmp_path)
    assert read.pipeline == "tweets"
    assert read.kafka.bootstrap_servers == "t-kafka-kafka-bootstrap.streams.svc:9093"
    assert read.kafka.options["ssl.ca.location"] == "/etc/tailrace/kafka/ca.crt"
    assert read.sink.topic == "hashtags"
    assert settings(read, ENVIRONMENT)["spark.driver.host"] == "10.0.0.1"


def test_each_configured_certificate_is_mounted(resources: list[Resource], tmp_path: Path) -> None:
    """In driver and executors, at the same path."""
    options = configuration(resources, tmp_path).kafka.options
    paths = {value for name, value in options.items() if name.endswith(".location")}
    for spec in (driver(resources)["template"]["spec"], executor(resources)["spec"]):
        mounts = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
        [volume] = [each for each in spec["volumes"] if each["name"] == "kafka"]
        files = {
            f"{mounts['kafka']}/{item['path']}"
            for source in volume["projected"]["sources"]
            for item in source["secret"]["items"]
        }
        assert files == paths


def test_hand_over_starts_the_new_driver_first(everything: list[Resource]) -> None:
    """It starts as a standby while the old one runs."""
    spec = driver(everything)
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert "--standby" in spec["template"]["spec"]["containers"][0]["args"]


def test_drain_ends_the_old_driver_first(everything: list[Resource]) -> None:
    """So the new one is not a standby."""
    spec = driver(everything, "t-counts")
    assert spec["strategy"] == {"type": "Recreate"}
    assert "--standby" not in spec["template"]["spec"]["containers"][0]["args"]


@pytest.mark.parametrize(("batch", "seconds"), [({}, 270), ({"drain": 30.5}, 181), ({"drain": 0}, 150)])
def test_batch_can_finish_before_the_pod_is_killed(batch: dict[str, float], seconds: int) -> None:
    """The grace period is batch.drain plus a minute, after a minute and a half for the successor."""
    made = render(values={"pipelineDefaults": {"config": {"batch": batch}}})
    assert driver(made)["template"]["spec"]["terminationGracePeriodSeconds"] == seconds


def test_readiness_is_reported_by_the_driver() -> None:
    """By a file, or on its HTTP port."""
    [container] = driver(render(values={"http": {"enabled": False}}))["template"]["spec"]["containers"]
    [file] = [each.split("=")[1] for each in container["args"] if each.startswith("--ready-file=")]
    assert container["readinessProbe"]["exec"]["command"] == ["test", "-f", file]
    assert "livenessProbe" not in container
    [container] = driver(render())["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert {"name": "http", "containerPort": 9760} in container["ports"]


def test_metrics_are_served_where_monitors_expect_them(everything: list[Resource], tmp_path: Path) -> None:
    """At every address of the pod, on the ports that probes, monitors and policies name."""
    read = configuration(everything, tmp_path).metrics
    assert (read.enabled, read.host) == (True, "0.0.0.0")
    for port, pod in ((read.port, driver(everything)["template"]), (read.gateways, executor(everything))):
        assert {"name": "http", "containerPort": port} in pod["spec"]["containers"][0]["ports"]
    off = render(values={"http": {"enabled": False}})
    assert configuration(off, tmp_path).metrics.enabled is False
    assert not of_kind(render(values={"http": {"enabled": False}, "monitoring": {"enabled": True}}), "PodMonitor")[1:]


def test_status_page_links_to_the_runbooks_of_the_alerts(resources: list[Resource], tmp_path: Path) -> None:
    """A folder is no link, so the page then names the file."""
    assert configuration(resources, tmp_path).metrics.runbooks == ""
    url = "https://example.org/runbooks"
    linked = render(values={"monitoring": {"runbooks": url}})
    assert configuration(linked, tmp_path).metrics.runbooks == url


def test_changed_configuration_or_file_is_a_revision_of_its_own() -> None:
    """The driver mounts it under another name, so it is replaced; the same values keep the driver.

    A revision never changes: a driver of the earlier one that is restarted runs what it ran before.
    """

    def made(**values: Any) -> str:
        found = revision(render(values={"pipelineDefaults": values}))
        assert found["immutable"] is True
        assert found["metadata"]["name"] == f"t-tweets-{found['metadata']['labels']['tailrace.dev/revision']}"
        return str(found["metadata"]["name"])

    names = [made(), made(), made(config={"batch": {"target": "2s"}}), made(files={"a.py": "x = 1\n"})]
    names += [made(podLabels={"team": "a"})]  # of the executors too
    assert names[0] == names[1]
    assert len(set(names)) == 4


def test_doctor_reads_the_revision_that_the_driver_runs() -> None:
    """`helm test` would otherwise check another one."""
    made = render()
    [volume] = [each for each in named(made, "Pod", "t-tweets-doctor")["spec"]["volumes"] if each["name"] == "pipeline"]
    assert volume["configMap"]["name"] == revision(made)["metadata"]["name"]


def test_files_are_next_to_the_configuration(everything: list[Resource], tmp_path: Path) -> None:
    """Unchanged."""
    configuration(everything, tmp_path)
    assert (tmp_path / "upper.py").read_text() == "def upper(rows):\n    return rows\n"


def test_disabled_pipeline_has_no_driver() -> None:
    """Its user, topics and configuration stay."""
    made = render(values={"pipelineDefaults": {"enabled": False}})
    assert driver(made)["replicas"] == 0
    assert of_kind(made, "KafkaUser")
    assert not of_kind(made, "PodDisruptionBudget")


def test_ports_agree(everything: list[Resource], tmp_path: Path) -> None:
    """Spark's settings, the container and the policies name the same ports."""
    spark = configuration(everything, tmp_path).spark
    [container] = driver(everything)["template"]["spec"]["containers"]
    ports = {each["name"]: str(each["containerPort"]) for each in container["ports"]}
    assert ports["spark"] == spark["spark.driver.port"]
    assert ports["blocks"] == spark["spark.driver.blockManager.port"] == spark["spark.blockManager.port"]
    assert ports["ui"] == spark["spark.ui.port"]
    policy = named(everything, "NetworkPolicy", "t-tweets-driver")["spec"]["ingress"][0]
    assert {str(each["port"]) for each in policy["ports"]} == {ports["spark"], ports["blocks"]}


def test_pod_options_of_a_pipeline_reach_its_pods(everything: list[Resource]) -> None:
    """Labels, variables and scheduling, for driver and executors."""
    for kind, pod in (("driver", driver(everything)["template"]), ("executor", executor(everything))):
        assert pod["metadata"]["labels"]["cost"] == "a"
        assert pod["metadata"]["annotations"]["note"] == "b"
        spec = pod["spec"]
        assert spec["nodeSelector"] == {"disk": "ssd"}
        assert spec["tolerations"][0] == {"key": "a", "operator": "Exists"}
        assert spec["priorityClassName"] == {"driver": "high", "executor": "low"}[kind]
        [spread] = spec["topologySpreadConstraints"]
        assert spread["labelSelector"]["matchLabels"]["tailrace.dev/component"] == kind
        variables = {each["name"]: each for each in spec["containers"][0]["env"]}
        assert variables["LIMIT"]["value"] == "5"
        assert variables["REGISTRY_KEY"]["valueFrom"]["secretKeyRef"] == {"name": "registry-key", "key": "key"}


def test_stateful_pipeline_gets_the_store_and_its_keys(everything: list[Resource], tmp_path: Path) -> None:
    """In driver and executors, which both write there."""
    spark = configuration(everything, tmp_path, "t-counts").spark
    assert spark["spark.hadoop.fs.s3a.endpoint"] == "http://t-object-store.streams.svc:9000"
    for spec in (driver(everything, "t-counts")["template"]["spec"], executor(everything, "t-counts")["spec"]):
        variables = {each["name"]: each for each in spec["containers"][0]["env"]}
        for name, key in (("AWS_ACCESS_KEY_ID", "access-key"), ("AWS_SECRET_ACCESS_KEY", "secret-key")):
            assert variables[name]["valueFrom"]["secretKeyRef"] == {"name": "t-object-store", "key": key}


def test_kafka_can_be_external(tmp_path: Path) -> None:
    """Certificates or a password come from Secrets; no Strimzi resource is made or needed."""
    external = {
        "bootstrapServers": "broker.example:9093",
        "options": {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"},
        "ca": {"secret": "brokers"},
        "sasl": {"secret": "tweets"},
    }
    made = render(values={"kafka": {"mode": "external", "external": external}}, apis=())
    assert not [each for each in made if "strimzi" in each["apiVersion"]]
    text = revision(made)["data"]["pipeline.yaml"]
    assert "sasl.password: ${KAFKA_PASSWORD}" in text
    variables = {each["name"]: each for each in driver(made)["template"]["spec"]["containers"][0]["env"]}
    assert variables["KAFKA_PASSWORD"]["valueFrom"]["secretKeyRef"] == {"name": "tweets", "key": "password"}
    [volume] = [each for each in executor(made)["spec"]["volumes"] if each["name"] == "kafka"]
    assert [each["secret"]["name"] for each in volume["projected"]["sources"]] == ["brokers"]


def test_driver_without_certificates_waits_for_none() -> None:
    """There is nothing to renew, and nothing to mount."""
    values = {"kafka": {"mode": "external", "external": {"bootstrapServers": "kafka:9092"}}}
    spec = driver(render(values=values, apis=()))["template"]["spec"]
    assert "--until-renewed" not in spec["containers"][0]["args"]
    assert "kafka" not in {each["name"] for each in spec["volumes"]}


def test_disruption_budget_lets_one_executor_go_at_a_time() -> None:
    """A single executor never blocks a node's drain."""
    budget = named(render("prod"), "PodDisruptionBudget", "t-tweets-executor")["spec"]
    assert budget["minAvailable"] == 2
    budget = named(render("dev"), "PodDisruptionBudget", "t-tweets-executor")["spec"]
    assert budget["minAvailable"] == 0
    assert named(render("dev"), "PodDisruptionBudget", "t-tweets")["spec"]["maxUnavailable"] == 1


def test_disruption_budget_follows_the_minimum_of_scaled_executors() -> None:
    """If the number of executors follows the backlog."""
    tweets = {
        "name": "tweets",
        "config": {
            "source": {"topics": ["tweets"]},
            "sink": {"topic": "hashtags"},
            "executors": {"min": 3, "max": 6},
        },
    }
    budget = named(render("dev", {"pipelines": [tweets]}), "PodDisruptionBudget", "t-tweets-executor")["spec"]
    assert budget["minAvailable"] == 2


def test_topics_of_the_pipelines_are_made(everything: list[Resource]) -> None:
    """The ledger as Tailrace itself would create it, and a topic for each pipeline's rejected records."""
    topics = {each["spec"]["topicName"]: each["spec"] for each in of_kind(everything, "KafkaTopic")}
    assert set(topics) == {"tweets", "hashtags", "tailrace.ledger", "tweets.rejected", "bad.words"}
    assert topics["tailrace.ledger"]["config"] == {"cleanup.policy": "compact"}
    assert topics["tailrace.ledger"]["partitions"] == 64


def test_service_and_deployment_select_the_same_pods(everything: list[Resource]) -> None:
    """The pods of one pipeline's driver."""
    service = named(everything, "Service", "t-tweets")["spec"]
    assert service["selector"] == driver(everything)["selector"]["matchLabels"]
    labels = driver(everything)["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    assert not service["selector"].items() <= executor(everything)["metadata"]["labels"].items()
