"""A shadow: a Pipeline of its own that the operator makes of `spec.shadow`, and what is known about it.

Its state is in the cluster: the Pipeline NAME-shadow, suspended until an operation has let it begin where the live one
is, and operations that compare. An operation that failed is not repeated, so nothing loops: a person looks. The live
pipeline is never touched here; decision 0039 says what promotes a shadow. `shadows.py` does what these functions say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tailrace.config import Offsets, Pipeline
from tailrace.config.resource import GROUP, KIND, OPERATION, VERSION
from tailrace_operator import operate, overlay
from tailrace_operator.changes import Effect, part
from tailrace_operator.model import APPLIED, PARTITIONS, SHADOW, Ended, Key, Object, Operation, Resource, Seen
from tailrace_operator.objects import owner, short
from tailrace_operator.revisions import digest
from tailrace_operator.schemas import LONGEST
from tailrace_operator.status import Condition, Following

_AGAIN = 6  # characters of a digest, so that the longest name has the 63 that a Job's may have


@dataclass(frozen=True)
class Uses:
    """The topics that a pipeline, or the platform, names; and the pattern of those that it reads."""

    who: str
    topics: set[str]
    pattern: str = ""

    def of(self, topic: str) -> str:
        """Return who uses a topic, and by which pattern; empty if nobody does. An invalid pattern matches nothing."""
        if topic in self.topics:
            return f"{self.who} uses"
        try:
            matches = bool(self.pattern and re.fullmatch(self.pattern, topic))
        except re.error:
            return ""
        return f"{self.who} uses: its source.pattern {self.pattern!r} matches it" if matches else ""


@dataclass(frozen=True)
class Known:
    """What is known about a shadow."""

    key: Key
    topic: str = ""
    live: str = ""  # the sink topic of the live pipeline
    base: str = ""  # the revision of the spec alone
    revision: str = ""  # the one that a promotion lets run
    running: str = ""  # the one that is to run now
    problem: str = ""  # why there is no shadow as the spec has it
    taken: bool = False  # another Pipeline has its name
    suspended: bool = False
    delivered: bool = False  # the live pipeline has delivered a batch, so there is a place to begin
    begin: Operation | None = None
    compare: Operation | None = None  # the newest since it began
    counted: Operation | None = None  # the newest that counted since
    child: Mapping[str, Any] | None = None  # the status of its Pipeline

    @property
    def begun(self) -> bool:
        """Whether it reads from where the live pipeline was, so that its driver may run."""
        return self.begin is not None and self.begin.phase == Ended.SUCCEEDED


def wrong(key: Key, changes: Mapping[str, Any]) -> str:
    """Return why there is no shadow of this name, or with this overlay, whatever it renders to."""
    found = overlay.misplaced(changes)
    if found:
        return f"spec.shadow changes {', '.join(found)}, which a shadow may not; its sink topic is spec.shadow.topic"
    return f"the name {key.name} has more than {LONGEST} characters" if len(key.name) > LONGEST else ""


def problem(live: Pipeline, shadow: Pipeline, others: Iterable[Uses]) -> str:
    """Return why a shadow could reach the live pipeline or another one, or cannot be compared."""
    for which, each in (("the pipeline", live), ("its shadow", shadow)):
        if each.checkpoint != "ledger":
            return f"{which} is stateful: its outputs depend on records before the shadow begins"
        if each.sink.topic is None or each.sink.topics:
            return f"rows of {which} name their own topics, so a shadow's would reach the live ones"
    if shadow.rejected is not None or shadow.offsets != Offsets():
        return "the platform's defaults give every pipeline `rejected` or `offsets`, which a shadow would share"
    # The live pipeline runs an earlier revision after a rollback; the shadow reads what the spec says.
    own = [Uses("the live pipeline", set(), live.source.pattern or "")]
    own.append(Uses("the shadow itself", set(), shadow.source.pattern or ""))
    uses = [*own, *others]
    sink = _reaches("the shadow would write to", shadow.sink.topic or "", live, uses)
    return sink or _reaches("the shadow would write its rejected records to", shadow.rejected_topic, live, uses)


def _reaches(would: str, topic: str, live: Pipeline, uses: Iterable[Uses]) -> str:
    """Return what else uses a topic that a shadow would write; empty if nothing does."""
    ours = {live.sink.topic: "its sink", live.rejected_topic: "its rejected records", live.ledger.topic: "the ledger"}
    ours |= dict.fromkeys(live.source.topics, "its source")
    if topic in ours:
        return f"{would} {topic}, which the live pipeline uses: {ours[topic]}"
    found = next(filter(None, (each.of(topic) for each in uses)), "")
    return f"{would} {topic}, which {found}" if found else ""


def body(resource: Resource, key: Key, spec: Mapping[str, Any], partitions: int) -> Object:
    """Return the shadow's Pipeline, which Kubernetes deletes with the live one."""
    notes = {APPLIED: digest([spec, partitions])} | ({PARTITIONS: str(partitions)} if partitions else {})
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {
            "name": key.name,
            "namespace": key.namespace,
            "labels": {SHADOW: resource.key.name},
            "annotations": notes,
            "ownerReferences": [owner(KIND, resource.key.name, resource.uid)],
        },
        "spec": dict(spec),
    }


