"""Following a shadow: the Pipeline NAME-shadow is made, begun, told what to run, and deleted when the spec has none.

It decides nothing: `shadow.py` and `overlay.py` do. It comes last in a reconcile: the live pipeline has its turn first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from tailrace.config import Pipeline
from tailrace.config.resource import KIND, OPERATION
from tailrace.errors import ConfigInvalid
from tailrace_operator import gates, observe, operate, overlay, revisions, shadow
from tailrace_operator.build import Builder, topics, topics_of
from tailrace_operator.cache import Cache
from tailrace_operator.changes import Effect, part
from tailrace_operator.model import APPLIED, PARTITIONS, Choice, Hold, Key, Object, Resource, Revision, Seen
from tailrace_operator.platform import TOPIC
from tailrace_operator.shadow import Known, Uses
from tailrace_operator.status import Following

log = logging.getLogger(__name__)

AGAIN = 600.0  # seconds after which a shadow is applied again, whoever changed it
_CLUSTER = "strimzi.io/cluster"
_STILL = (Hold.PAUSED, Hold.INVALID, Hold.NAME_TAKEN)


class Api(Protocol):
    """What following a shadow needs of the API server."""

    def apply(self, body: Object) -> Object:
        """Create or change an object, and return it."""

    def find(self, kind: str, namespace: str, name: str) -> Object | None:
        """Return an object."""

    def list(self, kind: str, namespace: str, selector: str) -> list[Object]:
        """Return the objects of a kind that have these labels."""

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object, if it is there."""


