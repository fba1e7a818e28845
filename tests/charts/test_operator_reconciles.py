"""A reconcile that the watches have left in the dark: what is gone is found out, and nothing is made for it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from support.helm import CHART, tool
from tailrace.config.resource import DIGEST, FAILED, OPERATION, OWNER, STABLE
from tailrace.errors import ConfigInvalid
from tailrace_operator import reconcile
from tailrace_operator.build import Builder
from tailrace_operator.cache import Cache
from tailrace_operator.model import Key, Object
from tailrace_operator.observe import revision_of
from tailrace_operator.platform import Platform

KEY = Key("ns", "orders")
SHARED = {"kafka": {"mode": "external", "external": {"bootstrapServers": "b:9092"}}, "http": {"enabled": False}}
PIPELINE: Object = {
    "metadata": {"name": "orders", "namespace": "ns", "uid": "u", "generation": 1, "resourceVersion": "1"},
    "spec": {"config": {"source": {"topics": ["a"]}, "sink": {"topic": "b"}}},
}


class Api:
    """An API server that has what it was given."""

    def __init__(self, uid: str) -> None:
        self.there = uid
        self.objects: dict[str, list[Object]] = {}
        self.applied: list[str] = []
        self.statuses: list[Object] = []
        self.told: list[str] = []
        self.missing: set[str] = set()
        self.replicas: list[int] = []
        self.others: dict[tuple[str, str], dict[str, str]] = {}  # the labels of what somebody else has made

    def find(self, kind: str, namespace: str, name: str) -> Object | None:
        """Return an object's metadata; Secrets are there, and of other kinds what was made."""
        if (kind, name) in self.others:
            return {"metadata": {"name": name, "labels": self.others[kind, name]}}
        return {"metadata": {"name": name}} if kind == "Secret" and name not in self.missing else None

    def uid(self, key: Key) -> str:
        """Return the Pipeline's."""
        return self.there

    def apply(self, body: Object) -> Object:
        """Take an object as the API server does."""
        self.applied.append(body["kind"])
        if body["kind"] == "Deployment":
            self.replicas.append(body["spec"]["replicas"])
        body["metadata"] |= {"uid": body["kind"], "generation": 1, "resourceVersion": str(len(self.applied))}
        return body

    def list(self, kind: str, namespace: str, selector: str) -> list[Object]:
        """Return what is there."""
        return self.objects.get(kind, [])

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Nothing is deleted here."""
        raise AssertionError(f"{kind} {name}")

    def tell(self, event: Object) -> None:
        """Keep an Event."""
        self.told.append(f"{event['reason']}: {event['message']}")

    def write_status(self, body: Object) -> None:
        """Keep a status."""
        self.statuses.append(body["status"])


def made(api: Any) -> tuple[reconcile.Reconciler, Cache]:
    """Return a reconciler whose watches have seen one Pipeline."""
    cache = Cache()
    cache.pipeline(PIPELINE, gone=False)
    return reconcile.Reconciler(cache, Builder(Platform(CHART, SHARED), str(tool("helm")), lambda: ()), api), cache


def ask(api: Api, cache: Cache, *run: str, minutes: int = 0, phase: str = "") -> None:
    """Let the watches and the API server have the operation `again`, made so long ago and perhaps begun."""
    made = (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat()
    about = {"name": "again", "namespace": "ns", "uid": "o", "resourceVersion": "7", "creationTimestamp": made}
    body: Object = {"metadata": about, "spec": {"pipeline": KEY.name, "run": list(run)}}
    if phase:
        body["status"] = {"phase": phase, "started": made, "message": "as before"}
    cache.put(OPERATION, body)
    api.objects[OPERATION] = [body]


def test_pipeline_is_applied_once() -> None:
    """And its status is written once, until something changes."""
    api = Api("u")
    one, _ = made(api)
    assert one.reconcile(KEY) == "Starting"
    assert api.applied[0] == "ControllerRevision"
    assert api.applied[-1] == "Deployment"
    count = len(api.applied)
    PIPELINE["status"] = api.statuses[-1]
    try:
        assert one.reconcile(KEY) == "Starting"
    finally:
        del PIPELINE["status"]
    assert len(api.applied) == count


@pytest.mark.parametrize("uid", ["", "another"])
def test_nothing_is_made_for_a_pipeline_that_is_gone(uid: str) -> None:
    """Its deletion was missed; Kubernetes would delete what is made, and the operator make it again, for ever."""
    api = Api(uid)
    one, _ = made(api)
    one.reconcile(KEY)
    assert "Deployment" not in api.applied
    assert one.reconcile(KEY) == ""


class Refusing(Api):
    """An API server that refuses objects of one kind."""

    refuses = "Deployment"
    words: Exception = ConfigInvalid("no volume typo", kept="all")

    def apply(self, body: Object) -> Object:
        """Refuse it with the server's words."""
        if body["kind"] == self.refuses:
            raise self.words
        return super().apply(body)


