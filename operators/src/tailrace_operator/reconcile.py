"""A reconcile: from what is there to what should be, one Pipeline at a time.

    observe    what the watches have seen, and what the driver says: nothing is changed
    validate   the chart and the configuration accept the spec, or say why not
    decide     which revision runs, and what was learned about revisions
    gates      what its driver needs is there, or it waits
    build      the objects of that revision
    apply      the objects, the revision's record, and what is left over
    operate    the one-shot operation whose turn it is
    shadow     the Pipeline next to it that tries a change, if its spec has one
    status     what anybody wants to know

Each begins with what is there, never with what happened: a reconcile that was lost, repeated or killed in the middle
leaves nothing to the next one but work.
"""

from __future__ import annotations

import datetime
import logging
import time
from dataclasses import replace
from functools import partial
from typing import Protocol

from tailrace.config.resource import KIND, OPERATION
from tailrace.errors import ConfigInvalid
from tailrace_operator import apply, gates, namesakes, observe, operate, owners, revisions, tell
from tailrace_operator.build import Builder, Built
from tailrace_operator.cache import LABELS, Cache
from tailrace_operator.decide import decide
from tailrace_operator.model import Choice, Ended, Hold, JobState, Key, Object, Revision, Seen
from tailrace_operator.objects import with_status
from tailrace_operator.replica_sets import ReplicaSets
from tailrace_operator.shadows import Shadows
from tailrace_operator.status import Following, status

log = logging.getLogger(__name__)

RESYNC = 600.0  # seconds after which all objects are applied again, whoever changed them
NUMBERS = 30.0  # seconds between two writes of a status in which only numbers differ
_NUMBERS = ("lag", "rates", "lastBatch", "replicas")
_KEPT = 3  # the chart's default of earlier configurations


class Api(apply.Cluster, gates.Api, Protocol):
    """What a reconcile needs of the API server."""

    def uid(self, key: Key) -> str:
        """Return the uid of a Pipeline; empty if there is none, or it is being deleted."""

    def write_status(self, body: Object) -> None:
        """Replace the status of a Pipeline or an operation."""

    def tell(self, event: Object) -> None:
        """Make an Event, if that is permitted."""


