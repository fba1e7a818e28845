"""Network policies allow exactly what a release needs, wherever its Kafka, its store and its registry are."""

from __future__ import annotations

from typing import Any

from support.helm import Resource, named, of_kind, pods, render

COUNTS = {
    "name": "counts",
    "config": {
        "source": {"topics": ["tweets"], "registry": {"url": "http://registry.example:8081/v1"}, "format": "avro"},
        "sink": {"topic": "hashtags"},
        "checkpoint": "s3a://bucket/counts",
    },
}
PLAIN = {"name": "plain", "config": {"source": {"topics": ["tweets"]}, "sink": {"topic": "hashtags"}}}


def ports(made: list[Resource], name: str) -> set[int]:
    """Return the ports that a policy lets its pods reach at any address."""
    rules = named(made, "NetworkPolicy", name)["spec"]["egress"]
    return {port["port"] for rule in rules if "to" not in rule for port in rule["ports"]}


def elsewhere(endpoint: str, secret: str = "keys") -> dict[str, Any]:
    """Return values with an external Kafka and object store."""
    return {
        "kafka": {"mode": "external", "external": {"bootstrapServers": "a.example:9096,b.example:9097"}},
        "objectStorage": {"mode": "external", "external": {"endpoint": endpoint, "secret": secret}},
        "pipelines": [COUNTS, PLAIN],
    }


def test_policies_open_the_ports_of_the_configured_addresses() -> None:
    """Those of the brokers, of the registry, and of the store if there is a checkpoint."""
    made = render(values=elsewhere("http://minio.example:9000"), apis=())
    assert ports(made, "t-counts-executor") == {9096, 9097, 9000, 8081}
    assert ports(made, "t-plain-executor") == {9096, 9097}


def test_address_without_a_port_uses_its_schemes_port() -> None:
    """An empty endpoint, as on AWS, means HTTPS."""
    assert 80 in ports(render(values=elsewhere("http://minio.example"), apis=()), "t-counts-executor")
    for endpoint in ("https://s3.example", ""):
        assert 443 in ports(render(values=elsewhere(endpoint), apis=()), "t-counts-executor")


def test_kafkas_ports_and_addresses_can_be_set() -> None:
    """kafka.external.network holds both."""
    values = elsewhere("https://s3.example")
    values["kafka"]["external"]["network"] = {"ports": [9999], "to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}
    rules = named(render(values=values, apis=()), "NetworkPolicy", "t-plain-executor")["spec"]["egress"]
    assert {"ports": [{"protocol": "TCP", "port": 9999}], "to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]} in rules


def test_node_agent_is_reachable_without_a_secret_for_the_store() -> None:
    """The pod's identity then comes from an agent on the node."""
    agent = {"ipBlock": {"cidr": "169.254.0.0/16"}}
    for secret, wanted in (("", True), ("keys", False)):
        made = render(values=elsewhere("https://s3.example", secret), apis=())
        rules = named(made, "NetworkPolicy", "t-counts-executor")["spec"]["egress"]
        assert any(agent in rule.get("to", []) for rule in rules) is wanted


def test_only_pipelines_with_a_checkpoint_get_the_stores_keys() -> None:
    """A missing Secret would block pods that do not need it."""
    made = render(values=elsewhere("https://s3.example"), apis=())

    def variables(name: str) -> set[str]:
        [container] = named(made, "Deployment", name)["spec"]["template"]["spec"]["containers"]
        return {each["name"] for each in container["env"]}

    assert "AWS_SECRET_ACCESS_KEY" in variables("t-counts")
    assert "AWS_SECRET_ACCESS_KEY" not in variables("t-plain")


def test_other_clients_can_be_admitted_to_the_brokers() -> None:
    """The clients that write the input and read the output are not part of the release."""
    theirs = {"namespaceSelector": {"matchLabels": {"team": "web"}}, "podSelector": {"matchLabels": {"app": "feed"}}}
    [kafka] = of_kind(render(values={"kafka": {"strimzi": {"clients": [theirs]}}}), "Kafka")
    [listener] = kafka["spec"]["kafka"]["listeners"]
    ours = {"podSelector": {"matchLabels": {"tailrace.dev/release": "t"}}}
    pipelines = {"key": "tailrace.dev/component", "operator": "In", "values": ["driver", "executor", "test"]}
    assert listener["networkPolicyPeers"] == [ours, {"podSelector": {"matchExpressions": [pipelines]}}, theirs]


def test_pipelines_of_the_operator_may_reach_the_brokers_of_a_release() -> None:
    """The operator makes each of them a release of its own."""
    [kafka] = of_kind(render(), "Kafka")
    [listener] = kafka["spec"]["kafka"]["listeners"]
    [admitted] = [
        each for peer in listener["networkPolicyPeers"] for each in peer["podSelector"].get("matchExpressions", ())
    ]
    elsewhere = render(values={"kafka": {"strimzi": {"create": False, "cluster": "streams-kafka"}}}, name="orders")
    labels = [each["metadata"]["labels"][admitted["key"]] for each in pods(elsewhere).values()]
    assert labels
    assert set(labels) <= set(admitted["values"])


def test_dns_ports_can_be_set() -> None:
    """Some distributions' DNS listens on another port behind its Service."""
    made = render(values={"networkPolicy": {"dnsPorts": [53, 5353]}})
    for policy in ("t-tweets-driver", "t-tweets-executor", "t-tweets-test"):
        rule = named(made, "NetworkPolicy", policy)["spec"]["egress"]
        found = {each["port"] for each in rule if "to" in each for each in each["ports"]}
        assert {53, 5353} <= found