@pytest.mark.parametrize("words", [ConfigInvalid("no volume typo", kept="all"), PermissionError("no volume typo")])
def test_object_that_the_api_server_refuses_is_told_in_the_status(words: Exception) -> None:
    """It was only in the operator's log, and the status said what was true before."""
    api = Refusing("u")
    api.words = words
    one, _ = made(api)
    assert one.reconcile(KEY) == "Invalid"
    [accepted] = [each for each in api.statuses[-1]["conditions"] if each["type"] == "Accepted"]
    assert (accepted["status"], accepted["reason"]) == ("False", "Invalid")
    assert "no volume typo" in accepted["message"]


@pytest.mark.parametrize(
    ("words", "minutes", "phase"),
    [
        (ConfigInvalid("no volume typo", kept="all"), 1, "Failed"),
        (PermissionError("no volume typo"), 1, "Waiting"),
        (PermissionError("no volume typo"), 20, "Failed"),
    ],
)
def test_operation_whose_job_the_api_server_refuses_has_failed(words: Exception, minutes: int, phase: str) -> None:
    """The pipeline would rest for ever; a quota may pass."""
    api = Refusing("u")
    api.refuses, api.words = "Job", words
    one, cache = made(api)
    ask(api, cache, "offsets", "show", minutes=minutes, phase="Waiting")
    one.reconcile(KEY)
    one.reconcile(KEY)
    told, *_ = [each for each in api.statuses if each.get("phase") == phase]
    assert "no volume typo" in told["message"]


def test_operation_whose_job_is_gone_has_failed_and_is_not_begun_again() -> None:
    """A person who deletes the Job wants it to end; what it has done by then would be done twice."""
    api = Api("u")
    one, cache = made(api)
    ask(api, cache, "rejected", "replay", phase="Running")
    one.reconcile(KEY)
    assert "Job" not in api.applied
    [told] = [each for each in api.statuses if each.get("phase") == "Failed"]
    assert "job/again is gone" in told["message"]


@pytest.mark.parametrize("labels", [{}, {OWNER: "orders-of-another"}])
def test_pipeline_takes_nothing_over_that_it_has_not_made(labels: dict[str, str]) -> None:
    """An account of its name may be an application's, and would be deleted with the Pipeline."""
    api = Api("u")
    one, _ = made(api)
    api.others["ServiceAccount", KEY.name] = labels
    assert one.reconcile(KEY) == "Invalid"
    assert api.applied == []
    [accepted] = [each for each in api.statuses[-1]["conditions"] if each["type"] == "Accepted"]
    assert accepted["reason"] == "NameTaken"
    assert f"a ServiceAccount {KEY.name} exists" in accepted["message"]
    api.others["ServiceAccount", KEY.name] = {OWNER: KEY.name}  # a first apply that was interrupted
    assert one.reconcile(KEY) != "Invalid"


