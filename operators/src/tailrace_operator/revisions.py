"""A spec's revision, and its ControllerRevision."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tailrace.config.resource import DIGEST, FAILED, KIND, OWNER, STABLE
from tailrace_operator import overlay
from tailrace_operator.changes import Effect, part
from tailrace_operator.model import PROMOTED, TOPICS, Object, Resource, Revision
from tailrace_operator.objects import owner

_KEPT = 10  # more than anybody rolls back to, and few enough to read


def digest(data: object) -> str:
    """Return a short digest of plain data."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def wanted(resource: Resource, known: Sequence[Revision]) -> Revision:
    """Return the revision that is to run: the newest from now on, even if it was there before.

    That is the spec's, unless a person promoted another. A promotion holds as long as the spec has a shadow.
    """
    own = asked(resource, known)
    if not own.promoted or not resource.spec.get("shadow"):
        return own
    found = next((each for each in known if each.name == own.promoted), None) or candidate(resource)
    return _newest(found, known) if found.name == own.promoted else own


def asked(resource: Resource, known: Sequence[Revision]) -> Revision:
    """Return the revision that the spec alone asks for."""
    return replace(_known(part(resource.spec, Effect.HAND_OVER), known), topics=_topics(resource.spec))


def candidate(resource: Resource) -> Revision:
    """Return the revision that a promotion of the shadow would let run."""
    made = overlay.overlaid(resource.spec)
    spec = part(made, Effect.HAND_OVER)
    return Revision(digest(spec), spec, topics=_topics(made))


def overdue(resource: Resource, known: Sequence[Revision]) -> list[Revision]:
    """Return revisions whose promotion has ended: it must not begin again when the spec has another shadow some day."""
    own = asked(resource, known).name if resource.spec.get("shadow") else ""
    return [each for each in known if each.promoted and each.name != own]


def _topics(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    return dict(spec.get("topics") or {})


def _known(spec: Mapping[str, Any], known: Sequence[Revision]) -> Revision:
    name = digest(spec)
    found = next((each for each in known if each.name == name), None)
    return _newest(found or Revision(name, spec), known)


def _newest(revision: Revision, known: Sequence[Revision]) -> Revision:
    newest = max((each.number for each in known), default=0)
    there = revision.number == newest and newest > 0
    return revision if there else replace(revision, number=newest + 1)


def parse(body: Mapping[str, Any]) -> Revision:
    """Return the revision that a ControllerRevision holds."""
    notes = body["metadata"].get("annotations") or {}
    name = str(body["metadata"]["labels"][DIGEST])
    stable, failed, promoted = (notes.get(each, "") for each in (STABLE, FAILED, PROMOTED))
    topics = json.loads(notes.get(TOPICS, "{}"))
    return Revision(name, body["data"], int(body["revision"]), stable, failed, promoted, topics)


def record(resource: Resource, revision: Revision, *, ends: bool = False) -> Object:
    """Return the ControllerRevision that holds it, and what is known about it.

    A person promotes, so that mark is left alone, but for one that ends: an empty one replaces it.
    """
    rights = json.dumps(revision.topics, sort_keys=True) if revision.topics else ""
    notes = {STABLE: revision.stable, FAILED: revision.failed, TOPICS: rights}
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": f"{resource.key.name}-{revision.name}",
            "namespace": resource.key.namespace,
            "labels": {OWNER: resource.key.name, DIGEST: revision.name},
            "annotations": {name: text for name, text in notes.items() if text} | ({PROMOTED: ""} if ends else {}),
            "ownerReferences": [owner(KIND, resource.key.name, resource.uid)],
        },
        "data": dict(revision.spec),
        "revision": revision.number,
    }


def surplus(known: Sequence[Revision], needed: frozenset[str]) -> list[Revision]:
    """Return revisions that nobody needs any more: old ones, but never the last that worked."""
    stable = [each for each in known if each.stable and not each.failed]  # as where a rollback goes
    kept = needed | {each.name for each in stable[-1:]} | {each.name for each in known[-_KEPT:]}
    return [each for each in known if each.name not in kept]
