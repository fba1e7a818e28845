"""A shadow from its first reconcile to its end: what the operator makes, in which order, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest

from support.helm import CHART, STRIMZI, named, of_kind, tool
from tailrace.config.resource import KIND, OPERATION
from tailrace.errors import ConfigInvalid
from tailrace_operator import observe
from tailrace_operator.build import Builder
from tailrace_operator.cache import Cache
from tailrace_operator.model import PARTITIONS, PROMOTED, Key, Object, Report
from tailrace_operator.platform import Platform
from tailrace_operator.reconcile import Reconciler

LIVE, SHADOW = Key("ns", "orders"), Key("ns", "orders-shadow")
SHARED = {"kafka": {"strimzi": {"create": False, "cluster": "main"}}}
SPEC: Object = {
    "config": {"source": {"topics": ["a"]}, "sink": {"topic": "b"}},
    "shadow": {"config": {"batch": {"drain": 21}}},
}
READY = {"conditions": [{"type": "Ready", "status": "True"}], "observedGeneration": 1}
TOPIC: Object = {
    "kind": "KafkaTopic",
    "metadata": {"name": "b", "generation": 1, "labels": {"strimzi.io/cluster": "main"}},
    "spec": {"topicName": "b", "partitions": 4},
    "status": READY,
}


class Api:
    """An API server that keeps what it is given; the Pipelines and operations in it are watched."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.objects: dict[tuple[str, str], Object] = {("KafkaTopic", "b"): TOPIC}
        self.applied: list[str] = []
        self.refuses = ""
        self.ready = True

    def uid(self, key: Key) -> str:
        """Return a Pipeline's uid."""
        return str(self.objects[KIND, key.name]["metadata"]["uid"])

    def apply(self, body: Object) -> Object:
        """Take an object as the API server does: a changed spec is another generation."""
        about, place = body["metadata"], (body["kind"], body["metadata"]["name"])
        if body["kind"] == KIND and self.refuses:
            raise ConfigInvalid(self.refuses, kept="what runs was left as it is")
        before = self.objects.get(place, {"metadata": {"generation": 0}, "spec": None})
        generation = before["metadata"]["generation"] + (before.get("spec") != body.get("spec"))
        made = {"uid": f"uid-{about['name']}", "generation": generation, "resourceVersion": str(len(self.applied) + 10)}
        self.applied.append(f"{body['kind']} {about['name']}")
        found = {"creationTimestamp": "2026-01-01T00:00:00Z", **about, **made}
        self.objects[place] = {**body, "metadata": found, "status": before.get("status", {})}
        return self.objects[place]

    def find(self, kind: str, namespace: str, name: str) -> Object | None:
        """Return an object; Strimzi's are ready, or not yet."""
        found = self.objects.get((kind, name))
        if kind in ("KafkaUser", "KafkaTopic") and found is not None:
            return {**found, "status": READY if self.ready else {}}
        return {"metadata": {"name": name}} if kind == "Secret" else found

    def list(self, kind: str, namespace: str, selector: str) -> list[Object]:
        """Return the objects of a kind, with that label if one is given; topics are ready."""
        label, _, name = selector.partition("=")
        found = [each for (of, _), each in self.objects.items() if of == kind]
        if kind == "KafkaTopic":
            return [{**each, "status": READY} for each in found]
        return [each for each in found if not label or each["metadata"].get("labels", {}).get(label) == name]

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object."""
        gone = self.objects.pop((kind, name))
        self.applied.append(f"-{kind} {name}")
        if kind == KIND:
            self.cache.pipeline(gone, gone=True)

    def tell(self, event: Object) -> None:
        """Take an Event."""

    def write_status(self, body: Object) -> None:
        """Keep a status, and let the watches see it."""
        place = body["kind"], body["metadata"]["name"]
        about = self.objects[place]["metadata"]
        version = str(int(about["resourceVersion"]) + 1)
        found = {**self.objects[place], "metadata": {**about, "resourceVersion": version}, "status": body["status"]}
        self.objects[place] = found
        if body["kind"] == KIND:
            self.cache.pipeline(found, gone=False)
        else:
            self.cache.put(OPERATION, found)

    def pipeline(self, spec: Object, name: str = "orders", **about: Any) -> None:
        """Let a person apply a Pipeline."""
        body = {"kind": KIND, "metadata": {"name": name, "namespace": "ns", **about}, "spec": spec}
        self.cache.pipeline(self.apply(body), gone=False)

    @property
    def begin(self) -> Object:
        """Return the newest operation that lets the shadow begin."""
        return [each for (kind, _), each in self.objects.items() if kind == OPERATION][-1]

    def ends(self, phase: str) -> None:
        """Let that operation end."""
        status = {"phase": phase, "finished": "2026-01-01T00:00:30Z", "message": "TR-602 no plan"}
        self.write_status({"kind": OPERATION, "metadata": self.begin["metadata"], "status": status})

    @property
    def shadow(self) -> Object:
        """Return the shadow's spec."""
        spec: Object = self.objects[KIND, "orders-shadow"]["spec"]
        return spec

    def says(self, kind: str) -> tuple[str, str]:
        """Return a condition of the live Pipeline: its reason and its message."""
        [found] = [each for each in self.objects[KIND, "orders"]["status"]["conditions"] if each["type"] == kind]
        return found["reason"], found["message"]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    """Return an API server with a Pipeline whose driver has delivered a batch."""
    made = Api(Cache())
    monkeypatch.setattr(observe, "ask", lambda *_: Report(True, False, "leading", batch={"number": 1}))
    made.pipeline(SPEC)
    labels = {"tailrace.dev/pipeline": "orders", "tailrace.dev/release": "orders", "tailrace.dev/component": "driver"}
    pod = {"name": "d", "namespace": "ns", "uid": "d", "labels": labels, "creationTimestamp": "2026-01-01"}
    made.objects["Pod", "d"] = {"kind": "Pod", "metadata": pod, "status": {}}
    made.cache.put("Pod", made.objects["Pod", "d"])
    return made


