"""Every pod of a release meets the restricted Pod Security Standard; tokens, Secrets and the network are limited."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.helm import Resource, executor, of_kind, pods, refusal, render

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def unrestricted(spec: dict[str, Any]) -> list[str]:
    """List a pod's violations of the restricted Pod Security Standard, and writable root file systems."""
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    pod = spec.get("securityContext", {})
    if pod.get("seccompProfile", {}).get("type") not in {"RuntimeDefault", "Localhost"}:
        found.append("seccompProfile")
    if not pod.get("runAsNonRoot") or pod.get("runAsUser", 1) == 0:
        found.append("runAsNonRoot")
    found += [f"volume {each['name']}" for each in spec.get("volumes", []) if not (each.keys() - {"name"}) <= VOLUMES]
    for each in [*spec["containers"], *spec.get("initContainers", [])]:
        own = each.get("securityContext", {})
        if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
            found.append(f"{each['name']}: privileges")
        if own.get("capabilities", {}).get("drop") != ["ALL"] or own["capabilities"].get("add"):
            found.append(f"{each['name']}: capabilities")
        if not own.get("readOnlyRootFilesystem"):
            found.append(f"{each['name']}: root file system")
        found += [f"{each['name']}: host port" for port in each.get("ports", []) if "hostPort" in port]
    return found


def test_every_pod_is_restricted(resources: list[Resource]) -> None:
    """Including executors, whose pods Spark makes."""
    found = {name: unrestricted(pod["spec"]) for name, pod in pods(resources).items()}
    assert len(found) >= 3
    assert {name: each for name, each in found.items() if each} == {}


def test_every_pod_is_restricted_with_all_options(everything: list[Resource]) -> None:
    """Including object store, Job and test."""
    found = {name: unrestricted(pod["spec"]) for name, pod in pods(everything).items()}
    assert len(found) == 8
    assert {name: each for name, each in found.items() if each} == {}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"hostNetwork": True}, "hostNetwork"),
        ({"securityContext": {}}, "seccompProfile"),
        ({"volumes": [{"name": "a", "hostPath": {}}]}, "volume a"),
        ({"containers": [{"name": "b"}]}, "b: privileges"),
    ],
)
def test_check_finds_each_violation(everything: list[Resource], change: dict[str, Any], found: str) -> None:
    """Otherwise the tests above would prove nothing."""
    assert found in unrestricted({**executor(everything)["spec"], **change})


def test_strimzis_pods_are_restricted(resources: list[Resource]) -> None:
    """Except for their root file systems, which Strimzi decides."""
    for pool in of_kind(resources, "KafkaNodePool"):
        template = pool["spec"]["template"]
        assert template["pod"]["securityContext"]["runAsNonRoot"] is True
        assert template["pod"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in ("kafkaContainer", "initContainer"):
            context = template[container]["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_every_container_requests_its_resources(everything: list[Resource]) -> None:
    """It has a memory limit, too; those of executors are Spark's settings."""
    for name, pod in pods(everything).items():
        for container in pod["spec"]["containers"]:
            if not name.startswith("executor"):
                assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), name
                assert "memory" in container["resources"]["limits"], name


def test_only_drivers_get_a_token(everything: list[Resource]) -> None:
    """No other pod uses the Kubernetes API."""
    with_token = {name for name, pod in pods(everything).items() if pod["spec"]["automountServiceAccountToken"]}
    assert with_token == {"Deployment t-tweets", "Deployment t-counts"}
    assert not any(each["automountServiceAccountToken"] for each in of_kind(everything, "ServiceAccount"))


def test_no_secret_is_in_a_config_map_or_an_argument(everything: list[Resource]) -> None:
    """Values of Secrets come as variables or files."""
    [secret] = of_kind(everything, "Secret")
    values = set(secret["data"].values())
    assert len(values) == 2
    others = json.dumps([each for each in everything if each["kind"] != "Secret"])
    assert not [value for value in values if value in others]
    for pod in pods(everything).values():
        for container in pod["spec"]["containers"]:
            for variable in container.get("env", []):
                if any(word in variable["name"] for word in ("KEY", "SECRET", "PASSWORD", "ROOT")):
                    assert "secretKeyRef" in variable["valueFrom"], variable["name"]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"kafka": {"external": {"options": {"sasl.password": "x"}}}}, "kafka.external.options"),
        ({"pipelineDefaults": {"config": {"spark": {"spark.hadoop.fs.s3a.secret.key": "x"}}}}, "config.spark"),
        ({"pipelineDefaults": {"env": {"API_TOKEN": "x"}}}, "env"),
        ({"pipelineDefaults": {"env": {"API_KEY": "x"}}}, "env"),
        ({"pipelineDefaults": {"env": {"DB_PWD": "x"}}}, "env"),
        ({"pipelineDefaults": {"env": {"SSH_PASSPHRASE": "x"}}}, "env"),
        ({"pipelineDefaults": {"env": {"DB_CREDENTIALS": "x"}}}, "env"),
        ({"pipelineDefaults": {"config": {"spark": {"spark.hadoop.fs.azure.account.key.a": "x"}}}}, "config.spark"),
        ({"pipelineDefaults": {"config": {"process": {"arguments": {"password": "x"}}}}}, "config.process.arguments"),
        (
            {"pipelineDefaults": {"config": {"process": {"arguments": {"db": {"user": "me", "password": "x"}}}}}},
            'config.process.arguments has "password"',
        ),
        (
            {"pipelineDefaults": {"config": {"process": {"arguments": {"keys": [{"token": "${A}"}, {"token": "x"}]}}}}},
            'config.process.arguments has "token"',
        ),
        ({"pipelineDefaults": {"config": {"spark": {"spark.db.password": 12345}}}}, "config.spark"),
        (
            {
                "pipelineDefaults": {
                    "config": {"source": {"registry": {"url": "u", "options": {"basic.auth.user.info": "x"}}}}
                }
            },
            "config.source.registry.options",
        ),
    ],
)
def test_secret_in_the_values_is_refused(values: dict[str, Any], says: str) -> None:
    """The message names its place."""
    message = refusal(values=values)
    assert "a secret, which would be readable" in message
    assert says in message


