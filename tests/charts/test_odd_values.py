"""Values that YAML or Go could misread arrive as they were written."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from support.helm import executor, named, of_kind, pods, render, revision, template

TWEETS = {"source": {"topics": ["tweets"]}, "sink": {"topic": "hashtags"}}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5000000, "5000000"), (123456789, "123456789"), (0.25, "0.25"), (True, "true"), ("5e6", "5e6"),
        ('a "b" \\ c', 'a "b" \\ c'), ("<&>", "<&>"), ("", ""),
    ],
)  # fmt: skip
def test_variable_arrives_unchanged(value: Any, text: str) -> None:
    """In driver and executors."""
    made = render(values={"pipelineDefaults": {"env": {"LIMIT": value}}})
    [container] = named(made, "Deployment", "t-tweets")["spec"]["template"]["spec"]["containers"]
    for env in (container["env"], executor(made)["spec"]["containers"][0]["env"]):
        assert [each["value"] for each in env if each["name"] == "LIMIT"] == [text]


def test_setting_with_a_large_number_arrives_unchanged() -> None:
    """Not as 5e+06."""
    made = render(values={"pipelineDefaults": {"config": {"spark": {"spark.network.timeout": 5000000}}}})
    read = yaml.safe_load(revision(made)["data"]["pipeline.yaml"])
    assert read["spark"]["spark.network.timeout"] == 5000000


@pytest.mark.parametrize("text", ["  x\n y\n", "", "\n\n", "a: {{ b }}\n", "tab\there\n", "no end", "<&> ü\n"])
def test_file_arrives_unchanged(text: str) -> None:
    """Even if it begins with a space."""
    made = render(values={"pipelineDefaults": {"files": {"a.txt": text}}})
    assert revision(made)["data"]["a.txt"] == text


@pytest.mark.parametrize("name", ["2024", "1e3", "true", "null", "no"])
def test_name_that_yaml_could_misread_stays_text(name: str) -> None:
    """For a release and a pipeline; Kubernetes refuses a label that is a number."""
    made = render(values={"pipelines": [{"name": name, "config": TWEETS}]}, name=name)
    for each in made:
        assert all(isinstance(value, str) for value in each["metadata"]["labels"].values()), each["metadata"]
        assert isinstance(each["metadata"]["name"], str), each["metadata"]
    [role] = [each for each in of_kind(made, "RoleBinding") if each["metadata"]["name"] == name]
    assert [each["name"] for each in role["subjects"]] == [role["roleRef"]["name"]] == [name]
    for pod in pods(made).values():
        assert isinstance(pod["spec"].get("serviceAccountName", ""), str)
        assert pod["metadata"]["labels"]["tailrace.dev/pipeline"] == name
        assert pod["metadata"]["labels"]["tailrace.dev/release"] == name


def test_names_from_the_values_are_text() -> None:
    """Those of Secrets, their keys, and priority classes."""
    more = {"secretEnv": {"A": {"secret": "1", "key": "2"}}, "priorityClassName": {"driver": "3", "executor": "4"}}
    made = render(values={"pipelineDefaults": more})
    spec = named(made, "Deployment", "t-tweets")["spec"]["template"]["spec"]
    assert spec["priorityClassName"] == "3"
    [taken] = [each for each in spec["containers"][0]["env"] if each["name"] == "A"]
    assert taken["valueFrom"]["secretKeyRef"] == {"name": "1", "key": "2"}


def test_release_name_can_contain_a_dot() -> None:
    """A Service's name cannot."""
    for each in render(name="my.release"):
        if each["kind"] in {"Service", "Deployment", "KafkaUser", "Kafka"}:
            assert "." not in each["metadata"]["name"]


def test_setting_that_the_chart_also_has_appears_once() -> None:
    """The chart wins for its labels; a broker setting appears only once."""
    values = {
        "kafka": {"strimzi": {"config": {"min.insync.replicas": 1, "log.retention.hours": 1}}},
        "commonLabels": {"app.kubernetes.io/name": "mine", "team": "a"},
    }
    done = template(values=values)
    [text] = [each for each in done.stdout.split("\n---\n") if "\nkind: Kafka\n" in each]
    assert text.count("min.insync.replicas") == 1
    assert text.count("app.kubernetes.io/name:") == 1
    [kafka] = of_kind([yaml.safe_load(text)], "Kafka")
    assert kafka["spec"]["kafka"]["config"]["log.retention.hours"] == 1
    assert kafka["metadata"]["labels"]["app.kubernetes.io/name"] == "tailrace"


@pytest.mark.parametrize("topic", ["a._raw", "x..y", "a_.b", "_a", "A.B", "a-b.c"])
def test_topic_of_any_name_becomes_a_resource(topic: str) -> None:
    """The resource's name must not have a dot next to another punctuation character; the topic keeps its name."""
    made = render(
        values={"kafka": {"topics": [{"name": topic, "partitions": 1}], "existingTopics": ["tweets", "hashtags"]}}
    )
    [found] = [each for each in of_kind(made, "KafkaTopic") if each["spec"]["topicName"] == topic]
    for part in found["metadata"]["name"].split("."):
        assert part
        assert part == part.strip("-")