@pytest.fixture
def operator(api: Api) -> Reconciler:
    """Return the operator's reconciler."""
    return Reconciler(api.cache, Builder(Platform(CHART, SHARED), str(tool("helm")), lambda: (STRIMZI,)), api)


def test_shadow_runs_once_it_has_begun(api: Api, operator: Reconciler) -> None:
    """Suspended before; its topic has as many partitions as the live one, and its user writes nothing of others."""
    operator.reconcile(LIVE)
    assert api.shadow["suspend"] is True
    assert api.says("ShadowReady")[0] == "Beginning"
    assert api.begin["spec"]["run"] == ["shadow", "begin", "--live", "orders", "--sink", "b", "--again"]
    api.ready = False
    assert operator.reconcile(SHADOW) == "Waiting"  # its user and its topics
    assert ("Job", api.begin["metadata"]["name"]) not in api.objects
    api.ready = True
    operator.reconcile(SHADOW)
    assert ("Job", api.begin["metadata"]["name"]) in api.objects
    topics = {each["spec"]["topicName"]: each for each in of_kind(list(api.objects.values()), "KafkaTopic")}
    assert topics["b-shadow"]["spec"]["partitions"] == 4
    owned = {name for name, each in topics.items() if each["metadata"].get("ownerReferences")}
    assert owned == {"b-shadow", "orders-shadow.rejected"}
    rights = named(list(api.objects.values()), "KafkaUser", "orders-shadow")["spec"]["authorization"]["acls"]
    writes = {each["resource"]["name"] for each in rights if {"Write", "All"} & set(each["operations"])}
    assert writes == {"b-shadow", "orders-shadow.rejected", "tailrace.ledger", "tailrace.orders-shadow."}
    reads = {each["resource"].get("name") for each in rights if "Read" in each["operations"]}
    assert {"a", "b", "b-shadow"} <= reads
    assert named(list(api.objects.values()), "Deployment", "orders-shadow")["spec"]["replicas"] == 0
    api.ends("Succeeded")
    operator.reconcile(LIVE)
    assert api.shadow["suspend"] is False
    operator.reconcile(SHADOW)
    assert named(list(api.objects.values()), "Deployment", "orders-shadow")["spec"]["replicas"] == 1
    assert named(list(api.objects.values()), "Deployment", "orders")["spec"]["replicas"] == 1


def test_topic_of_somebody_else_is_not_made_the_shadows(api: Api, operator: Reconciler) -> None:
    """It would be deleted, with all its records, when the shadow is promoted or taken out."""
    theirs = {**TOPIC, "metadata": {**TOPIC["metadata"], "name": "b-shadow"}}
    api.objects["KafkaTopic", "b-shadow"] = {**theirs, "spec": {"topicName": "b-shadow", "partitions": 9}}
    operator.reconcile(LIVE)
    operator.reconcile(SHADOW)
    topics = {each["spec"]["topicName"]: each for each in of_kind(list(api.objects.values()), "KafkaTopic")}
    assert topics["b-shadow"]["spec"]["partitions"] == 9
    owned = {name for name, each in topics.items() if each["metadata"].get("ownerReferences")}
    assert owned == {"orders-shadow.rejected"}


