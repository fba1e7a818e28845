"""What is asked of Strimzi: nothing that a supported version does not know, and only what is wanted."""

from __future__ import annotations

from typing import Any

from support.helm import Resource, named, of_kind, render, revision


def user(**strimzi: Any) -> Resource:
    """Return the authentication of a pipeline's user."""
    made = render(values={"kafka": {"strimzi": strimzi}})
    found: Resource = named(made, "KafkaUser", "t-tweets")["spec"]["authentication"]
    return found


def test_only_what_differs_from_strimzis_defaults_is_said() -> None:
    """An older Strimzi drops or refuses a field that it does not know: certificates' days, the kind of a rack."""
    assert user() == {"type": "tls"}
    [kafka] = of_kind(render("prod"), "Kafka")
    assert kafka["spec"]["kafka"]["rack"] == {"topologyKey": "topology.kubernetes.io/zone"}


def test_days_of_a_certificate_can_be_set() -> None:
    """Both together, as Strimzi demands."""
    found = user(certificates={"validityDays": 90, "renewalDays": 20})
    assert found == {"type": "tls", "validityDays": 90, "renewalDays": 20}


def test_cluster_that_exists_gets_topics_and_users_and_is_left_alone() -> None:
    """Pipelines connect to it, with certificates that its own operator signs."""
    strimzi = {"create": False, "cluster": "shared", "replication": 3}
    made = render(values={"kafka": {"strimzi": strimzi}, "monitoring": {"enabled": True}})
    assert not of_kind(made, "Kafka", "KafkaNodePool")
    assert "t-kafka" not in {each["metadata"]["name"] for each in of_kind(made, "PodMonitor")}
    ours = of_kind(made, "KafkaUser", "KafkaTopic")
    assert {each["kind"] for each in ours} == {"KafkaUser", "KafkaTopic"}
    assert {each["metadata"]["labels"]["strimzi.io/cluster"] for each in ours} == {"shared"}
    assert {each["spec"]["replicas"] for each in of_kind(made, "KafkaTopic")} == {3}
    assert "shared-kafka-bootstrap.streams.svc:9093" in revision(made)["data"]["pipeline.yaml"]
    volumes = named(made, "Deployment", "t-tweets")["spec"]["template"]["spec"]["volumes"]
    [kafka] = [each for each in volumes if each["name"] == "kafka"]
    assert kafka["projected"]["sources"][0]["secret"]["name"] == "shared-cluster-ca-cert"


def test_ledger_that_another_release_makes_is_not_made_again() -> None:
    """Helm refuses an object of another release, so two releases could not share one cluster."""
    strimzi = {"create": False, "cluster": "shared"}
    topics = [
        each["spec"]["topicName"] for each in of_kind(render(values={"kafka": {"strimzi": strimzi}}), "KafkaTopic")
    ]
    assert "tailrace.ledger" in topics
    kafka = {"strimzi": strimzi, "existingTopics": ["tailrace.ledger"]}
    left = [each["spec"]["topicName"] for each in of_kind(render(values={"kafka": kafka}), "KafkaTopic")]
    assert left == [each for each in topics if each != "tailrace.ledger"]


def test_alerts_of_a_release_are_about_its_own_pods() -> None:
    """Two releases would otherwise report each other's drivers."""
    made = render(values={"monitoring": {"enabled": True}}, name="other")
    text = str(named(made, "PrometheusRule", "other-driver-missing"))
    assert '"other-.+"' in text
    assert '"other-(.+?)-(' in text
    assert "tailrace-.+" not in text
    assert "tailrace-(.+)" not in text