def test_secret_in_a_url_or_an_argument_is_refused() -> None:
    """Anyone who can see the ConfigMap or the pod could read it."""
    url = {"pipelineDefaults": {"config": {"source": {"registry": {"url": "https://me:x@registry"}}}}}
    assert "config.source.registry.url contains a user" in refusal(values=url)
    embedded = {"image": {"repository": "s3"}, "args": ["--access", "a", "--secret", "b", "posix", "/data"]}
    message = refusal(values={"objectStorage": {"mode": "embedded", "embedded": embedded}})
    assert 'objectStorage.embedded.args has "--access"' in message


def test_argument_named_max_tokens_is_not_a_secret() -> None:
    """A function's argument may have this name."""
    assert render(values={"pipelineDefaults": {"config": {"process": {"arguments": {"max_tokens": 5}}}}})


@pytest.mark.parametrize(
    "config",
    [
        {"spark": {"spark.hadoop.fs.s3a.aws.credentials.provider": "org.example.Provider"}},
        {"source": {"registry": {"url": "http://r", "options": {"bearer.auth.credentials.source": "STATIC_TOKEN"}}}},
        {"source": {"registry": {"url": "http://r", "options": {"basic.auth.user.info": "${NAME}:${PASSWORD}"}}}},
        {"process": {"arguments": {"db": {"user": "me", "password": "${PASSWORD}"}}}},
    ],
)
def test_setting_that_only_names_where_a_secret_is_is_none(config: dict[str, Any]) -> None:
    """A class, a kind of authentication, or the names of variables."""
    assert render(values={"pipelineDefaults": {"config": config}})


def test_variable_is_accepted_in_place_of_a_secret() -> None:
    """The refusal recommends `${NAME}`."""
    assert render(values={"pipelineDefaults": {"config": {"spark": {"spark.hadoop.fs.s3a.secret.key": "${S3_KEY}"}}}})


def test_certificates_are_projected_item_by_item(resources: list[Resource]) -> None:
    """The CA must be the cluster's; the ca.crt in Strimzi's Secret of a user is the clients' CA."""
    for name, pod in pods(resources).items():
        sources = [v["projected"]["sources"] for v in pod["spec"]["volumes"] if v["name"] == "kafka"]
        taken = {
            (source["secret"]["name"], item["key"]): item["path"]
            for source in sources[0]
            for item in source["secret"]["items"]
        }
        assert taken == {
            ("t-kafka-cluster-ca-cert", "ca.crt"): "ca.crt",
            ("t-tweets", "user.crt"): "user.crt",
            ("t-tweets", "user.key"): "user.key",
        }, name


def test_traffic_is_denied_by_default(everything: list[Resource]) -> None:
    """One policy selects every pod of the release, and allows nothing."""
    [deny] = [each for each in of_kind(everything, "NetworkPolicy") if each["metadata"]["name"] == "t-default-deny"]
    assert deny["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert not deny["spec"].keys() & {"ingress", "egress"}
    selected = deny["spec"]["podSelector"]["matchLabels"].items()
    for name, pod in pods(everything).items():
        assert selected <= pod["metadata"]["labels"].items(), name


def test_each_policy_selects_pods_that_exist(everything: list[Resource]) -> None:
    """A selector that matches no pod silently allows nothing."""
    labels = [pod["metadata"]["labels"].items() for pod in pods(everything).values()]
    for policy in of_kind(everything, "NetworkPolicy"):
        rules = [*policy["spec"].get("ingress", []), *policy["spec"].get("egress", [])]
        peers = [peer for rule in rules for peer in (*rule.get("from", []), *rule.get("to", []))]
        selectors = [policy["spec"]["podSelector"], *(peer["podSelector"] for peer in peers if "podSelector" in peer)]
        for selector in selectors:
            wanted = selector.get("matchLabels", {})
            if "strimzi.io/cluster" not in wanted:  # Strimzi labels its own
                assert any(wanted.items() <= each for each in labels), (policy["metadata"]["name"], wanted)


def test_policies_can_be_disabled() -> None:
    """For clusters in which something else secures the network."""
    assert not of_kind(render(values={"networkPolicy": {"enabled": False}}), "NetworkPolicy")