def owned(made: Mapping[str, Any], resource: Resource) -> bool:
    """Return whether a Pipeline was made for this one."""
    return any(each["uid"] == resource.uid for each in made["metadata"].get("ownerReferences") or ())


def begin(resource: Resource, made: Mapping[str, Any], live: str, operations: Sequence[Operation] = ()) -> Object:
    """Return the operation that lets a shadow begin: another one for each spec, and for each sink to compare with.

    A spec that comes again begins again. The Pipeline was made for this one, so the command need not prove by offsets,
    which expire, that it is a shadow.
    """
    about = made["metadata"]
    mark = digest([about["uid"], part(made["spec"], Effect.HAND_OVER), live])
    name = f"{about['name']}-begin-{mark}"
    before = [each for each in operations if _began(each) and each.name.startswith(f"{about['name']}-begin-")]
    newest = max(before, key=lambda each: (each.finished, each.created, each.name), default=None)
    if newest is not None:
        name = newest.name if newest.name.startswith(name) else f"{name}-{digest(newest.name)[:_AGAIN]}"
    run = [*operate.BEGIN, "--live", resource.key.name, "--sink", live, "--again"]
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": OPERATION,
        "metadata": {
            "name": name,
            "namespace": about["namespace"],
            "ownerReferences": [owner(KIND, about["name"], about["uid"])],
        },
        "spec": {"pipeline": about["name"], "run": run},
    }


def with_operations(known: Known, name: str, operations: Sequence[Operation]) -> Known:
    """Return what is known with the operation that began the shadow, and the newest that compared it since."""
    began = next((each for each in operations if each.name == name), None)
    known = replace(known, begin=began)
    if not known.begun or began is None:
        return known
    last = max((each.finished for each in operations if _began(each)), default=began.finished)
    compared = [each for each in operations if each.run[:2] == operate.COMPARE and each.created >= last]
    compared.sort(key=lambda each: (each.created, each.name), reverse=True)
    return replace(
        known,
        compare=next(iter(compared), None),
        counted=next((each for each in compared if each.result), None),
    )


def _began(each: Operation) -> bool:
    return each.run[:2] == operate.BEGIN and each.phase == Ended.SUCCEEDED


def delivered(seen: Seen) -> bool:
    """Return whether the live driver has delivered a batch: before that, no plan says where a shadow begins."""
    return seen.report is not None and seen.report.ready and seen.report.batch.get("number") is not None


