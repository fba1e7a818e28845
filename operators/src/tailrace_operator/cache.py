"""What the watches have seen, by Pipeline: a reconcile with nothing to do asks the API server nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tailrace import errors
from tailrace.config.resource import OPERATION, OWNER
from tailrace_operator.model import SHADOW, Key, Object

# The label that names an object's Pipeline; pods have the chart's.
LABELS = {"Deployment": OWNER, "ControllerRevision": OWNER, "Job": OWNER, "Pod": "tailrace.dev/pipeline"}


@dataclass(frozen=True)
class Found:
    """The objects of one Pipeline."""

    pipeline: Object
    records: tuple[Object, ...]
    deployment: Object | None
    drivers: tuple[Object, ...]
    operations: tuple[Object, ...] = ()
    jobs: tuple[Object, ...] = ()


class Cache:
    """The newest objects that were seen; used by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipelines: dict[Key, Object] = {}
        self._objects: dict[tuple[str, Key], dict[str, Object]] = {}
        self._reported: dict[tuple[str, Key], set[str]] = {}  # names reported while a list of them is asked for

    def pipeline(self, body: Object, *, gone: bool) -> Key:
        """Take a Pipeline, and return its place."""
        key = Key(body["metadata"]["namespace"], body["metadata"]["name"])
        with self._lock:
            if gone:
                self._pipelines.pop(key, None)
            elif not _older(body, self._pipelines.get(key)):
                self._pipelines[key] = body
        return key

    def put(self, kind: str, body: Object, *, gone: bool = False) -> Key:
        """Take an object, unless a newer state of it was seen, and return its Pipeline's place."""
        about = body["metadata"]
        owner = about["labels"][LABELS[kind]] if kind in LABELS else body["spec"]["pipeline"]
        key = Key(about["namespace"], owner)
        with self._lock:
            held = self._objects.setdefault((kind, key), {})
            if not gone and _older(body, held.get(about["name"])):
                return key
            if gone:
                held.pop(about["name"], None)
            else:
                held[about["name"]] = body
            self._reported.get((kind, key), set()).add(about["name"])
        return key

    def replace(self, kind: str, key: Key, ask: Callable[[], Iterable[Object]]) -> bool:
        """Take all objects of a kind that a Pipeline has: the others are gone, though no watch has said so.

        The list may be older than what is reported between `ask` and its answer, so those objects stay as reported.
        Return whether the list and the reports agree on what exists; otherwise ask again.
        """
        place = kind, key
        with self._lock:
            if place in self._reported:
                raise errors.InvariantBroken(f"two lists of {key}'s {kind} objects were asked for at the same time")
            reported = self._reported[place] = set[str]()
        try:
            listed = {each["metadata"]["name"]: each for each in ask()}
            with self._lock:
                held = self._objects.setdefault(place, {})
                for name in held.keys() - listed.keys() - reported:
                    del held[name]
                for name, body in listed.items():
                    if name not in reported and not _older(body, held.get(name)):
                        held[name] = body
                return held.keys() == listed.keys()
        finally:
            with self._lock:
                del self._reported[place]

    def drop(self, key: Key, uid: str) -> None:
        """Forget a Pipeline that is gone, though no watch has said so; one that was made again meanwhile stays."""
        with self._lock:
            held = self._pipelines.get(key)
            if held is not None and held["metadata"]["uid"] == uid:
                del self._pipelines[key]

    def of(self, key: Key) -> Found | None:
        """Return the objects of a Pipeline; None if there is none."""
        with self._lock:
            pipeline = self._pipelines.get(key)
            if pipeline is None:
                return None
            return Found(
                pipeline=pipeline,
                records=tuple(self._objects.get(("ControllerRevision", key), {}).values()),
                deployment=self._objects.get(("Deployment", key), {}).get(key.name),
                drivers=tuple(
                    each
                    for each in self._objects.get(("Pod", key), {}).values()
                    if each["metadata"]["labels"].get("tailrace.dev/component") == "driver"
                    and each["metadata"]["labels"].get("tailrace.dev/release") == key.name  # not a Helm release's
                ),
                operations=tuple(self._objects.get((OPERATION, key), {}).values()),
                jobs=tuple(self._objects.get(("Job", key), {}).values()),
            )

    def body(self, key: Key) -> Object | None:
        """Return a Pipeline; None if there is none."""
        with self._lock:
            return self._pipelines.get(key)

    def bodies(self) -> dict[Key, Object]:
        """Return all Pipelines."""
        with self._lock:
            return dict(self._pipelines)

    def live_of(self, key: Key) -> Key | None:
        """Return the place of the Pipeline that this one is the shadow of; None if it is no shadow."""
        body = self.body(key)
        name = (body["metadata"].get("labels") or {}).get(SHADOW) if body is not None else None
        return Key(key.namespace, name) if name else None

    def keys(self) -> list[Key]:
        """Return the places of all Pipelines."""
        with self._lock:
            return sorted(self._pipelines)


def _older(body: Mapping[str, Any], held: Mapping[str, Any] | None) -> bool:
    """Return whether a state is older than the held one of the same object."""
    if held is None or held["metadata"]["uid"] != body["metadata"]["uid"]:
        return False
    versions = [each["metadata"].get("resourceVersion", "") for each in (body, held)]
    return all(each.isdigit() for each in versions) and int(versions[0]) < int(versions[1])