def test_nothing_is_applied_twice(api: Api, operator: Reconciler) -> None:
    """A shadow that is as it should be costs no requests; one that a person changed is put right."""
    for _ in range(2):
        operator.reconcile(LIVE)
    count = len(api.applied)
    operator.reconcile(LIVE)
    assert len(api.applied) == count
    about = api.objects[KIND, "orders-shadow"]["metadata"]
    api.pipeline({**api.shadow, "suspend": False}, **about)
    operator.reconcile(LIVE)
    assert api.shadow["suspend"] is True


def test_failed_beginning_is_left_to_a_person(api: Api, operator: Reconciler) -> None:
    """With its error and the next command; when the operation is deleted, there is another one."""
    for _ in range(2):
        operator.reconcile(LIVE)
    api.ends("Failed")
    count = len(api.applied)
    for _ in range(2):
        operator.reconcile(LIVE)
    assert api.applied[count:] == []
    reason, message = api.says("ShadowReady")
    assert (reason, "TR-602" in message, "kubectl delete tlrop" in message) == ("BeginFailed", True, True)
    assert api.shadow["suspend"] is True
    api.cache.put(OPERATION, api.begin, gone=True)
    api.delete(OPERATION, "ns", api.begin["metadata"]["name"])
    operator.reconcile(LIVE)
    assert api.begin["spec"]["pipeline"] == "orders-shadow"


def test_another_overlay_begins_again(api: Api, operator: Reconciler) -> None:
    """Its driver is stopped in the same change, so no output of it is compared with an older beginning."""
    operator.reconcile(LIVE)
    first = api.begin["metadata"]["name"]
    api.ends("Succeeded")
    operator.reconcile(LIVE)
    assert api.shadow["suspend"] is False
    api.pipeline({**SPEC, "shadow": {"config": {"batch": {"drain": 22}}}})
    operator.reconcile(LIVE)
    assert (api.shadow["suspend"], api.shadow["config"]["batch"]["drain"]) == (True, 22)
    assert api.begin["metadata"]["name"] != first


@pytest.mark.parametrize(
    ("overlay", "words"),
    [
        ({"topic": "a"}, "config.sink.topic is a, which the pipeline reads"),
        ({"topic": "orders.rejected"}, "its rejected records"),
        ({"topic": "theirs"}, "the Pipeline ns/other uses"),
        ({"topic": "other.rejected"}, "the Pipeline ns/other uses"),
        ({"topic": "bad"}, "the Pipeline ns/another uses"),
        ({"config": {"offsets": {"from": "group"}}}, "config.offsets"),
        ({"config": {"source": {"format": "json"}}}, "json needs a `schema`"),
        ({"config": {"nonsense": 1}}, "nonsense"),
        ({"config": {"sink": {"topics": ["x", "y"]}}}, "config.sink.topics"),
    ],
)
def test_wrong_shadow_is_not_made(api: Api, operator: Reconciler, overlay: Object, words: str) -> None:
    """The live pipeline is applied all the same, and its status says why."""
    api.pipeline({"config": {"source": {"topics": ["x"]}, "sink": {"topic": "theirs"}}}, "other")
    api.pipeline({"config": {"source": {"topics": ["x"]}, "sink": {"topic": "y"}, "rejected": "bad"}}, "another")
    api.pipeline({**SPEC, "shadow": overlay})
    operator.reconcile(LIVE)
    assert (KIND, "orders-shadow") not in api.objects
    assert ("Deployment", "orders") in api.objects
    reason, message = api.says("ShadowReady")
    assert reason == "Invalid"
    assert words in message


@pytest.mark.parametrize(("live", "other"), [("orders-.*", "x"), ("a.*", r".*\.rejected")])
def test_shadow_whose_rejected_records_would_be_read_gets_no_topic(
    api: Api, operator: Reconciler, live: str, other: str
) -> None:
    """Its rejected records would be the input of the live pipeline, or of another one."""
    rights = {"topics": {"readPrefixes": ["a", "orders-", "x"]}}
    api.pipeline({"config": {"source": {"pattern": other}, "sink": {"topic": "theirs"}}, **rights}, "other")
    api.pipeline({**SPEC, "config": {**SPEC["config"], "source": {"pattern": live}}, **rights})
    operator.reconcile(LIVE)
    reason, message = api.says("ShadowReady")
    assert (reason, (KIND, "orders-shadow") in api.objects) == ("Invalid", False)
    assert "would write its rejected records to orders-shadow.rejected" in message