class Shadows:
    """Follows the shadows of Pipelines. What it remembers saves requests; losing it loses nothing."""

    def __init__(self, cache: Cache, builder: Builder, api: Api) -> None:
        self._cache = cache
        self._builder = builder
        self._api = api
        self._applied: dict[Key, tuple[str, int, float]] = {}

    def follow(self, seen: Seen, choice: Choice) -> Following:
        """Bring a Pipeline's shadow to what its spec says, and return what its status says about it."""
        resource, key = seen.resource, overlay.shadow_of(seen.resource.key)
        there = self._cache.body(key)
        if "shadow" not in resource.spec:
            if there is not None and shadow.owned(there, resource) and choice.hold is not Hold.PAUSED:
                self._end(key, there)
            return Following()
        if choice.hold in _STILL:
            return shadow.as_before(resource)
        return shadow.following(self._known(seen, choice, key, there))

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a Pipeline that is gone."""
        self._applied.pop(overlay.shadow_of(key), None)

    def _end(self, key: Key, there: Object) -> None:
        if "deletionTimestamp" not in there["metadata"]:
            log.info("%s: the spec has no shadow any more", key)
            self._api.delete(KIND, key.namespace, key.name)
        self._applied.pop(key, None)

    def _known(self, seen: Seen, choice: Choice, key: Key, there: Object | None) -> Known:
        resource = seen.resource
        known = Known(
            key,
            base=revisions.asked(resource, seen.revisions).name,
            revision=revisions.candidate(resource).name,
            running=choice.wanted.name,
        )
        if there is None:  # a watch may be behind: nothing of anybody else's is taken over
            there = self._api.find(KIND, key.namespace, key.name)
        if there is not None and not shadow.owned(there, resource):
            return replace(known, taken=True)
        try:
            live = self._builder.configuration(resource, choice.run or choice.wanted)
            problem = shadow.wrong(key, resource.spec["shadow"]) or self._problem(resource, key, live)
            sink = live.sink.topic or ""
            known = replace(known, topic=overlay.topic_of(resource.spec, sink), live=sink, problem=problem)
            return known if problem else self._follow(seen, choice, known, there)
        except ConfigInvalid as error:
            return replace(known, problem=error.what)

    def _problem(self, resource: Resource, key: Key, live: Pipeline) -> str:
        spec = overlay.spec_of(resource.spec, live.sink.topic or "", suspend=False)
        made = Resource(key, "", 0, spec)
        config = self._builder.configuration(made, Revision("", part(spec, Effect.HAND_OVER)))
        return shadow.problem(live, config, self._others(resource, key))

    def _others(self, resource: Resource, key: Key) -> Iterator[Uses]:
        yield Uses("the platform", self._builder.made)
        yield Uses("the live pipeline", topics(resource.spec))
        for each, body in self._cache.bodies().items():
            if each not in (resource.key, key):
                config = body["spec"].get("config") or {}
                named = topics_of(each.name, body["spec"])
                yield Uses(f"the Pipeline {each}", named, str((config.get("source") or {}).get("pattern") or ""))

    def _follow(self, seen: Seen, choice: Choice, known: Known, there: Object | None) -> Known:
        resource, key = seen.resource, known.key
        suspended = resource.suspended or bool(resource.spec["shadow"].get("suspend"))
        partitions = self._partitions(seen, choice, known, there)
        if there is None:
            there = self._apply(known, resource, None, partitions, suspend=True)
        spec = overlay.spec_of(resource.spec, known.live, suspend=False)
        found = self._cache.of(key)
        operations = [operate.parse(each) for each in found.operations] if found is not None else []
        begin = shadow.begin(resource, {**there, "spec": spec}, known.live, operations)
        known = shadow.with_operations(known, begin["metadata"]["name"], operations)
        there = self._apply(known, resource, there, partitions, suspend=suspended or not known.begun)
        delivered = shadow.delivered(seen)
        if known.begin is None and delivered and not suspended:
            log.info("%s: it is to begin", key)
            self._cache.put(OPERATION, self._api.apply(begin))
        return replace(known, suspended=suspended, delivered=delivered, child=there.get("status") or {})

    def _apply(
        self, known: Known, resource: Resource, there: Object | None, partitions: int, *, suspend: bool
    ) -> Object:
        """Apply the shadow's Pipeline unless it is as it should be, and return it."""
        key = known.key
        body = shadow.body(resource, key, overlay.spec_of(resource.spec, known.live, suspend=suspend), partitions)
        mark = body["metadata"]["annotations"][APPLIED]
        if there is not None and observe.notes(there).get(APPLIED) == mark:
            generation = int(there["metadata"]["generation"])
            before = self._applied.setdefault(key, (mark, generation, time.monotonic()))
            if before[:2] == (mark, generation) and time.monotonic() - before[2] < AGAIN:
                return there
        made = self._api.apply(body)
        self._cache.pipeline(made, gone=False)
        self._applied[key] = (mark, int(made["metadata"]["generation"]), time.monotonic())
        log.info("%s: revision %s, %s", key, known.revision, "suspended" if suspend else "to run")
        return made

    def _partitions(self, seen: Seen, choice: Choice, known: Known, there: Object | None) -> int:
        """Return how many partitions its sink topic is to have: those of the live one, if Strimzi makes topics.

        0: it is not made.
        """
        if there is not None and there["spec"]["config"]["sink"].get("topic") == known.topic:
            return int(observe.notes(there).get(PARTITIONS, 0))
        built = self._builder.build(seen.resource, choice.run or choice.wanted, choice.running)
        clusters = {each["metadata"]["labels"][_CLUSTER] for each in built.objects if each["kind"] == TOPIC}
        for cluster in sorted(clusters):
            there_are = self._api.list(TOPIC, known.key.namespace, f"{_CLUSTER}={cluster}")
            made = [each for each in there_are if gates.topic_name(each) == known.topic]
            if made and not all(_goes_with(each, known.key) for each in made):
                return 0  # somebody else's, or kept on purpose: made ours, it would be deleted with the shadow
            found = [each for each in there_are if gates.topic_name(each) == known.live]
            return int(found[0]["spec"].get("partitions", 1)) if found else 1
        return 0


def _goes_with(topic: Object, key: Key) -> bool:
    """Return whether a topic is an earlier shadow's of the same name, and is deleted with it."""
    owners = topic["metadata"].get("ownerReferences") or []
    return any(each["kind"] == KIND and each["name"] == key.name for each in owners)