@pytest.mark.parametrize(("servers", "taken"), [("b.kafka.svc:9092", True), ("b:9092", False)])
def test_pipeline_waits_for_one_of_its_name_in_another_namespace(servers: str, taken: bool) -> None:
    """At the same brokers the two are one pipeline; a host without a domain is that of the namespace."""
    api, cache = Api("u"), Cache()
    shared = {**SHARED, "kafka": {"mode": "external", "external": {"bootstrapServers": servers}}}
    one = reconcile.Reconciler(cache, Builder(Platform(CHART, shared), str(tool("helm")), lambda: ()), api)
    about = PIPELINE["metadata"] | {"namespace": "older", "uid": "v", "creationTimestamp": "2026-01-01"}
    cache.pipeline(PIPELINE | {"metadata": about}, gone=False)
    cache.pipeline(PIPELINE | {"metadata": PIPELINE["metadata"] | {"creationTimestamp": "2026-01-02"}}, gone=False)
    assert one.reconcile(KEY) == ("Invalid" if taken else "Starting")
    [accepted] = [each for each in api.statuses[-1]["conditions"] if each["type"] == "Accepted"]
    assert (accepted["reason"], "older/orders" in accepted.get("message", "")) == (
        ("NameTaken", True) if taken else ("Valid", False)
    )
    cache.pipeline(PIPELINE | {"metadata": about}, gone=True)
    assert one.reconcile(KEY) == "Starting"


def test_revision_that_the_chart_refuses_by_now_is_not_gone_back_to_in_silence() -> None:
    """The command to go back has succeeded, so the status has to say what stands in its way."""
    api = Keeping()
    one, cache, _, works, fails = with_a_changed_sink(api)
    works["data"]["config"]["source"] = {"topics": ["a"], "pattern": "a.*"}
    fails["metadata"]["annotations"] = {FAILED: "Requested: slow"}
    for each in (works, fails):
        cache.put("ControllerRevision", each)
    before = len(api.applied)
    one.reconcile(KEY)
    [accepted] = [each for each in api.statuses[-1]["conditions"] if each["type"] == "Accepted"]
    assert "cannot run any more" in accepted["message"]
    assert "both topics and a pattern" in accepted["message"]
    assert api.applied[before:] == []


