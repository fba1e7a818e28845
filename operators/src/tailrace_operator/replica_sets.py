"""Which revision a driver's pod is of: during an upgrade there are pods of two.

Kubernetes copies a Deployment's annotations to the ReplicaSet that it makes for a pod template, and so the revision's
name. It is asked for only while pods differ, and once for each ReplicaSet.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from tailrace_operator.model import Key, Object, Progress, Seen
from tailrace_operator.objects import selector
from tailrace_operator.observe import revision_of


class Api(Protocol):
    """What is needed of the API server."""

    def list(self, kind: str, namespace: str, selector: str) -> list[Object]:
        """Return the objects of a kind that have these labels."""


class ReplicaSets:
    """The revisions of the ReplicaSets that pods were made by."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: dict[Key, dict[str, str]] = {}

    def marked(self, seen: Seen) -> Seen:
        """Return what was seen, with the revision of each driver's pod."""
        key, rollout = seen.resource.key, seen.rollout
        if rollout is None:
            return seen
        if rollout.progress is Progress.DONE:  # all are of the Deployment's
            self.forget(key)
            return replace(seen, pods=tuple(replace(each, revision=rollout.revision) for each in seen.pods))
        known = self._known.setdefault(key, {})
        if {each.made_by for each in seen.pods} - {"", *known}:
            found = self._api.list("ReplicaSet", key.namespace, selector(key, "driver"))
            known.update({each["metadata"]["name"]: revision_of(each) for each in found})
        return replace(seen, pods=tuple(replace(each, revision=known.get(each.made_by, "")) for each in seen.pods))

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a Pipeline."""
        self._known.pop(key, None)
