"""Gates: what a driver needs before it starts, and what of that is missing.

A pod whose Secret is missing hangs, and a driver whose KafkaUser is not ready crashes until it is. So no driver starts
before its dependencies exist, and the status names the one that it waits for. A driver that runs is never stopped.
Everything else about a Pipeline is applied meanwhile: its KafkaUser cannot become ready otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

import yaml

from tailrace_operator.build import Built, topics
from tailrace_operator.model import Choice, Closed, Hold, Key, Object, Resource, Seen
from tailrace_operator.platform import TOPIC

KINDS = ("KafkaUser", TOPIC, "Secret", "ConfigMap")  # in the order in which they are reported
AGAIN = 600.0  # seconds until the dependencies of a running driver are looked at again
_MOUNTED = ("Secret", "ConfigMap")
_KEYS = {"secretKeyRef": "Secret", "secretRef": "Secret", "configMapKeyRef": "ConfigMap", "configMapRef": "ConfigMap"}
_CLUSTER = "strimzi.io/cluster"
_LEFT_ALONE = {"ReconciliationPaused", "Unmanaged"}  # Strimzi does nothing about it, and a person has decided that


class Api(Protocol):
    """What gates need of the API server."""

    def find(self, kind: str, namespace: str, name: str) -> Object | None:
        """Return an object, of a Secret or ConfigMap only its metadata; raise PermissionError if that is refused."""

    def list(self, kind: str, namespace: str, selector: str) -> list[Object]:
        """Return the objects of a kind that have these labels; none if the cluster does not know the kind."""


class Gates:
    """Looks at dependencies only before a driver starts or changes, and rarely while it runs."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._closed: dict[Key, tuple[Closed, ...]] = {}
        self._looked: dict[Key, float] = {}

    def pass_through(self, seen: Seen, choice: Choice, built: Built) -> Choice:
        """Return the choice, without a driver if one would start and something is missing."""
        key, now = seen.resource.key, time.monotonic()
        since = now - self._looked.get(key, float("-inf"))
        about_to = starts(seen) or stops(seen, choice) or changes(seen, choice)
        if about_to or self._closed.get(key) or since > AGAIN:
            self._closed[key] = self._look(seen.resource, built)
            self._looked[key] = now
        return held_back(seen, choice, self._closed[key])

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a Pipeline that is gone."""
        self._closed.pop(key, None)
        self._looked.pop(key, None)

    def _look(self, resource: Resource, built: Built) -> tuple[Closed, ...]:
        namespace, wanted = resource.key.namespace, topics(resource.spec)
        found = [self._state(namespace, *each) for each in needs(resource, built)]
        for cluster in {each["metadata"]["labels"][_CLUSTER] for each in built.objects if each["kind"] == TOPIC}:
            there = self._api.list(TOPIC, namespace, f"{_CLUSTER}={cluster}")
            found += [_topic(each) for each in there if topic_name(each) in wanted]
        made = {each for each in found if each is not None}
        return tuple(sorted(made, key=lambda each: (KINDS.index(each.kind), each.name)))

    def _state(self, own: str, kind: str, namespace: str, name: str, asked: bool) -> Closed | None:
        place = name if namespace == own else f"{namespace}/{name}"
        try:
            found = self._api.find(kind, namespace, name)
        except PermissionError:
            # What the spec asks to wait for is not assumed to be there; whether a Secret is shows at the pod.
            return Closed(kind, place, "cannot be read: the operator lacks the right", asked) if asked else None
        if found is None:
            return Closed(kind, place, "does not exist", asked)
        problem = "" if kind in _MOUNTED else not_ready(found)
        return Closed(kind, place, problem, asked) if problem else None


def starts(seen: Seen) -> bool:
    """Return whether no driver is to run so far."""
    return seen.rollout is None or not seen.rollout.replicas


def stops(seen: Seen, choice: Choice) -> bool:
    """Return whether a driver that runs is to rest for an operation: it, too, starts a pod that needs everything."""
    return bool(choice.resting) and not starts(seen)


def changes(seen: Seen, choice: Choice) -> bool:
    """Return whether another revision is to run than the one that does."""
    return seen.rollout is not None and choice.run is not None and seen.rollout.revision != choice.run.name


def held_back(seen: Seen, choice: Choice, closed: tuple[Closed, ...]) -> Choice:
    """Return the choice: a start waits, an upgrade waits for what its pod refers to, and nothing is stopped.

    Nor is it for an operation: that waits while the driver works, unless the spec suspends it.
    """
    if stops(seen, choice) and closed:
        return replace(choice, running=not seen.resource.suspended, resting="", waiting=closed)
    if starts(seen) and closed:
        return replace(choice, running=False, waiting=closed)
    needed = tuple(each for each in closed if is_up_to_people(each))
    if changes(seen, choice) and needed:
        return replace(choice, run=None, hold=Hold.WAITING, why=words(needed), waiting=needed)
    return replace(choice, waiting=closed)


def is_up_to_people(each: Closed) -> bool:
    """Return whether it stays missing until a person does something: Strimzi makes its resources ready by itself."""
    return each.kind in _MOUNTED or each.asked


def words(closed: Iterable[Closed]) -> str:
    """Return what is missing, for people."""
    return "; ".join(f"{each.kind} {each.name} {each.problem}" for each in closed)


def needs(resource: Resource, built: Built) -> list[tuple[str, str, str, bool]]:
    """Return what pods refer to and what the spec names: kind, namespace, name, and whether the spec asks to wait."""
    namespace = resource.key.namespace
    own = {(each["kind"], each["metadata"]["name"]) for each in built.objects}
    found = {(kind, namespace, name) for kind, name in own if kind in (TOPIC, "KafkaUser")}
    for pod in _pods(built):
        found |= {(kind, namespace, name) for kind, name in references(pod) if (kind, name) not in own}
    asked = {
        (str(each["kind"]), str(each.get("namespace") or namespace), str(each["name"]))
        for each in resource.spec.get("waitFor") or ()
    }
    return sorted((*each, each in asked) for each in found | asked)


def references(pod: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return the Secrets and ConfigMaps without which the kubelet does not start a pod."""
    return (
        set(_references(pod.get("containers", ())))
        | set(_references(pod.get("initContainers", ())))
        | {each for volume in pod.get("volumes", ()) for each in _volume(volume)}
    )