def test_what_no_watch_has_said_is_asked_for_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver or an operation that is gone is no longer in the way, and a Pipeline that is gone is forgotten."""
    api = Api("u")
    one, cache = made(api)
    one.reconcile(KEY)
    labels = {
        "tailrace.dev/pipeline": "orders",
        "tailrace.dev/release": "orders",
        "tailrace.dev/component": "driver",
    }
    about = {"name": "orders-1", "namespace": "ns", "uid": "p", "labels": labels, "creationTimestamp": "2026-01-01"}
    cache.put("Pod", {"metadata": about, "status": {}})
    asked = {"name": "orders-x", "namespace": "ns", "uid": "o", "creationTimestamp": "2026-01-01"}
    cache.put("PipelineOperation", {"metadata": asked, "spec": {"pipeline": "orders", "run": ["offsets", "reset"]}})
    monkeypatch.setattr(reconcile, "RESYNC", 0.0)
    one.reconcile(KEY)
    found = cache.of(KEY)
    assert found is not None
    assert (found.drivers, found.operations) == ((), ())
    api.there = ""
    assert one.reconcile(KEY) == ""


def test_revision_that_works_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """While an upgrade waits for its driver, the status has the revision of the driver before."""
    api = Api("u")
    one, cache = made(api)
    one.reconcile(KEY)
    asked: list[str] = []
    sets = [{"metadata": {"name": "orders-a", "annotations": {"streaming.tailrace.dev/revision": "before"}}}]

    def listed(kind: str, namespace: str, selector: str) -> list[Object]:
        asked.append(kind)
        return sets if kind == "ReplicaSet" else []

    monkeypatch.setattr(api, "list", listed)
    labels = {"tailrace.dev/pipeline": "orders", "tailrace.dev/release": "orders", "tailrace.dev/component": "driver"}
    about: Object = {"name": "orders-a-1", "namespace": "ns", "uid": "p", "labels": labels, "creationTimestamp": "now"}
    about |= {"ownerReferences": [{"kind": "ReplicaSet", "name": "orders-a"}]}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    cache.put("Pod", {"metadata": about, "status": ready})
    for _ in range(3):
        one.reconcile(KEY)
    assert api.statuses[-1]["running"] == "before" != api.statuses[-1]["revision"]
    assert asked.count("ReplicaSet") == 1


def test_revision_that_works_is_that_of_its_driver_as_soon_as_another_is_applied() -> None:
    """The reconcile that applies an upgrade has seen only drivers of the one before."""
    api = Api("u")
    one, cache = made(api)
    one.reconcile(KEY)
    found = cache.of(KEY)
    assert found is not None
    assert found.deployment is not None
    counts = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1}
    cache.put("Deployment", found.deployment | {"status": counts})
    labels = {"tailrace.dev/pipeline": "orders", "tailrace.dev/release": "orders", "tailrace.dev/component": "driver"}
    about: Object = {"name": "orders-a-1", "namespace": "ns", "uid": "p", "labels": labels, "creationTimestamp": "now"}
    cache.put("Pod", {"metadata": about, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    one.reconcile(KEY)
    before = api.statuses[-1]["revision"]
    changed = PIPELINE["spec"] | {"config": PIPELINE["spec"]["config"] | {"batch": {"max_records": 7}}}
    metadata = PIPELINE["metadata"] | {"generation": 2, "resourceVersion": "2"}
    cache.pipeline(PIPELINE | {"metadata": metadata, "spec": changed}, gone=False)
    one.reconcile(KEY)
    assert api.statuses[-1]["running"] == before != api.statuses[-1]["revision"]


def test_new_drivers_keep_what_they_need() -> None:
    """Once for each new pod, and not for a Pipeline that is gone."""
    api = Api("u")
    one, cache = made(api)
    one.reconcile(KEY)
    api.applied.clear()
    labels = {
        "tailrace.dev/pipeline": "orders",
        "tailrace.dev/release": "orders",
        "tailrace.dev/component": "driver",
    }

    def pod(name: str) -> Object:
        about = {"name": name, "namespace": "ns", "uid": name, "labels": labels, "creationTimestamp": "2026-01-01"}
        return {"metadata": about, "status": {}}

    cache.put("Pod", pod("orders-1"))
    one.reconcile(KEY)
    assert set(api.applied) == {"ServiceAccount", "Role", "RoleBinding", "NetworkPolicy"}
    api.applied.clear()
    one.reconcile(KEY)
    assert api.applied == []
    api.there = ""
    cache.put("Pod", pod("orders-2"))
    one.reconcile(KEY)
    assert api.applied == []


def test_driver_waits_for_its_secret_and_starts_when_it_is_there() -> None:
    """Everything else is applied meanwhile."""
    api = Api("u")
    api.missing = {"db"}
    one, cache = made(api)
    spec = PIPELINE["spec"] | {"secretEnv": {"A": {"secret": "db", "key": "k"}}}
    cache.pipeline(PIPELINE | {"spec": spec}, gone=False)
    for _ in range(2):  # the second time with the status as it was before the first
        assert one.reconcile(KEY) == "Waiting"
    assert "NetworkPolicy" in api.applied
    assert api.replicas[-1] == 0
    assert api.told == ["WaitingForSecret: Secret db does not exist"]
    api.missing.clear()
    assert one.reconcile(KEY) == "Starting"
    assert api.replicas[-1] == 1


def test_operation_waits_beside_a_driver_that_works_while_its_pod_could_not_start() -> None:
    """The pipeline rested until a person had made the Secret; the operation would not have run before either."""
    api = Api("u")
    one, cache = made(api)
    spec = PIPELINE["spec"] | {"secretEnv": {"A": {"secret": "db", "key": "k"}}}
    cache.pipeline(PIPELINE | {"spec": spec}, gone=False)
    assert one.reconcile(KEY) == "Starting"
    api.missing = {"db"}
    ask(api, cache, "offsets", "reset")
    one.reconcile(KEY)
    assert ("Job" in api.applied, api.replicas) == (False, [1])
    [told] = [each for each in api.statuses if each.get("phase") == "Waiting"]
    assert told["message"] == "Secret db does not exist"
    api.missing.clear()
    assert one.reconcile(KEY) == "Operating"
    assert api.replicas[-1] == 0


def test_operation_of_a_pipeline_that_is_gone_is_not_run_on_the_next_of_its_name() -> None:
    """It waited for a Secret; the new pipeline's offsets would have been moved by it."""
    api = Api("u")
    one, cache = made(api)
    body = PIPELINE | {"metadata": PIPELINE["metadata"] | {"creationTimestamp": datetime.now(UTC).isoformat()}}
    cache.pipeline(body, gone=False)
    ask(api, cache, "offsets", "reset", minutes=60)
    assert one.reconcile(KEY) == "Starting"
    assert ("Job" in api.applied, api.replicas) == (False, [1])
    [told] = [each for each in api.statuses if each.get("phase") == "Failed"]
    assert told["message"] == "it was asked of a Pipeline orders that is gone; ask this one"


