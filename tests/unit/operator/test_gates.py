"""What a driver waits for before it starts, and that one which runs goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tailrace_operator import gates
from tailrace_operator.build import Built
from tailrace_operator.decide import decide
from tailrace_operator.model import (
    Choice,
    Closed,
    Hold,
    Key,
    Object,
    Operation,
    Progress,
    Report,
    Resource,
    Rollout,
    Seen,
)
from tailrace_operator.revisions import wanted
from tailrace_operator.status import Phase, status
from tailrace_operator.tell import waiting

KEY = Key("ns", "p")
SPEC: dict[str, Any] = {"config": {"source": {"topics": ["in"]}, "sink": {"topic": "out"}}}
RESOURCE = Resource(KEY, "uid", 1, SPEC)
NAME = wanted(RESOURCE, ()).name
RUNS = Rollout(NAME, "digest", 1, Progress.DONE, 1, 1)
SECRET = Closed("Secret", "db", "does not exist")
USER = Closed("KafkaUser", "p", "is not ready: later")
READY: Object = {"metadata": {"generation": 2}, "status": {"observedGeneration": 2, "conditions": []}}


def choice(**given: Any) -> tuple[Seen, Choice]:
    """Return what was seen, and what was decided about it."""
    seen = Seen(replace(RESOURCE, spec=given.pop("spec", SPEC)), **given)
    return seen, decide(seen)


@pytest.mark.parametrize(("rollout"), [None, replace(RUNS, replicas=0, ready=0)])
def test_driver_does_not_start_before_its_dependencies(rollout: Rollout | None) -> None:
    """A new one, and one that was suspended; everything else is applied, and the status names what is missing."""
    seen, made = choice(rollout=rollout)
    held = gates.held_back(seen, made, (USER, SECRET))
    assert (held.running, held.run) == (False, made.run)
    found = status(seen, held, "now")
    conditions = {each["type"]: each for each in found["conditions"]}
    assert found["phase"] == Phase.WAITING
    assert (conditions["Ready"]["status"], conditions["Ready"]["reason"]) == ("False", "WaitingForKafkaUser")
    assert "Secret db does not exist" in conditions["Ready"]["message"]
    assert conditions["DependenciesReady"]["status"] == "False"
    assert gates.held_back(seen, made, ()).running


def test_driver_that_runs_is_not_stopped() -> None:
    """What is missing now is only reported: in a condition, and once in an Event."""
    seen, made = choice(rollout=RUNS, report=Report(True, False, "leading"))
    held = gates.held_back(seen, made, (USER, SECRET))
    assert (held.running, held.run, held.hold) == (True, made.run, None)
    found = status(seen, held, "now")
    assert found["phase"] == Phase.RUNNING
    reasons = {each["type"]: each["reason"] for each in found["conditions"]}
    assert (reasons["Ready"], reasons["DependenciesReady"]) == ("Leading", "WaitingForKafkaUser")
    told = waiting({}, held)
    assert told is not None
    assert (told.reason, told.warning) == ("WaitingForKafkaUser", True)
    assert waiting(found, held) is None


@pytest.mark.parametrize("suspended", [False, True])
def test_driver_is_not_stopped_for_an_operation_that_cannot_begin(suspended: bool) -> None:
    """Its pod needs the same; the driver would rest until a person has made it, and then not start either."""
    spec = SPEC | ({"suspend": True} if suspended else {})
    seen, made = choice(spec=spec, rollout=RUNS, operation=Operation("o", "u", "2026-01-01", ("offsets", "reset")))
    assert (made.running, made.resting) == (False, "o")
    held = gates.held_back(seen, made, (SECRET,))
    assert (held.running, held.resting, held.waiting) == (not suspended, "", (SECRET,))
    assert gates.held_back(seen, made, ()) == made


@pytest.mark.parametrize(
    ("closed", "warning"),
    [((USER,), False), ((replace(USER, asked=True),), True), ((USER, SECRET), True)],
)
def test_new_pipeline_warns_only_of_what_nobody_is_about_to_make(closed: tuple[Closed, ...], warning: bool) -> None:
    """Its KafkaUser was just applied, and Strimzi makes it ready by itself: every Pipeline begins so."""
    seen, made = choice()
    told = waiting({}, gates.held_back(seen, made, closed))
    assert told is not None
    assert told.warning is warning


def test_upgrade_waits_for_a_secret_and_leaves_what_runs() -> None:
    """Its pod could not start; a KafkaUser becomes ready only after it was applied, so that holds nothing."""
    seen, made = choice(rollout=replace(RUNS, revision="old"), report=Report(True, False, "leading"))
    held = gates.held_back(seen, made, (USER, SECRET))
    assert (held.run, held.hold) == (None, Hold.WAITING)
    found = status(seen, held, "now")
    conditions = {each["type"]: each for each in found["conditions"]}
    assert found["phase"] == Phase.WAITING
    assert conditions["Ready"]["status"] == "True"
    assert conditions["Progressing"]["reason"] == "WaitingForSecret"
    assert gates.held_back(seen, made, (USER,)).run == made.run


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (None, "newest spec"),
        ({"observedGeneration": 1, "conditions": [{"type": "Ready", "status": "True"}]}, "newest spec"),
        ({"observedGeneration": 2}, "has not reported it Ready"),
        ({"observedGeneration": 2, "conditions": [{"type": "Ready", "status": "False", "message": "no"}]}, "no"),
        ({"observedGeneration": 2, "conditions": [{"type": "Ready", "status": "True"}]}, ""),
        ({"observedGeneration": 1, "conditions": [{"type": "ReconciliationPaused", "status": "True"}]}, ""),
    ],
)
def test_resource_is_ready_when_strimzi_says_so_of_its_newest_spec(status: Object | None, problem: str) -> None:
    """One that a person has taken from Strimzi is not waited for."""
    found = gates.not_ready({"metadata": {"generation": 2}, **({"status": status} if status else {})})
    assert found.endswith(problem)
    assert bool(found) is bool(problem)


def test_references_of_a_pod_are_those_without_which_it_hangs() -> None:
    """In variables and volumes of every container, but for optional ones."""
    pod = {
        "initContainers": [{"envFrom": [{"configMapRef": {"name": "settings"}}]}],
        "containers": [
            {
                "env": [
                    {"name": "A", "valueFrom": {"secretKeyRef": {"name": "db", "key": "k"}}},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "maybe", "key": "k", "optional": True}}},
                    {"name": "C", "value": "1"},
                    {"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                ]
            }
        ],
        "volumes": [
            {"name": "a", "secret": {"secretName": "tls"}},
            {"name": "b", "projected": {"sources": [{"secret": {"name": "ca"}}, {"configMap": {"name": "more"}}]}},
            {"name": "c", "configMap": {"name": "perhaps", "optional": True}},
            {"name": "d", "emptyDir": {}},
        ],
    }
    secrets = {("Secret", name) for name in ("db", "tls", "ca")}
    assert gates.references(pod) == secrets | {("ConfigMap", "settings"), ("ConfigMap", "more")}


class Api:
    """An API server that has some objects, and refuses others."""

    def __init__(self, *there: Object, refused: str = "") -> None:
        self.objects = {(each["kind"], each["metadata"]["name"]): each for each in there}
        self.refused = refused
        self.asked = 0

    def find(self, kind: str, namespace: str, name: str) -> Object | None:
        """Return an object."""
        self.asked += 1
        if name == self.refused:
            raise PermissionError(name)
        return self.objects.get((kind, name))

    def list(self, kind: str, namespace: str, selector: str) -> list[Object]:
        """Return the objects of a kind."""
        self.asked += 1
        return [each for (found, _), each in self.objects.items() if found == kind]


def built(*secrets: str) -> Built:
    """Return a Deployment whose driver refers to Secrets, with its ledger's topic."""
    env = [{"name": each, "valueFrom": {"secretKeyRef": {"name": each, "key": "k"}}} for each in secrets]
    pod = {"containers": [{"name": "driver", "env": env}]}
    deployment = {"kind": "Deployment", "metadata": {"name": "p"}, "spec": {"template": {"spec": pod}}}
    about = {"name": "main-ledger", "labels": {"strimzi.io/cluster": "main"}}
    return Built(({"kind": "KafkaTopic", "metadata": about, "spec": {"topicName": "ledger"}}, deployment), "digest")


