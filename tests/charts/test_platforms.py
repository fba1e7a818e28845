"""The chart fits the platforms that it meets: registries, OpenShift's users, DNS caches, IPv6, changing Secrets."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from support.helm import Resource, named, of_kind, pods, refusal, render, revision
from tailrace.version import SEMANTIC

DIGEST = f"sha256:{'0a' * 32}"
OTHER = f"sha256:{'1b' * 32}"
EMBEDDED = {"mode": "embedded", "embedded": {"image": {"repository": "s3", "tag": "1"}}}


def images(values: dict[str, Any]) -> tuple[str, str]:
    """Return the images of driver and executors."""
    made = render(None, {"kafka": {"existingTopics": ["in", "out"]}, "pipelines": [PIPELINE]} | values)
    [container] = driver(made)["spec"]["containers"]
    spark = yaml.safe_load(revision(made)["data"]["pipeline.yaml"])["spark"]
    return container["image"], spark["spark.kubernetes.container.image"]


PIPELINE: dict[str, Any] = {
    "name": "tweets",
    "config": {"source": {"topics": ["in"]}, "sink": {"topic": "out", "format": "raw", "partitions": 1}},
}


def driver(made: list[Resource]) -> Any:
    """Return the driver's pod."""
    return named(made, "Deployment", "t-tweets")["spec"]["template"]


def test_digest_says_exactly_which_image() -> None:
    """Instead of a tag, which may be moved."""
    given = {"images": {"driver": {"digest": DIGEST}, "executor": {"tag": "1.2"}}}
    assert images(given) == (f"tailrace-driver@{DIGEST}", "tailrace-executor:1.2")


@pytest.mark.parametrize(
    ("own", "image"),
    [
        ({"digest": OTHER}, f"tailrace-driver@{OTHER}"),
        ({"repository": "mine"}, f"mine:{SEMANTIC}"),
        ({"tag": "2"}, "tailrace-driver:2"),
        ({"repository": "mine", "digest": OTHER}, f"mine@{OTHER}"),
    ],
    ids=["digest", "repository", "tag", "both"],
)
def test_pipelines_own_image_does_not_get_the_digest_of_all(own: dict[str, str], image: str) -> None:
    """That digest names another image."""
    given = {"images": {"driver": {"digest": DIGEST}}, "pipelines": [PIPELINE | {"image": {"driver": own}}]}
    assert images(given)[0] == image


def test_one_value_moves_all_images_to_another_registry() -> None:
    """As a mirror in a company's network needs it; none is forgotten."""
    given = {"global": {"imageRegistry": "mirror.example/team/"}, "objectStorage": EMBEDDED}
    mirror = "mirror.example/team"
    assert images(given) == (f"{mirror}/tailrace-driver:{SEMANTIC}", f"{mirror}/tailrace-executor:{SEMANTIC}")
    made = render("dev", given)
    found = {
        container["image"]
        for pod in pods(made).values()
        for container in pod["spec"]["containers"]
        if "image" in container
    }
    assert len(found) > 1
    assert {each for each in found if not each.startswith("mirror.example/team/")} == set()


def test_digest_that_is_none_is_refused() -> None:
    """A tag in its place would make a reference that no runtime understands."""
    assert "/images/driver/digest" in refusal({"images": {"driver": {"digest": "latest"}}})


def test_platform_may_choose_users_and_groups() -> None:
    """OpenShift refuses a pod that asks for others than those of its namespace."""
    made = render(values={"podSecurity": {"fixedIds": False}, "objectStorage": EMBEDDED})
    for name, pod in pods(made).items():
        context = pod["spec"]["securityContext"]
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(context), name
        assert context["runAsNonRoot"] is True, name


def test_drivers_reach_dns_caches_and_api_servers_of_common_clusters() -> None:
    """A policy sees the address and port behind a Service: those of the node's cache, and of the server itself."""
    rules = named(render(), "NetworkPolicy", "t-tweets-driver")["spec"]["egress"]
    peers = [peer for rule in rules for peer in rule.get("to", [])]
    assert {"ipBlock": {"cidr": "169.254.20.10/32"}} in peers
    ports = {port["port"] for rule in rules for port in rule["ports"]}
    assert {443, 6443, 8443, 16443} <= ports


def test_pods_with_ipv6_alone_are_probed_and_scraped() -> None:
    """Their ports listen on an address that the value names."""
    made = revision(render(values={"http": {"host": "::"}}))["data"]["pipeline.yaml"]
    assert yaml.safe_load(made)["metrics"]["host"] == "::"


SASL = {
    "mode": "external",
    "external": {"bootstrapServers": "b:9092", "sasl": {"secret": "login"}},
}


def test_changed_secret_replaces_the_driver() -> None:
    """It has each variable from a Secret as a file too, and watches it: a variable of a running pod never changes."""
    given = {"kafka": SASL, "pipelineDefaults": {"secretEnv": {"KEY": {"secret": "registry", "key": "key"}}}}
    spec = driver(render(values=given))["spec"]
    [container] = spec["containers"]
    assert {"--until-renewed", "--secrets=/etc/tailrace/secrets", "--by-successor"} <= set(container["args"])
    assert {"name": "secrets", "mountPath": "/etc/tailrace/secrets", "readOnly": True} in container["volumeMounts"]
    [volume] = [each for each in spec["volumes"] if each["name"] == "secrets"]
    watched = {
        (each["secret"]["name"], item["key"], item["path"])
        for each in volume["projected"]["sources"]
        for item in each["secret"]["items"]
    }
    variables = {
        (each["valueFrom"]["secretKeyRef"]["name"], each["valueFrom"]["secretKeyRef"]["key"], each["name"])
        for each in container["env"]
        if "secretKeyRef" in each.get("valueFrom", {})
    }
    assert watched == variables
    assert len(watched) == 3


@pytest.mark.parametrize("given", [{}, {"restartOnRenewal": False}], ids=["no secrets", "switched off"])
def test_secrets_are_not_mounted_without_need(given: dict[str, Any]) -> None:
    """Nobody would read them."""
    more = {"secretEnv": {"KEY": {"secret": "registry", "key": "key"}}} if given else {}
    spec = driver(render(values={"pipelineDefaults": given | more}))["spec"]
    assert "secrets" not in {each["name"] for each in spec["volumes"]}
    assert not [each for each in spec["containers"][0]["args"] if each.startswith("--secrets")]
    assert of_kind(render(), "Deployment")
