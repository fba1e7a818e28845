"""A revision of a Pipeline becomes the objects of the chart, with an owner; what cannot run is refused in its words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.helm import CHART, MONITORING, ROOT, STRIMZI, named, of_kind, render, tool
from tailrace.config.resource import OWNER
from tailrace.errors import ConfigInvalid
from tailrace_operator import apply, platform
from tailrace_operator.build import Builder, Built
from tailrace_operator.model import REVISION, Key, Object, Resource, Revision
from tailrace_operator.platform import Platform

KEY = Key("streams", "orders")
SPEC: dict[str, Any] = {"config": {"source": {"topics": ["orders"]}, "sink": {"topic": "large"}}}
EXTERNAL = {"kafka": {"mode": "external", "external": {"bootstrapServers": "b:9092"}}}
STRIMZIS: dict[str, Any] = {"kafka": {"strimzi": {"create": False, "cluster": "main"}}, "monitoring": {"enabled": True}}


def resource(spec: Mapping[str, Any]) -> Resource:
    """Return a Pipeline."""
    return Resource(KEY, "uid", 1, spec)


def build(
    spec: Mapping[str, Any] = SPEC,
    shared: Mapping[str, Any] = EXTERNAL,
    running: bool = True,
    apis: tuple[str, ...] = (),
) -> Built:
    """Return what a spec is built to."""
    builder = Builder(Platform(CHART, shared), str(tool("helm")), lambda: apis)
    return builder.build(resource(spec), Revision("abc", spec, 1), running)


def test_objects_are_those_of_a_release() -> None:
    """A pipeline of the chart's values, in a release of its name, is the same but for owner and labels."""
    values = {**EXTERNAL, "kafka": EXTERNAL["kafka"] | {"existingTopics": ["orders", "large"]}}
    released = render(None, values | {"pipelines": [{"name": "orders", **SPEC}]}, (), "orders")
    made = list(build().objects)
    assert len(made) == len([each for each in released if each["kind"] != "Pod"])  # that of `helm test`
    for each in made:
        before = named(released, each["kind"], each["metadata"]["name"])
        same = {key: value for key, value in each.items() if key != "metadata"}
        assert same == {key: value for key, value in before.items() if key != "metadata"}
        assert each["metadata"]["labels"].items() >= {**before["metadata"]["labels"], OWNER: "orders"}.items() - {
            ("app.kubernetes.io/managed-by", "Helm")
        }
        assert each["metadata"]["ownerReferences"][0]["uid"] == "uid"


def test_deployment_is_named_once_and_comes_last() -> None:
    """Its pods need everything else, and its name is the Pipeline's."""
    made = build(shared=STRIMZIS, apis=(STRIMZI, MONITORING))
    assert made.deployment["metadata"]["name"] == "orders"
    assert made.deployment is made.objects[-1]
    assert made.deployment["metadata"]["annotations"][REVISION] == "abc"


def test_topics_have_no_owner_and_nothing_is_shared() -> None:
    """They hold records; brokers, dashboards and alerts are those of a release."""
    made = build(shared=STRIMZIS, apis=(STRIMZI, MONITORING))
    topics = of_kind(made.objects, "KafkaTopic")
    assert {each["spec"]["topicName"] for each in topics} == {"tailrace.ledger", "orders.rejected"}
    assert not [each for each in topics if "ownerReferences" in each["metadata"]]
    assert not [each for each in topics if "orders" in each["metadata"]["labels"].values()]
    assert of_kind(made.objects, "KafkaUser")
    assert of_kind(made.objects, "PodMonitor")
    assert not of_kind(made.objects, "Kafka", "KafkaNodePool", "PrometheusRule")
    assert [each["metadata"]["name"] for each in of_kind(made.objects, "ConfigMap")][1:] == ["orders-live"]


def test_suspended_pipeline_has_no_driver_but_everything_else() -> None:
    """And the same configuration, so that it goes on with it."""
    on, off = build(), build(running=False)
    assert (on.deployment["spec"]["replicas"], off.deployment["spec"]["replicas"]) == (1, 0)

    def names(made: Built) -> set[tuple[str, str]]:
        return {(each["kind"], each["metadata"]["name"]) for each in made.objects}

    assert {kind for kind, _ in names(on) - names(off)} == {"PodDisruptionBudget"}
    assert not names(off) - names(on)
    assert on.digest != off.digest


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"config": {"source": {"topics": ["a"], "format": "json"}, "sink": {"topic": "b"}}}, "json needs a `schema`"),
        ({"config": {"source": {"topics": ["a"]}}}, "sink"),
        ({"config": SPEC["config"], "revisionz": 3}, "revisionz"),
        ({"config": {**SPEC["config"], "batch": {"target": -1}}}, "target"),
    ],
)
def test_spec_that_cannot_run_is_refused_in_words(change: dict[str, Any], words: str) -> None:
    """Without a path of the machine, and without Helm's own."""
    builder = Builder(Platform(CHART, EXTERNAL), str(tool("helm")), lambda: ())
    with pytest.raises(ConfigInvalid) as caught:
        builder.check(resource(change), Revision("abc", change))
    assert words in caught.value.what
    assert "/tmp" not in caught.value.what
    assert "--debug" not in caught.value.what


