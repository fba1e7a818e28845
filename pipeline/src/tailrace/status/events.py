"""The events of a run, as types: what the driver reports, and what the terminal, the board and programs read.

An event is a frozen dataclass. `as_dict` is its JSON form, which is public: `tailrace run --output json` prints one
object for each event. Code that handles events matches on the types, so that mypy finds an event without a case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from tailrace.config.rules import Rules
from tailrace.gateway import Written
from tailrace.progress.plan import Plan
from tailrace.progress.stream_plan import AnyPlan
from tailrace.stages.rules import counts, total


@dataclass(frozen=True)
class _Event:
    event: ClassVar[str]

    def as_dict(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {"event": self.event} | {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True)
class Starting(_Event):
    """Spark is being started."""

    event = "starting"
    pipeline: str


@dataclass(frozen=True)
class Serving(_Event):
    """The status page is served."""

    event = "serving"
    url: str


@dataclass(frozen=True)
class Started(_Event):
    """This driver has the pipeline; the next batch has this number."""

    event = "started"
    pipeline: str
    run: str
    batch: int


@dataclass(frozen=True)
class Ready(_Event):
    """This driver reads new records: an open batch is finished, and nothing was refused."""

    event = "ready"
    pipeline: str
    run: str


@dataclass(frozen=True)
class StandingBy(_Event):
    """This driver could take over; `leader` names the one that leads, `cold` what could not be warmed up."""

    event = "standby"
    pipeline: str
    run: str
    leader: dict[str, str] | None
    cold: Sequence[str]


@dataclass(frozen=True)
class BatchPlanned(_Event):
    """The delivery of a batch begins."""

    event = "planned"
    batch: int
    records: int
    sinks: int
    replay: bool

    @classmethod
    def of(cls, plan: AnyPlan, *, replay: bool) -> BatchPlanned:
        """Return the event of a plan, new or from the ledger."""
        return cls(plan.batch, plan.records, plan.sinks, replay)


@dataclass(frozen=True)
class BatchWritten(_Event):
    """A batch is delivered. A replayed one has no limit: an earlier run has chosen it."""

    event = "written"
    batch: int
    read: int
    limit: int | None
    out: int
    rejected: int
    skipped: int
    sinks: int
    producers: int
    seconds: float
    commit_ms: float
    lag: int
    broken: Mapping[str, int] = field(default_factory=dict)  # records that broke a rule, by its name

    @classmethod
    def of(
        cls,
        plan: AnyPlan,
        written: Sequence[Written],
        rules: Rules,
        *,
        seconds: float,
        lag: int,
        limit: int | None,
    ) -> BatchWritten:
        """Return the event of a plan and of what the gateways wrote for it."""
        return cls(
            batch=plan.batch,
            # Of a batch that the driver planned, the readers count; its offsets include markers of transactions.
            read=sum(each.read for each in written) if isinstance(plan, Plan) else plan.records,
            limit=limit,
            out=sum(each.out for each in written),
            rejected=sum(each.rejected for each in written),
            skipped=sum(each.skipped for each in written),
            sinks=plan.sinks,
            producers=sum(each.fresh for each in written),
            seconds=round(seconds, 3),
            commit_ms=round(max((each.commit_ms for each in written), default=0.0), 1),
            lag=lag,
            broken={
                each.name: each.broken for each in counts(rules, total(each.judged for each in written)) if each.broken
            },
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the event as a JSON object: `in` for what was read, and no limit for a replay."""
        found = {("in" if name == "read" else name): value for name, value in super().as_dict().items()}
        if self.limit is None:
            del found["limit"]
        return found


@dataclass(frozen=True)
class Idle(_Event):
    """The pipeline has drained: there is nothing to read, and the last batch is settled."""

    event = "idle"
    batch: int
    lag: int = 0


@dataclass(frozen=True)
class OffsetsReset(_Event):
    """Positions were out of range, and reading continues elsewhere, as `source.on_data_loss: reset` allows."""

    event = "reset"
    what: str


@dataclass(frozen=True)
class OffsetStoreReport(_Event):
    """A report on the offset store: where it made the pipeline begin, that it failed, or that it disagrees."""

    event = "offsets"
    what: str


@dataclass(frozen=True)
class Warned(_Event):
    """Something is not as configured, but the pipeline runs."""

    event = "warning"
    what: str


@dataclass(frozen=True)
class Noted(_Event):
    """Something worth knowing."""

    event = "note"
    what: str


@dataclass(frozen=True)
class Changed(_Event):
    """Something differs from before: the driver, the code, the rules for rejection."""

    event = "changed"
    what: str


@dataclass(frozen=True)
class LeaseProblem(_Event):
    """No standby can see this driver."""

    event = "lease"
    what: str


@dataclass(frozen=True)
class BrokersAway(_Event):
    """No broker answers."""

    event = "away"
    what: str


@dataclass(frozen=True)
class BrokersBack(_Event):
    """The brokers answer again."""

    event = "back"


@dataclass(frozen=True)
class ExecutorsWanted(_Event):
    """The number of executors changes: because of the waiting records, or because a file asks for another."""

    event = "executors"
    wanted: int
    present: int
    waiting: int


@dataclass(frozen=True)
class Stopped(_Event):
    """The run has ended cleanly; `batch` is None for a driver that never led."""

    event = "stopped"
    reason: str
    batch: int | None


Event = (
    Starting
    | Serving
    | Started
    | Ready
    | StandingBy
    | BatchPlanned
    | BatchWritten
    | Idle
    | OffsetsReset
    | OffsetStoreReport
    | Warned
    | Noted
    | Changed
    | LeaseProblem
    | BrokersAway
    | BrokersBack
    | ExecutorsWanted
    | Stopped
)
Emit = Callable[[Event], None]


def ignored(event: Event) -> None:
    """Report an event to nobody."""


def to_each(*listeners: Emit) -> Emit:
    """Return one function that hands an event to every listener, in this order."""

    def emit(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return emit
