"""Each right in Kafka and in Kubernetes is in the README's tables with its use, and no other is granted."""

from __future__ import annotations

import re

import pytest
import yaml

from support.helm import CHART, Resource, named, of_kind, render, revision
from tailrace.config import Pipeline
from tailrace.kafka.rights import for_samples, needed

README = (CHART / "README.md").read_text(encoding="utf-8")

KINDS = {"topic": "topic", "group": "group", "transactionalId": "transactional id", "cluster": "cluster"}


def table(heading: str) -> list[list[str]]:
    """Return the rows of the table below a heading, without backticks in their cells."""
    section = README.split(f"\n### {heading}\n", 1)[1].split("\n##", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_right_in_kafka_is_explained_by_a_use(everything: list[Resource]) -> None:
    """A right without a row, and a row without a right, both fail."""
    explained = {(row[0], row[1], row[2]) for row in table("In Kafka")}
    assert all(row[3] for row in table("In Kafka"))
    given = set()
    topics = {
        "tweets": "source topic", "words": "source topic", "more": "topics.read", "logs.": "topics.readPrefixes",
        "hashtags": "sink topic", "counts": "sink topic", "late": "topics.write", "tweets.rejected": "rejected topic",
        "bad.words": "rejected topic", "tailrace.ledger": "ledger", "tailrace.before": "offsets.from",
        "tailrace.before.": "offsets.from.",
    }  # fmt: skip
    for user in of_kind(everything, "KafkaUser"):
        name = user["metadata"]["labels"]["tailrace.dev/pipeline"]
        for acl in user["spec"]["authorization"]["acls"]:
            resource = acl["resource"]
            what = resource.get("name", "")
            what = topics.get(what) or re.sub(rf"^tailrace\.{name}\b", "tailrace.<pipeline>", what)
            given.add(
                (f"{resource['type']} {what}".strip(), resource.get("patternType", ""), ", ".join(acl["operations"]))
            )
    assert given == explained


@pytest.mark.parametrize("samples", [0, 5])
def test_user_has_the_rights_that_the_library_needs(environment: str, samples: int) -> None:
    """The rights that `tailrace doctor` checks, those to read configurations, and no other."""
    resources = render(environment, {"pipelines": {"tweets": {"config": {"metrics": {"samples": samples}}}}})
    users = of_kind(resources, "KafkaUser")
    assert users
    for user in users:
        configuration = revision(resources, user["metadata"]["name"])["data"]["pipeline.yaml"]
        pipeline = Pipeline.model_validate(yaml.safe_load(configuration))
        rights = [*needed(pipeline), *for_samples(pipeline)]
        wanted = {(each.resource.value, each.name, each.prefix, each.operation.value) for each in rights}
        given = {
            (KINDS[place["type"]], place.get("name", ""), place.get("patternType") == "prefix", operation)
            for acl in user["spec"]["authorization"]["acls"]
            for place in [acl["resource"]]
            for operation in acl["operations"]
        }
        assert wanted <= given
        asked = {(kind, name) for kind, name, _, operation in given - wanted if operation == "DescribeConfigs"}
        assert {operation for *_, operation in given - wanted} == {"DescribeConfigs"}
        assert asked == {("cluster", ""), ("topic", pipeline.sink.topic), ("topic", pipeline.ledger.topic)}


def test_no_right_in_kafka_is_unlimited(everything: list[Resource]) -> None:
    """No `*`, no `All`, no empty prefix, and none to create or delete."""
    for user in of_kind(everything, "KafkaUser"):
        for acl in user["spec"]["authorization"]["acls"]:
            assert acl["resource"].get("name", "-") not in {"*", ""}
            assert set(acl["operations"]) <= {"Read", "Write", "DescribeConfigs"}


def test_a_pipelines_rights_do_not_reach_one_with_a_longer_name(everything: list[Resource]) -> None:
    """`tweets` has no right of `tweets-eu`, because each prefix ends with a dot."""
    for user in of_kind(everything, "KafkaUser"):
        for acl in user["spec"]["authorization"]["acls"]:
            if acl["resource"].get("patternType") == "prefix":
                assert acl["resource"]["name"].endswith(".")


def test_every_right_in_kubernetes_is_explained_by_a_use(everything: list[Resource]) -> None:
    """A verb without a row, and a row without a verb, both fail."""
    explained = {(row[0], row[1]) for row in table("In Kubernetes")}
    assert all(row[2] for row in table("In Kubernetes"))
    for role in of_kind(everything, "Role"):
        given = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
        assert given == explained


def test_rights_are_granted_only_to_drivers_and_in_the_namespace(everything: list[Resource]) -> None:
    """No ClusterRole, no Secrets, and nothing for executors."""
    assert not of_kind(everything, "ClusterRole", "ClusterRoleBinding")
    for binding in of_kind(everything, "RoleBinding"):
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": binding["metadata"]["name"], "namespace": "streams"}
        ]
        driver = named(everything, "Deployment", binding["metadata"]["name"])
        assert driver["spec"]["template"]["spec"]["serviceAccountName"] == binding["subjects"][0]["name"]


def test_topics_that_rows_may_name_are_rights() -> None:
    """`sink.topics` says what the function may name; nothing else has to be said."""
    config = {"source": {"topics": ["tweets"]}, "sink": {"topics": ["hashtags", "late"]}}
    made = render(values={"pipelines": [{"name": "a", "config": config}], "kafka": {"existingTopics": ["late"]}})
    [user] = of_kind(made, "KafkaUser")
    allowed = {acl["resource"].get("name"): acl["operations"] for acl in user["spec"]["authorization"]["acls"]}
    assert allowed["hashtags"] == allowed["late"] == ["Write", "DescribeConfigs"]
