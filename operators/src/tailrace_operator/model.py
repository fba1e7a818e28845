"""What a reconcile works with: the resource, its revisions, what runs, and what was decided. Values, without behaviour.

A revision is the part of a spec whose change needs another driver; its name is a digest of it. It is kept in a
ControllerRevision, so that a rollback needs nothing but the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tailrace.config.resource import GROUP

Object = dict[str, Any]

MANAGER = "tailrace-operator"  # the field manager of everything that is applied
REVISION = f"{GROUP}/revision"  # of a Deployment: the revision it was made of
APPLIED = f"{GROUP}/applied"  # of a Deployment: a digest of all objects it was applied with
TEMPLATE = f"{GROUP}/template"  # of a Deployment: a digest of its pod template
LIVE = f"{GROUP}/live"  # of a Deployment: what its spec said with keys that need no other driver, as JSON
WHY = f"{GROUP}/hand-over-because"  # of a Deployment: why its pod template changed last
SINCE = f"{GROUP}/template-since"  # of a Deployment: when its pod template changed last
SHADOW = f"{GROUP}/shadow-of"  # the label of a Pipeline that the operator made: the one that it is the shadow of
PARTITIONS = f"{GROUP}/sink-partitions"  # of a shadow: those of its sink topic, if the operator makes that
TOPICS = f"{GROUP}/topics"  # of a revision: the rights that its spec asked for last, as JSON
PROMOTED = f"{GROUP}/promoted"  # of a revision: the one that runs in its place while spec.shadow is there


@dataclass(frozen=True, order=True)
class Key:
    """The place of a Pipeline."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Resource:
    """A Pipeline, as its owner wrote it."""

    key: Key
    uid: str
    generation: int
    spec: Mapping[str, Any]
    status: Mapping[str, Any] = field(default_factory=dict)
    partitions: int = 0  # of the sink topic of a shadow; 0: the operator makes no such topic

    @property
    def suspended(self) -> bool:
        """Whether no driver is to run."""
        return bool(self.spec.get("suspend"))

    @property
    def paused(self) -> bool:
        """Whether the operator is to change nothing."""
        return bool(self.spec.get("paused"))


@dataclass(frozen=True)
class Revision:
    """One state of a spec that was to run."""

    name: str
    spec: Mapping[str, Any]
    number: int = 0
    stable: str = ""  # since when it was seen to work; empty: never
    failed: str = ""  # why it is not run any more
    promoted: str = ""  # the revision that a person wants in its place
    topics: Mapping[str, Any] = field(default_factory=dict)  # the rights that its spec asked for last


class Progress(StrEnum):
    """How far a Deployment is with the revision it was made of."""

    ROLLING = "rolling"
    DONE = "done"  # its pods are the only ones, and ready
    LATE = "late"  # beyond progressDeadlineSeconds


@dataclass(frozen=True)
class Rollout:
    """The Deployment of a pipeline's driver."""

    revision: str
    applied: str
    generation: int
    progress: Progress
    replicas: int  # wanted
    ready: int
    message: str = ""
    owned: bool = True  # False: something else made a Deployment of this name
    template: str = ""  # a digest of its pod template
    live: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""  # its pod template changed last
    since: str = ""  # when that was; empty: before the operator noted it


@dataclass(frozen=True)
class Pod:
    """A driver's pod."""

    name: str
    created: str
    address: str
    ready: bool
    restarts: int = 0
    waiting: str = ""  # why its container does not run, in Kubernetes' word
    message: str = ""  # the words with it, or the last ones of the container that ended
    exit_code: int | None = None  # of the container that ended last
    leaving: bool = False  # it was told to end, and may still work
    made_by: str = ""  # its ReplicaSet
    revision: str = ""  # it was made of; empty: not known


@dataclass(frozen=True)
class Report:
    """What the leading driver says of itself."""

    ready: bool
    stalled: bool
    phase: str
    lag: int | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    batch: Mapping[str, Any] = field(default_factory=dict)
    executors: int | None = None  # present
    driver: str = ""  # the pod


class Ended(StrEnum):
    """How far a one-shot operation is."""

    WAITING = "Waiting"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class JobState(StrEnum):
    """How far its Job is."""

    NONE = "none"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    OF_ANOTHER = "of another"  # of an operation that had the name before


@dataclass(frozen=True)
class Operation:
    """A command that is to run once."""

    name: str
    uid: str
    created: str
    run: tuple[str, ...]
    phase: str = ""
    started: str = ""
    job: JobState = JobState.NONE
    finished: str = ""
    message: str = ""
    stale: bool = False  # it was asked for before this Pipeline was there, of another of its name
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """Everything that was observed of one Pipeline at one time."""

    resource: Resource
    revisions: tuple[Revision, ...] = ()  # oldest first
    rollout: Rollout | None = None
    pods: tuple[Pod, ...] = ()
    leaving: int = 0  # pods that were told to end, and may still work
    drivers: Mapping[str, str] = field(default_factory=dict)  # the uid of every pod, by name
    report: Report | None = None
    operation: Operation | None = None  # the one whose turn it is


class Hold(StrEnum):
    """Why nothing is applied."""

    PAUSED = "Paused"
    INVALID = "Invalid"
    NAME_TAKEN = "NameTaken"
    WAITING = "Waiting"


@dataclass(frozen=True)
class Closed:
    """Something that a driver needs and that is missing, or not ready."""

    kind: str
    name: str  # with its namespace, if that is another
    problem: str
    asked: bool = False  # the spec names it

    @property
    def reason(self) -> str:
        """The reason of a condition."""
        return f"WaitingFor{self.kind}"


@dataclass(frozen=True)
class Choice:
    """What is to run, and what was learned about revisions."""

    wanted: Revision  # of the spec
    run: Revision | None  # None: nothing is to be applied
    running: bool = True  # False: no driver
    resting: str = ""  # the operation for which no driver runs
    hold: Hold | None = None
    why: str = ""  # of the hold
    waiting: tuple[Closed, ...] = ()  # what is missing; a driver that runs goes on
    rolled_back: str = ""  # why `run` is not `wanted`
    stable: str = ""  # the revision that is now known to work
    failed: tuple[str, str] | None = None  # the revision that is now known not to, and why