def test_spec_that_the_api_server_refuses_is_said(api: Api, operator: Reconciler) -> None:
    """An overlay has no schema of its own."""
    api.refuses = "spec.config.batch.drain: expected numeric"
    operator.reconcile(LIVE)
    reason, message = api.says("ShadowReady")
    assert (reason, message) == ("Invalid", api.refuses)


def test_pipeline_of_the_shadows_name_is_left_alone(api: Api, operator: Reconciler) -> None:
    """Even if no watch has shown it yet, and when the spec has no shadow any more."""
    theirs = {"config": {"source": {"topics": ["x"]}, "sink": {"topic": "y"}}}
    api.pipeline(theirs, "orders-shadow")
    held = api.cache.body(SHADOW)
    assert held is not None
    api.cache.drop(SHADOW, held["metadata"]["uid"])
    operator.reconcile(LIVE)
    assert api.says("ShadowReady")[0] == "NameTaken"
    api.pipeline(theirs, "orders-shadow")
    operator.reconcile(LIVE)
    api.pipeline({"config": SPEC["config"]})
    operator.reconcile(LIVE)
    assert api.shadow == theirs


@pytest.mark.parametrize("more", [{"suspend": True}, {"shadow": {**SPEC["shadow"], "suspend": True}}])
def test_suspended_pipeline_has_a_suspended_shadow(api: Api, operator: Reconciler, more: Object) -> None:
    """Which has not begun, either."""
    api.pipeline({**SPEC, **more})
    operator.reconcile(LIVE)
    assert api.shadow["suspend"] is True
    assert api.says("ShadowReady")[0] == "Suspended"
    assert OPERATION not in {kind for kind, _ in api.objects}


def test_shadow_ends_with_its_overlay(api: Api, operator: Reconciler) -> None:
    """Its Pipeline is deleted, once, and the conditions go; not while the live one is paused."""
    operator.reconcile(LIVE)
    api.pipeline({"config": SPEC["config"], "paused": True})
    operator.reconcile(LIVE)
    assert (KIND, "orders-shadow") in api.objects
    api.pipeline({"config": SPEC["config"]})
    operator.reconcile(LIVE)
    assert (KIND, "orders-shadow") not in api.objects
    status = api.objects[KIND, "orders"]["status"]
    assert "shadow" not in status
    assert not {each["type"] for each in status["conditions"]} & {"ShadowReady", "ShadowCompared", "Promoted"}


def test_promoted_revision_runs_and_stays_when_the_overlay_moves(api: Api, operator: Reconciler) -> None:
    """By another Deployment's template first, and then by none."""
    operator.reconcile(LIVE)
    found = api.objects[KIND, "orders"]["status"]["shadow"]
    record = api.objects["ControllerRevision", f"orders-{found['base']}"]
    record["metadata"]["annotations"] = {PROMOTED: found["revision"]}
    api.cache.put("ControllerRevision", record)
    operator.reconcile(LIVE)
    deployment = api.objects["Deployment", "orders"]
    assert api.objects[KIND, "orders"]["status"]["revision"] == found["revision"]
    assert api.says("Promoted")[0] == "Requested"
    api.pipeline({"config": {**SPEC["config"], "batch": {"drain": 21}}})
    operator.reconcile(LIVE)
    assert api.objects["Deployment", "orders"] == deployment
    assert api.objects[KIND, "orders"]["status"]["revision"] == found["revision"]
    assert (KIND, "orders-shadow") not in api.objects
    api.pipeline(SPEC)
    operator.reconcile(LIVE)
    assert api.objects[KIND, "orders"]["status"]["revision"] == found["base"], "a promotion has ended for good"


def test_brokers_of_another_kind_get_no_topic(api: Api) -> None:
    """There, `begin` makes the sink topic, with the rights of the shadow's user."""
    shared = {"kafka": {"mode": "external", "external": {"bootstrapServers": "b:9092"}}}
    operator = Reconciler(api.cache, Builder(Platform(CHART, shared), str(tool("helm")), lambda: ()), api)
    operator.reconcile(LIVE)
    operator.reconcile(SHADOW)
    assert PARTITIONS not in api.objects[KIND, "orders-shadow"]["metadata"]["annotations"]
    assert [each["metadata"]["name"] for each in of_kind(list(api.objects.values()), "KafkaTopic")] == ["b"]