def topic(name: str, ready: str) -> Object:
    """Return a KafkaTopic that is ready or not."""
    conditions = [{"type": "Ready", "status": ready}]
    about = {"name": name, "generation": 1}
    return {
        "kind": "KafkaTopic",
        "metadata": about,
        "spec": {},
        "status": {"observedGeneration": 1, "conditions": conditions},
    }


def test_gate_opens_as_soon_as_everything_is_there() -> None:
    """A topic that the spec reads is waited for if it is Strimzi's; the others may be anybody's."""
    api = Api(topic("in", "False"), topic("another", "False"))
    looks, (seen, made) = gates.Gates(api), choice()
    held = looks.pass_through(seen, made, built("db"))
    assert [each.name for each in held.waiting] == ["in", "main-ledger", "db"]
    secret: Object = {"kind": "Secret", "metadata": {"name": "db"}}
    for each in (topic("in", "True"), topic("main-ledger", "True"), secret):
        api.objects[each["kind"], each["metadata"]["name"]] = each
    assert looks.pass_through(seen, made, built("db")).running
    running, made = choice(rollout=RUNS)
    asked = api.asked
    assert looks.pass_through(running, made, built("db")).waiting == ()
    assert api.asked == asked
    del api.objects["Secret", "db"]
    operates = choice(rollout=RUNS, operation=Operation("o", "u", "2026-01-01", ("offsets", "reset")))
    held = looks.pass_through(*operates, built("db"))  # looked at again, because the driver would be stopped
    assert (held.running, [each.name for each in held.waiting]) == (True, ["db"])


def test_secret_that_may_not_be_read_is_no_reason_to_wait_unless_the_spec_asks() -> None:
    """Without the right nothing is known; the pod shows whether it is missing."""
    api = Api(topic("main-ledger", "True"), refused="db")
    seen, made = choice()
    assert gates.Gates(api).pass_through(seen, made, built("db")).running
    asks = {**SPEC, "waitFor": [{"kind": "Secret", "name": "db"}]}
    seen, made = choice(spec=asks)
    [closed] = gates.Gates(api).pass_through(seen, made, built("db")).waiting
    assert (closed.name, closed.asked, "lacks the right" in closed.problem) == ("db", True, True)


def test_spec_waits_for_objects_of_other_namespaces() -> None:
    """Such as a KafkaUser in the namespace of its brokers."""
    spec = {**SPEC, "waitFor": [{"kind": "KafkaUser", "name": "u", "namespace": "kafka"}]}
    seen, made = choice(spec=spec)
    [closed] = gates.Gates(Api(topic("main-ledger", "True"))).pass_through(seen, made, built()).waiting
    assert (closed.reason, closed.name) == ("WaitingForKafkaUser", "kafka/u")