class Reconciler:
    """Reconciles Pipelines. What it remembers saves requests; losing it loses nothing."""

    def __init__(self, cache: Cache, builder: Builder, api: Api) -> None:
        self._cache = cache
        self._builder = builder
        self._api = api
        self._applied: dict[Key, tuple[str, int, float]] = {}
        self._written: dict[Key, float] = {}
        self._refreshed: dict[Key, float] = {}
        self._gates = gates.Gates(api)
        self._replica_sets = ReplicaSets(api)
        self._kept: dict[Key, frozenset[str]] = {}
        self._told: dict[Key, str] = {}
        self._shadows = Shadows(cache, builder, api)

    def reconcile(self, key: Key) -> str:
        """Bring one Pipeline to what its spec says, and return its phase; empty if there is none of this name."""
        self._refresh(key)
        seen = self._observe(key)
        if seen is None:
            self._forget(key)
            return ""
        refused = self._validate(seen)
        choice = self._gated(seen, self._possible(seen, decide(seen, refused)))
        try:
            seen = self._apply(seen, choice)
        except (ConfigInvalid, PermissionError) as error:  # the API server refuses an object
            choice = replace(choice, run=None, hold=Hold.INVALID, why=_refusal(error))
        self._operate(seen, choice)
        return self._report(seen, choice, self._shadows.follow(seen, choice))

    def _refresh(self, key: Key) -> None:
        """Ask for what the watches should have said: one that was interrupted does not tell what was deleted.

        At first too: each kind has its own watch, and the one of Pipelines may be heard before that of revisions.
        """
        now = time.monotonic()
        if now - self._refreshed.get(key, float("-inf")) < RESYNC:
            return
        held = self._cache.body(key)
        if not self._api.uid(key):
            if held is not None:
                self._cache.drop(key, held["metadata"]["uid"])
            return
        agree = [
            self._cache.replace(kind, key, partial(self._api.list, kind, key.namespace, f"{label}={key.name}"))
            for kind, label in LABELS.items()
        ]
        agree.append(self._cache.replace(OPERATION, key, partial(self._operations, key)))
        if all(agree):
            self._refreshed[key] = now

    def _operations(self, key: Key) -> list[Object]:
        """Ask for a Pipeline's operations.

        They have no label: a person writes them. One that is gone would let the pipeline rest for ever.
        """
        operations = self._api.list(OPERATION, key.namespace, "")
        return [each for each in operations if each["spec"]["pipeline"] == key.name]

    def _observe(self, key: Key) -> Seen | None:
        found = self._cache.of(key)
        if found is None:
            return None
        port = self._builder.platform.port
        turn = observe.turn(found)
        seen = observe.seen(found.pipeline, found.records, found.deployment, found.drivers, port, turn)
        return self._replica_sets.marked(seen)

    def _validate(self, seen: Seen) -> str:
        try:
            self._builder.check(seen.resource, revisions.wanted(seen.resource, seen.revisions))
        except ConfigInvalid as error:
            return error.what
        return ""

    def _possible(self, seen: Seen, choice: Choice) -> Choice:
        """Hold a revision that the chart refuses by now, and a first one whose objects somebody else has made."""
        if choice.run is None:
            return choice
        key = seen.resource.key
        try:
            built = self._builder.build(seen.resource, choice.run, choice.running)
        except ConfigInvalid as error:
            if choice.hold is not None:  # the spec is refused, and what it says without another driver, too
                return replace(choice, run=None)
            why = f"revision {choice.run.name} cannot run any more: {error.what}"
            return replace(choice, run=None, hold=Hold.INVALID, why=why)
        if seen.rollout is not None:
            return choice
        if other := namesakes.before(self._cache, self._builder, seen.resource, choice.run):
            why = f"the Pipeline {other} has this name and the same brokers, where the two would be one pipeline"
            return replace(choice, run=None, hold=Hold.NAME_TAKEN, why=why)
        for each in apply.taken(self._api, key, built):
            why = f"a {each['kind']} {each['metadata']['name']} exists that no Pipeline {key.name} made"
            return replace(choice, run=None, hold=Hold.NAME_TAKEN, why=why)
        return choice

    def _gated(self, seen: Seen, choice: Choice) -> Choice:
        begins = seen.operation is not None and seen.operation.job is JobState.NONE and choice.resting
        if choice.run is None or not (choice.running or begins):
            self._gates.forget(seen.resource.key)
            return choice
        return self._gates.pass_through(seen, choice, self._builder.build(seen.resource, choice.run, True))

    def _apply(self, seen: Seen, choice: Choice) -> Seen:
        """Apply what was chosen, unless it is there; return what is there then."""
        seen = self._record(seen, choice)
        if choice.run is None:
            return seen
        key, built = seen.resource.key, self._builder.build(seen.resource, choice.run, choice.running)
        if self._is_applied(seen, built.digest):
            self._keep(seen, built)
            return seen
        if seen.rollout is None or seen.rollout.revision != choice.run.name:
            log.info(
                "%s: running revision %s%s", key, choice.run.name, f" ({choice.rolled_back})" * bool(choice.rolled_back)
            )
        if self._api.uid(key) != seen.resource.uid:  # nothing is made for a Pipeline that is gone
            self._cache.drop(key, seen.resource.uid)
            return seen
        told = tell.news(seen, choice.run, built, choice.rolled_back)
        built.deployment["metadata"]["annotations"] |= tell.marks(seen, choice.run, built, _now())
        kept = int(seen.resource.spec.get("revisions", _KEPT))
        body = apply.apply(self._api, key, built, kept, seen.drivers)
        self._kept[key] = frozenset(seen.drivers)
        if told is not None:
            self._tell(seen, told)
        self._cache.put("Deployment", body)
        rollout = observe.rollout(body)
        self._applied[key] = (built.digest, rollout.generation, time.monotonic())
        return replace(seen, rollout=rollout)

    def _keep(self, seen: Seen, built: Built) -> None:
        """Let new pods keep what they need until they have ended, whatever is deleted first."""
        key = seen.resource.key
        if set(seen.drivers) <= self._kept.get(key, frozenset()) or self._api.uid(key) != seen.resource.uid:
            return
        for each in owners.kept(built.objects, seen.drivers):
            self._api.apply(each)
        self._kept[key] = frozenset(seen.drivers)

    def _tell(self, seen: Seen, told: tell.News) -> None:
        log.info("%s: %s", seen.resource.key, told.message)
        self._api.tell(tell.event(seen.resource, told))

    def _is_applied(self, seen: Seen, digest: str) -> bool:
        """Return whether these objects were applied not long ago, and nobody has changed the Deployment since."""
        rollout, key = seen.rollout, seen.resource.key
        if rollout is None or rollout.applied != digest:
            return False
        known = self._applied.setdefault(key, (digest, rollout.generation, time.monotonic()))
        return known[:2] == (digest, rollout.generation) and time.monotonic() - known[2] < RESYNC

    def _record(self, seen: Seen, choice: Choice) -> Seen:
        """Keep what was learned about revisions, and drop those that nobody needs."""
        if choice.hold is not None:
            return seen
        learned: dict[str, Revision] = {each.name: each for each in seen.revisions}
        now = choice.wanted
        if choice.stable == now.name:
            now = replace(now, stable=_now())
            log.info("%s: revision %s is stable", seen.resource.key, now.name)
        if choice.failed is not None:
            now = replace(now, failed=choice.failed[1])
            log.warning("%s: revision %s has failed: %s", seen.resource.key, now.name, now.failed)
        if not now.failed and now.name in learned and learned[now.name].failed:
            log.info("%s: revision %s is tried again: its sink was accepted", seen.resource.key, now.name)
        if learned.get(now.name) != now:
            body = self._api.apply(revisions.record(seen.resource, now))
            self._cache.put("ControllerRevision", body)
            learned[now.name] = now
        for each in revisions.overdue(seen.resource, tuple(learned.values())):
            body = self._api.apply(revisions.record(seen.resource, each, ends=True))
            self._cache.put("ControllerRevision", body)
            learned[each.name] = replace(each, promoted="")
        running = seen.rollout.revision if seen.rollout is not None else ""
        needed = frozenset({now.name, running, choice.run.name if choice.run is not None else ""})
        known = sorted(learned.values(), key=lambda each: each.number)
        for each in revisions.surplus(known, needed):
            self._api.delete("ControllerRevision", seen.resource.key.namespace, f"{seen.resource.key.name}-{each.name}")
            known.remove(each)
        return replace(seen, revisions=tuple(known))

    def _operate(self, seen: Seen, choice: Choice) -> None:
        """Begin the operation whose turn it is, once no driver is in its way, or say how it ended."""
        found, key = seen.operation, seen.resource.key
        if found is None:
            return
        phase, words = Ended.RUNNING, f"kubectl logs job/{found.name}"
        if found.job is JobState.NONE and found.stale:
            phase, words = Ended.FAILED, f"it was asked of a Pipeline {key.name} that is gone; ask this one"
        elif found.job in (JobState.DONE, JobState.FAILED) and choice.hold is not None and operate.accepts(found):
            words = f"the Pipeline is on hold: {choice.hold}"  # what is chosen next depends on how this has ended
        elif found.job in (JobState.DONE, JobState.FAILED):
            phase = Ended.SUCCEEDED if found.job is JobState.DONE else Ended.FAILED
            words = self._last_words(key, found.name) or words
        elif found.job is JobState.NONE and found.phase == Ended.RUNNING and not self._has_job(key, found.name):
            phase, words = Ended.FAILED, f"job/{found.name} is gone; whether it did anything is not known"
        elif found.job is JobState.OF_ANOTHER:
            phase = Ended.WAITING
            words = (
                f"job/{found.name} is that of an operation which had this name; Kubernetes deletes it after its owner"
            )
        elif found.job is JobState.NONE and choice.hold is not None:
            phase, words = Ended.WAITING, f"the Pipeline is on hold: {choice.hold}"
        elif found.job is JobState.NONE and operate.needs_rest(found) and choice.waiting:
            phase, words = Ended.WAITING, gates.words(choice.waiting)
        elif found.job is JobState.NONE and choice.resting and not _rests(seen):
            phase, words = Ended.WAITING, "its driver finishes the batch in progress"
        elif found.job is JobState.NONE and choice.run is not None:
            built = self._builder.build(seen.resource, choice.run, choice.running)
            log.info("%s: operation %s: %s", key, found.name, " ".join(found.run))
            try:
                self._cache.put("Job", self._api.apply(operate.job(found, built.deployment)))
            except (ConfigInvalid, PermissionError) as error:  # the pipeline would rest for ever
                lasts = isinstance(error, ConfigInvalid) or operate.is_old(found, time.time())
                phase, words = Ended.FAILED if lasts else Ended.WAITING, _refusal(error)
        made = operate.status(found, phase, words, _now())
        if phase.value != found.phase or (phase is Ended.WAITING and made["message"] != found.message):
            self._api.write_status(with_status(OPERATION, key.namespace, found.name, found.uid, made))
            log.info("%s: operation %s: %s", key, found.name, phase)

    def _has_job(self, key: Key, name: str) -> bool:
        """Ask whether a Job that has begun is still there: a person, or its time to live, may have deleted it."""
        return self._api.find("Job", key.namespace, name) is not None

    def _last_words(self, key: Key, job: str) -> str:
        pods = self._api.list("Pod", key.namespace, f"batch.kubernetes.io/job-name={job}")
        ends = [
            each["state"].get("terminated", {}).get("message", "")
            for pod in pods
            for each in (pod.get("status") or {}).get("containerStatuses", ())
        ]
        return next(filter(None, ends), "")

    def _report(self, seen: Seen, choice: Choice, following: Following) -> str:
        key, made = seen.resource.key, status(seen, choice, _now(), following)
        before = seen.resource.status
        told = tell.waiting(before, choice)
        if told is not None and self._told.get(key) != told.reason:  # a watch may be behind what was just written
            self._tell(seen, told)
        self._told[key] = choice.waiting[0].reason if choice.waiting else ""
        fixed = {name: value for name, value in made.items() if name not in _NUMBERS}
        was = {name: value for name, value in before.items() if name not in _NUMBERS}
        long_ago = time.monotonic() - self._written.get(key, float("-inf")) > NUMBERS
        if fixed != was or (long_ago and made != before):
            self._api.write_status(with_status(KIND, key.namespace, key.name, seen.resource.uid, made))
            self._written[key] = time.monotonic()
        return str(made["phase"])

    def _forget(self, key: Key) -> None:
        self._builder.forget(key)
        self._gates.forget(key)
        self._replica_sets.forget(key)
        self._shadows.forget(key)
        self._applied.pop(key, None)
        self._kept.pop(key, None)
        self._told.pop(key, None)
        self._written.pop(key, None)
        self._refreshed.pop(key, None)


def _refusal(error: ConfigInvalid | PermissionError) -> str:
    return error.what if isinstance(error, ConfigInvalid) else str(error)


def _rests(seen: Seen) -> bool:
    """Return whether no driver runs, and none is to."""
    return not seen.pods and not seen.leaving and seen.rollout is not None and not seen.rollout.replicas


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