class Keeping(Api):
    """An API server that keeps what is applied."""

    def __init__(self) -> None:
        super().__init__("u")
        self.kept: dict[tuple[str, str], Object] = {}
        self.away = False

    def apply(self, body: Object) -> Object:
        """Keep an object; annotations that a later one omits are gone."""
        made = super().apply(copy.deepcopy(body))
        made["metadata"]["creationTimestamp"] = "2026-01-01"
        self.kept[body["kind"], body["metadata"]["name"]] = made
        return made

    def list(self, kind: str, namespace: str, selector: str) -> list[Object]:
        """Return what is kept, unless the server is away."""
        if self.away:
            raise OSError("the server is away")
        return [each for (of, _), each in self.kept.items() if of == kind]

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object."""
        del self.kept[kind, name]


def with_a_changed_sink(api: Keeping) -> tuple[reconcile.Reconciler, Cache, Object, Object, Object]:
    """Return an operator whose stable Pipeline has got another sink, the Pipeline, and its revisions, old and new."""
    one, cache = made(api)
    one.reconcile(KEY)
    [works] = [body for (kind, _), body in api.kept.items() if kind == "ControllerRevision"]
    works["metadata"]["annotations"] = {STABLE: "2026-01-01T00:00:00Z"}
    cache.put("ControllerRevision", works)
    spec = PIPELINE["spec"] | {"config": PIPELINE["spec"]["config"] | {"sink": {"topic": "c"}}}
    changed = PIPELINE | {"metadata": PIPELINE["metadata"] | {"generation": 2, "resourceVersion": "2"}, "spec": spec}
    cache.pipeline(changed, gone=False)
    one.reconcile(KEY)
    [fails] = [body for (kind, _), body in api.kept.items() if kind == "ControllerRevision" and body is not works]
    return one, cache, changed, works, fails


@pytest.mark.parametrize("away", [False, True])
def test_restarted_operator_keeps_a_rollback_whichever_watch_it_hears_first(away: bool) -> None:
    """Each kind has its own watch: it hears of the Pipeline before it hears that the newest revision has failed."""
    api = Keeping()
    one, cache, changed, works, fails = with_a_changed_sink(api)
    fails["metadata"] |= {"annotations": {FAILED: "ConfigInvalid: no"}, "resourceVersion": "900"}
    cache.put("ControllerRevision", fails)
    one.reconcile(KEY)
    assert revision_of(api.kept["Deployment", "orders"]) == works["metadata"]["labels"][DIGEST]
    again, fresh = made(api)
    fresh.pipeline(changed, gone=False)
    api.away = away
    if away:
        with pytest.raises(OSError, match="away"):
            again.reconcile(KEY)
        api.away = False
    again.reconcile(KEY)
    assert revision_of(api.kept["Deployment", "orders"]) == works["metadata"]["labels"][DIGEST]
    record = api.kept["ControllerRevision", fails["metadata"]["name"]]
    assert (record["metadata"]["annotations"], record["revision"]) == ({FAILED: "ConfigInvalid: no"}, 2)


def configuration(api: Keeping, pod: Object) -> Object:
    """Return the configuration that a pod mounts."""
    mounted = {(each.get("configMap") or {}).get("name", "") for each in pod["volumes"]}
    [found] = [api.kept["ConfigMap", name] for name in mounted if "pipeline.yaml" in data_of(api, name)]
    made: Object = yaml.safe_load(found["data"]["pipeline.yaml"])
    return made


def data_of(api: Keeping, name: str) -> Object:
    """Return the data of a ConfigMap; empty if there is none."""
    data: Object = api.kept.get(("ConfigMap", name), {}).get("data", {})
    return data


@pytest.mark.parametrize(("outcome", "paused"), [("Complete", False), ("Failed", False), ("Complete", True)])
def test_changed_sink_is_accepted_after_its_rollback(outcome: str, paused: bool) -> None:
    """The command has the spec's configuration, not that of the revision that runs; then the spec's revision runs.

    It has not ended as long as the Pipeline is paused, so that it still counts when that goes on.
    """
    api = Keeping()
    one, cache, changed, works, fails = with_a_changed_sink(api)
    record = "ControllerRevision", str(fails["metadata"]["name"])
    left = {FAILED: "ProgressDeadlineExceeded: orders-x: TR-310 plan for another sink or source"}
    fails["metadata"] |= {"annotations": left, "resourceVersion": str(len(api.applied))}
    cache.put("ControllerRevision", fails)
    one.reconcile(KEY)
    old, new = works["metadata"]["labels"][DIGEST], fails["metadata"]["labels"][DIGEST]
    assert revision_of(api.kept["Deployment", "orders"]) == old
    about = {"name": "orders-accept", "namespace": "ns", "uid": "o", "creationTimestamp": "2026-01-01"}
    asked: Object = {"metadata": about, "spec": {"pipeline": "orders", "run": ["offsets", "accept"]}}
    cache.put("PipelineOperation", asked)
    for _ in range(2):
        assert one.reconcile(KEY) == "Operating"
    job = api.kept["Job", "orders-accept"]
    assert configuration(api, job["spec"]["template"]["spec"])["sink"]["topic"] == "c"
    ended = {"conditions": [{"type": outcome, "status": "True"}]}
    cache.put("Job", job | {"metadata": job["metadata"] | {"resourceVersion": "901"}, "status": ended})
    if paused:
        about_it = changed["metadata"] | {"resourceVersion": "3"}
        cache.pipeline(changed | {"metadata": about_it, "spec": changed["spec"] | {"paused": True}}, gone=False)
        one.reconcile(KEY)
        assert [each["phase"] for each in api.statuses if each.get("phase") in ("Succeeded", "Failed")] == []
        cache.pipeline(changed | {"metadata": about_it | {"resourceVersion": "4"}}, gone=False)
    one.reconcile(KEY)
    phase = api.statuses[-2]["phase"]
    cache.put("PipelineOperation", asked | {"metadata": about | {"resourceVersion": "902"}, "status": {"phase": phase}})
    one.reconcile(KEY)
    accepted = outcome == "Complete"
    assert revision_of(api.kept["Deployment", "orders"]) == (new if accepted else old)
    assert api.replicas[-1] == 1
    assert api.kept[record]["metadata"]["annotations"] == ({} if accepted else left)


class Overtaken(Api):
    """An API server whose lists are overtaken: the watches report more before an answer is used."""

    def __init__(self, meanwhile: dict[str, Callable[[], None]]) -> None:
        super().__init__("u")
        self.meanwhile = meanwhile
        self.asked: list[str] = []

    def list(self, kind: str, namespace: str, selector: str) -> list[Object]:
        """Return what is there, and let the watches report what happens next, once."""
        self.asked.append(kind)
        listed = list(super().list(kind, namespace, selector))
        self.meanwhile.pop(kind, lambda: None)()
        return listed


def test_operation_that_is_deleted_while_it_is_listed_gets_no_job() -> None:
    """The person who deleted it does not want it to run."""
    about = {"name": "orders-x", "namespace": "ns", "uid": "o", "creationTimestamp": "2026-01-01"}
    asked = {"metadata": about, "spec": {"pipeline": "orders", "run": ["offsets", "reset"]}}

    def deleted() -> None:
        cache.put("PipelineOperation", asked, gone=True)

    api = Overtaken({"PipelineOperation": deleted})
    api.objects["PipelineOperation"] = [asked]
    one, cache = made(api)
    cache.put("PipelineOperation", asked)
    one.reconcile(KEY)
    assert "Job" not in api.applied


def test_list_that_disagrees_with_a_watch_is_asked_for_again() -> None:
    """A watch that is interrupted after its report does not tell that the object was deleted since."""
    about = {"name": "orders-x", "namespace": "ns", "uid": "o", "creationTimestamp": "2026-01-01"}
    asked = {"metadata": about, "spec": {"pipeline": "orders", "run": ["offsets", "reset"]}}

    def made_now() -> None:
        cache.put("PipelineOperation", asked)

    api = Overtaken({"PipelineOperation": made_now})
    one, cache = made(api)
    for operations, times in ((1, 1), (0, 2), (0, 2)):
        one.reconcile(KEY)
        found = cache.of(KEY)
        assert found is not None
        assert (len(found.operations), api.asked.count("PipelineOperation")) == (operations, times)