def test_pipeline_of_the_page_is_built_on_the_platform_of_the_page() -> None:
    """Word by word, as a reader copies them."""
    page = (ROOT / "docs" / "operator.md").read_text(encoding="utf-8")
    shared, pipeline, *_ = (yaml.safe_load(each) for each in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    builder = Builder(Platform(CHART, shared["platform"]), str(tool("helm")), lambda: (STRIMZI,))
    found = replace(
        resource(pipeline["spec"]), key=Key(pipeline["metadata"]["namespace"], pipeline["metadata"]["name"])
    )
    made = builder.build(found, Revision("abc", found.spec), True)
    assert made.deployment["metadata"]["name"] == "orders"
    [configuration] = [each for each in of_kind(made.objects, "ConfigMap") if "pipeline.yaml" in each["data"]]
    assert "def large" in configuration["data"]["large.py"]


def test_variables_from_secrets_need_no_values_to_be_checked() -> None:
    """The operator reads no Secrets."""
    spec = {
        "config": {
            "source": {
                "topics": ["a"],
                "format": "avro",
                "schema": "in.avsc",
                "registry": {"url": "http://${HOST}/${USER_KEY}"},
            },
            "sink": {"topic": "b", "format": "raw"},
        },
        "env": {"HOST": "registry"},
        "secretEnv": {"USER_KEY": {"secret": "s", "key": "k"}},
    }
    Builder(Platform(CHART, EXTERNAL), str(tool("helm")), lambda: ()).check(resource(spec), Revision("abc", spec))


def test_variables_of_the_platform_are_the_drivers_too() -> None:
    """Its user and password, and what its defaults and its pods bring; the spec could not set them."""
    kafka: dict[str, Any] = EXTERNAL["kafka"] | {
        "external": {
            "bootstrapServers": "b:9093",
            "options": {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"},
            "sasl": {"secret": "login"},
        }
    }
    defaults = {"secretEnv": {"SHARED": {"secret": "s", "key": "k"}}, "env": {"LIMIT": "7"}}
    spec = {**SPEC, "config": {**SPEC["config"], "rejected": "no.${LIMIT}"}}
    builder = Builder(Platform(CHART, {"kafka": kafka, "pipelineDefaults": defaults}), str(tool("helm")), lambda: ())
    found = builder.configuration(resource(spec), Revision("abc", spec))
    assert found.rejected_topic == "no.7"
    assert found.kafka.options["sasl.username"] == "secret"


def test_topics_that_rows_may_name_are_topics_of_the_spec() -> None:
    """As for `sink.topic`, whether they exist is found out at the brokers."""
    spec = {"config": {"source": {"topics": ["in"]}, "sink": {"topics": ["eu", "us"]}}}
    [user] = of_kind(build(spec, STRIMZIS, apis=(STRIMZI, MONITORING)).objects, "KafkaUser")
    assert {"eu", "us"} <= {each["resource"].get("name") for each in user["spec"]["authorization"]["acls"]}


def test_operator_that_was_there_first_notices_what_is_installed_later() -> None:
    """Otherwise the advice to install it would change nothing."""
    there: list[str] = []
    builder = Builder(Platform(CHART, STRIMZIS), str(tool("helm")), lambda: there)
    with pytest.raises(ConfigInvalid, match="not installed"):
        builder.check(resource(SPEC), Revision("abc", SPEC))
    there += [STRIMZI, MONITORING]
    assert of_kind(builder.build(resource(SPEC), Revision("abc", SPEC), True).objects, "KafkaUser", "PodMonitor")


@pytest.mark.parametrize(("strimzi", "replicas"), [({}, None), ({"replication": 3}, 3)])
def test_topics_on_brokers_of_somebody_else_have_the_copies_that_these_make(
    strimzi: dict[str, Any], replicas: int | None
) -> None:
    """One copy would be taken for the wish of whoever installs the operator, also of a ledger that has three."""
    shared = {"kafka": {"strimzi": STRIMZIS["kafka"]["strimzi"] | strimzi}}
    topics = of_kind(build(shared=shared, apis=(STRIMZI,)).objects, "KafkaTopic")
    assert {each["spec"].get("replicas") for each in topics} == {replicas}


def test_rendering_is_remembered_until_the_pipeline_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reconcile with nothing to do renders nothing, and old renderings are dropped."""
    builder, calls = Builder(Platform(CHART, EXTERNAL), str(tool("helm")), lambda: ()), []
    render_once = builder._render

    def counted(key: Key, values: Mapping[str, Any], apis: Iterable[str]) -> Any:
        calls.append(key)
        return render_once(key, values, apis)

    monkeypatch.setattr(builder, "_render", counted)
    for _ in range(3):
        builder.build(resource(SPEC), Revision("abc", SPEC), True)
    assert len(calls) == 1
    builder.forget(KEY)
    builder.build(resource(SPEC), Revision("abc", SPEC), True)
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("config", "goes"),
    [({"rejected": "orders.rejected"}, False), ({"source": {"topics": ["orders.rejected"]}}, False), ({}, True)],
)
def test_topic_of_a_deleted_pipeline_goes_unless_another_names_it(config: dict[str, Any], goes: bool) -> None:
    """Whether the other writes its rejected records there, or reads them."""
    spec = SPEC | {"deletionPolicy": "Delete"}
    there = {KEY: {"spec": spec}, Key("other", "bills"): {"spec": {"config": SPEC["config"] | config}}}
    builder = Builder(Platform(CHART, STRIMZIS), str(tool("helm")), lambda: (STRIMZI,), lambda: there)
    made = builder.build(resource(spec), Revision("abc", spec), True)
    owned = [
        each["spec"]["topicName"]
        for each in of_kind(made.objects, "KafkaTopic")
        if "ownerReferences" in each["metadata"]
    ]
    assert owned == (["orders.rejected"] if goes else [])


@pytest.mark.parametrize("text", ["pipelines: []", "fullnameOverride: x", "- a", "{"])
def test_platform_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    """Before the operator watches anything."""
    file = tmp_path / "platform.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigInvalid):
        platform.load(CHART, file)


class Cluster:
    """An API server's objects, for what applying does with them."""

    def __init__(self, *there: Object) -> None:
        self.objects = {(each["kind"], each["metadata"]["name"]): each for each in there}
        self.verbs: list[tuple[str, str]] = []

    def apply(self, body: Object) -> Object:
        """Take an object."""
        self.verbs.append(("apply", body["kind"]))
        self.objects[body["kind"], body["metadata"]["name"]] = body
        return body

    def find(self, kind: str, namespace: str, name: str) -> Object | None:
        """Return an object."""
        return self.objects.get((kind, name))

    def list(self, kind: str, namespace: str, selector: str) -> list[Object]:
        """Return the objects of a kind."""
        return [each for (found, _), each in self.objects.items() if found == kind]

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Drop an object."""
        del self.objects[kind, name]


def thing(kind: str, name: str, **more: Any) -> Object:
    """Return an object of an earlier revision."""
    created = more.pop("created", "2026-01-01")
    about = {"name": name, "labels": {OWNER: "orders"}, "creationTimestamp": created}
    return {"kind": kind, "metadata": about, **more}


def test_what_a_revision_no_longer_has_is_removed() -> None:
    """But topics, and configurations that a driver mounts, or the newest ones."""
    mounting = {"template": {"spec": {"volumes": [{"configMap": {"name": "orders-1"}}]}}}
    cluster = Cluster(
        thing("NetworkPolicy", "orders-old"),
        thing("KafkaTopic", "orders.old"),
        thing("ReplicaSet", "orders-a", spec={"replicas": 1, **mounting}),
        *(thing("ConfigMap", f"orders-{number}", created=f"2026-01-0{number}") for number in range(1, 6)),
    )
    apply.apply(cluster, KEY, build(), kept=2, pods={})
    assert ("NetworkPolicy", "orders-old") not in cluster.objects
    assert ("KafkaTopic", "orders.old") in cluster.objects
    kept = {name for kind, name in cluster.objects if kind == "ConfigMap"} & {f"orders-{n}" for n in range(1, 6)}
    assert kept == {"orders-1", "orders-4", "orders-5"}
    assert cluster.verbs[-1] == ("apply", "Deployment")
    rendered = yaml.safe_load(build().objects[-1]["metadata"]["annotations"][REVISION])
    assert rendered == "abc"