def _references(containers: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for container in containers:
        sources = [each.get("valueFrom") or {} for each in container.get("env", ())] + container.get("envFrom", [])
        for source in sources:
            for key, kind in _KEYS.items():
                if key in source and not source[key].get("optional"):
                    yield kind, str(source[key]["name"])


def _volume(volume: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for source in [volume, *(volume.get("projected") or {}).get("sources", ())]:
        for key, kind, name in (("secret", "Secret", "secretName"), ("configMap", "ConfigMap", "name")):
            found = source.get(key)
            if found and not found.get("optional"):
                yield kind, str(found.get(name) or found.get("name"))


def _pods(built: Built) -> Iterator[Mapping[str, Any]]:
    """Return the specs of the driver's pod and of the executors'."""
    yield built.deployment["spec"]["template"]["spec"]
    for each in built.objects:
        if each["kind"] == "ConfigMap" and "executor.yaml" in each["data"]:
            yield yaml.safe_load(each["data"]["executor.yaml"])["spec"]


def not_ready(body: Mapping[str, Any]) -> str:
    """Return why one of Strimzi's resources is not ready; empty if it is."""
    status = body.get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions", ())}
    ready = conditions.get("Ready", {})
    if conditions.keys() & _LEFT_ALONE:
        return ""
    if int(status.get("observedGeneration", 0)) < int(body["metadata"].get("generation", 0)):
        return "is not ready: Strimzi has not seen its newest spec"
    if ready.get("status") == "True":
        return ""
    return f"is not ready: {ready.get('message') or 'Strimzi has not reported it Ready'}"


def topic_name(body: Mapping[str, Any]) -> str:
    """Return the name of a KafkaTopic's topic."""
    return str(body["spec"].get("topicName") or body["metadata"]["name"])


def _topic(body: Mapping[str, Any]) -> Closed | None:
    problem = not_ready(body)
    return Closed(TOPIC, body["metadata"]["name"], problem) if problem else None