def following(known: Known) -> Following:
    """Return what the status of the live Pipeline says about its shadow."""
    found: Object = {"pipeline": known.key.name, "base": known.base, "revision": known.revision}
    found |= {"topic": known.topic, "liveTopic": known.live}
    if known.begun and known.begin is not None:
        found["began"] = known.begin.finished
    if known.counted is not None:
        about = {"operation": known.counted.name, "finished": known.counted.finished}
        found["compared"] = {**about, **known.counted.result}
    conditions = (_ready(known), _compared(known), _promoted(known))
    return Following(conditions, {name: value for name, value in found.items() if value != ""})


def as_before(resource: Resource) -> Following:
    """Return what the status said before: while a Pipeline is on hold, nothing is known and nothing changes."""
    kinds = ("ShadowReady", "ShadowCompared", "Promoted")
    found = {each["type"]: each for each in resource.status.get("conditions", ())}
    kept = [found[kind] for kind in kinds if kind in found]
    conditions = [Condition(e["type"], e["status"] == "True", e["reason"], e.get("message", "")) for e in kept]
    return Following(tuple(conditions), resource.status.get("shadow") or {})


def _ready(known: Known) -> Condition:
    if known.taken:
        text = f"a Pipeline {known.key.name} exists that is not its shadow"
        return Condition("ShadowReady", False, "NameTaken", text)
    if known.problem:
        return Condition("ShadowReady", False, "Invalid", short(known.problem))
    if known.suspended:
        return Condition("ShadowReady", False, "Suspended", "its driver is not to run")
    if known.begin is None:
        if known.delivered:
            return Condition("ShadowReady", False, "Beginning", "the operation that lets it begin is being made")
        text = "the live driver has to deliver a batch first: a shadow begins where its last plan ends"
        return Condition("ShadowReady", False, "WaitingForLive", text)
    if known.begin.phase == Ended.FAILED:
        then = f"next: kubectl delete tlrop {known.begin.name} -n {known.key.namespace}, which lets it try again"
        return Condition("ShadowReady", False, "BeginFailed", f"{short(known.begin.message)} {then}")
    if not known.begun:
        return Condition("ShadowReady", False, "Beginning", short(f"{known.begin.name}: {known.begin.message}"))
    ready: Mapping[str, Any] = next((e for e in (known.child or {}).get("conditions", ()) if e["type"] == "Ready"), {})
    if ready.get("status") != "True":
        why = f"{(known.child or {}).get('phase', '')}: {ready.get('reason', '')} {ready.get('message', '')}"
        return Condition("ShadowReady", False, "NotReady", short(why))
    return Condition("ShadowReady", True, "Working", f"it writes to {known.topic}")


def _compared(known: Known) -> Condition:
    found = known.compare
    if found is None:
        then = f"next: tailrace pipelines shadow {known.key.name.removesuffix(overlay.SUFFIX)} -n {known.key.namespace}"
        return Condition("ShadowCompared", False, "NotCompared", then)
    if found.phase == Ended.FAILED:
        return Condition("ShadowCompared", False, "CompareFailed", short(f"{found.name}: {found.message}"))
    if found.phase != Ended.SUCCEEDED:
        return Condition("ShadowCompared", False, "Comparing", f"kubectl logs job/{found.name}")
    if not found.result:
        return Condition("ShadowCompared", True, "Unknown", f"kubectl logs job/{found.name} has the counts")
    same = all(found.result.get(each) == 0 for each in ("different", "onlyLive", "onlyShadow"))
    if same:
        return Condition("ShadowCompared", True, "Equal", short(found.message))
    return Condition("ShadowCompared", True, "Different", short(found.message))


def _promoted(known: Known) -> Condition:
    if known.running == known.base:
        return Condition("Promoted", False, "NotPromoted")
    text = f"revision {known.running} is to run, not {known.base} of the spec: move spec.shadow into the spec"
    return Condition("Promoted", True, "Requested", text)
