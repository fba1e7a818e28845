"""The plan of a batch that Spark partitions: of stateful pipelines and of `exactly_once`.

A replay is exact only if each sink partition gets the same records again. Spark does not guarantee that: with four
topic partitions or fewer its source lists them in another order after a restart (docs/decisions/0002). So a sink
partition is identified by its slice, not by Spark's task number. Version 0.1 planned every pipeline in this form.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NewType

from tailrace.config import ISOLATION, Delivery
from tailrace.errors import CutChanged, InvariantBroken, LedgerUnusable
from tailrace.progress.cuts import same_cut, shown_cuts
from tailrace.progress.plan import VERSION as PLAN_VERSION
from tailrace.progress.plan import (
    BatchId,
    Place,
    Plan,
    Range,
    Settings,
    SinkPartition,
    tampered,
    unlike,
    unpacked,
)

# What one task reads: source ranges joined by "+", or a shuffle's partition.
Slice = NewType("Slice", str)

REDIRECTED = 5  # planned for another sink, where late tasks of its driver write: the digest names the sink
VERSION = 4
UNNAMED = 3  # the digest does not name the code and the rules
BEFORE = 1  # version 0.1, where rejected records were rows like any others
AS_BEGUN = {
    VERSION: "start with the settings of the last run once (`tailrace run FILE --batch`), then change them",
    BEFORE: "finish the batch with version 0.1 (`tailrace run FILE --batch`), then upgrade",
}
_HEAD = 2  # lines of an offset log entry before those of the sources: its version and its metadata


@dataclass(frozen=True)
class StreamPlan:
    """One batch: which query and run planned it, the ranges in Spark's order, and what each sink partition reads."""

    pipeline: str
    query: str
    batch: BatchId
    ranges: tuple[Range, ...]
    slices: tuple[Slice, ...]
    entry: str  # Spark's own offset log entry of this batch
    run: str = ""
    at: float = 0.0
    delivery: Delivery = Delivery.EXACTLY_ONCE
    sunk: bool = False  # an earlier batch had sink partitions, so markers exist
    rules: str = ""  # what decides which branch a record takes: format, schema, conditions
    code: str = ""  # the function's files and arguments
    settings: Settings = None  # what the session's settings were that may decide what an expression gives
    mixes: bool = False  # the function shuffles, or unions branches of the records
    spread: bool = False  # the only shuffle is Tailrace's own, by the records' keys or places in the source
    done: bool = False  # every sink partition is written
    reads: tuple[Range, ...] = ()  # what each task reads whose rejected records have their own sink partition
    sink: str | None = None  # the topic of `exactly_once`; empty where each row names its own, None if nobody noted it
    cut: tuple[str, ...] | None = None  # shuffles, or what `exactly_once` has of branches; None if nobody noted them
    topics: Mapping[str, str] | None = None  # the ids of the source topics; None if nobody noted them
    chosen: bool = False  # a person has chosen where the first batch begins
    version: int = VERSION

    @property
    def sinks(self) -> int:
        """The number of sink partitions."""
        return len(self.slices) + len(self.reads)

    @property
    def digest(self) -> str:
        """What a marker names: equal only if every sink partition reads the same and gets the same records of it."""
        named: list[Any] = [self.pipeline, self.query, self.batch, list(self.slices)]
        if self.reads:
            named.append(list(map(str, self.reads)))
        if self.version >= VERSION and (self.reads or self.mixes):
            by = {"code": self.code, "settings": sorted((self.settings or {}).items())} if self.mixes else {}
            cut = {"cut": list(self.cut)} if self.mixes and self.cut is not None else {}
            named.append({"rules": self.rules, **by, **cut})
        if self.version == REDIRECTED:
            named.append({"sink": self.sink})
        text = json.dumps(named)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def cut_by_code(self) -> bool:
        """Whether the function decides what a sink partition gets.

        A sink partition behind a shuffle has a number. Unless the plan says whose shuffle that is, it may be the
        function's: earlier versions did not recognise all of them.
        """
        return self.mixes or (not self.spread and any("#" in each for each in self.slices))

    @property
    def records(self) -> int:
        """How many offsets the batch spans."""
        return sum(each.end - each.start for each in self.ranges)

    @property
    def is_empty_beginning(self) -> bool:
        """Whether this is a first batch without records, which Spark makes for operators with state."""
        return self.batch == 0 and not self.ranges and not self.reads

    @property
    def ends(self) -> dict[Place, int]:
        """Where the batch leaves each source partition."""
        return offsets_of(self.entry)

    def reads_of(self, topics: Collection[str]) -> bool:
        """Return whether the batch reads records of one of these topics."""
        return any(each.topic in topics for each in (*self.ranges, *self.reads))

    def to_bytes(self) -> bytes:
        """Serialize the plan for the ledger."""
        text = json.dumps(
            {
                "version": self.version,
                "pipeline": self.pipeline,
                "query": self.query,
                "batch": self.batch,
                "ranges": [str(each) for each in self.ranges],
                "slices": list(self.slices),
                "entry": self.entry,
                "run": self.run,
                "at": self.at,
                "delivery": self.delivery.value,
                "sunk": self.sunk,
                "shape": self.rules,
                "code": self.code,
                "mixes": self.mixes,
                "spread": self.spread,
                "done": self.done,
                "reads": [str(each) for each in self.reads],
                "digest": self.digest,
                **({} if self.settings is None else {"settings": dict(self.settings)}),
                **({} if self.sink is None else {"sink": self.sink}),
                **({} if self.cut is None else {"cut": list(self.cut)}),
                **({} if self.topics is None else {"topics": dict(self.topics)}),
                **({"chosen": True} if self.chosen else {}),
            }
        )
        return text.encode()

    @classmethod
    def of(cls, data: Mapping[str, Any], where: str) -> StreamPlan:
        """Read the plan that the ledger holds at `where`; raise LedgerUnusable if it was changed by somebody else."""
        try:
            plan = cls(
                pipeline=data["pipeline"],
                query=data["query"],
                batch=BatchId(data["batch"]),
                ranges=tuple(Range.parse(each) for each in data["ranges"]),
                slices=tuple(Slice(each) for each in data["slices"]),
                entry=data["entry"],
                run=data["run"],
                at=data["at"],
                delivery=Delivery(data["delivery"]),
                sunk=data["sunk"],
                rules=data["shape"],
                code=data["code"],
                settings=dict(data["settings"]) if "settings" in data else None,
                mixes=data["mixes"],
                spread=data.get("spread", False),
                done=data["done"],
                reads=tuple(Range.parse(each) for each in data.get("reads", ())),
                sink=data.get("sink"),
                cut=tuple(map(str, data["cut"])) if "cut" in data else None,
                topics=dict(data["topics"]) if "topics" in data else None,
                chosen=bool(data.get("chosen", False)),
                version=data["version"],
            )
            digest = data["digest"]
        except (ValueError, KeyError, TypeError) as error:
            raise tampered(where, f"it is not a plan ({type(error).__name__}: {error})") from error
        if digest != plan.digest:
            raise tampered(where, "its digest does not fit its contents")
        return plan

    def finished(self, ends: Mapping[Place, int] | None = None, ids: Mapping[str, str] | None = None) -> StreamPlan:
        """Return the plan noted as done; with other ends if the positions were moved after it, and with these ids."""
        plan = self if ends is None else self.moved(ends, self.topics if ids is None else ids)
        return replace(plan, done=True)

    def moved(self, ends: Mapping[Place, int], ids: Mapping[str, str] | None) -> StreamPlan:
        """Return the plan with other ends, in topics with these ids."""
        return replace(self, entry=replace_offsets(self.entry, ends), topics=None if ids is None else dict(ids))

    def delivered_by(
        self,
        rules: str,
        code: str,
        settings: Settings,
        *,
        mixes: bool,
        spread: bool = False,
        cut: tuple[str, ...] | None = None,
    ) -> StreamPlan:
        """Return the plan for this code; nothing of the batch may be delivered. Its markers then name the code.

        If only what an earlier version did not note is new, the digest stays: tasks of its driver may still run.
        """
        now = replace(self, rules=rules, code=code, settings=settings, mixes=mixes, spread=spread)
        differs = (rules, code) != (self.rules, self.code) or unlike(self.settings, settings)
        if differs or (self.cut is not None and (cut is None or not same_cut(self.cut, cut))):
            now = replace(now, cut=cut)
        return replace(now, version=VERSION) if differs and self.version == UNNAMED else now

    def unlike(self, settings: Settings, *, mixes: bool = False) -> list[str]:
        """Return the settings that differ and count for this batch, with both values.

        Without a shuffle that is the isolation, if rejected records may be committed before the rest: those of aborted
        transactions are read at one isolation only.
        """
        if self.cut_by_code or mixes:
            return unlike(self.settings, settings)
        then, now = (
            {ISOLATION: each[ISOLATION]} if each and ISOLATION in each else None for each in (self.settings, settings)
        )
        return unlike(then, now) if self.reads else []

    def check_cut(self, cut: tuple[str, ...] | None) -> None:
        """Raise CutChanged if Spark has planned other shuffles for a partly delivered batch than it was begun with."""
        if self.cut is None or cut is None or same_cut(self.cut, cut):
            return
        was, now = (each or "none" for each in shown_cuts(self.cut, cut))
        raise CutChanged(
            f"batch {self.batch} of {self.pipeline!r} is delivered in part, and was begun with the shuffles {was}; "
            f"Spark would now plan {now}: it joins a table by its size, and that or a setting has changed",
            kept="nothing more of the batch was delivered; what was, is not delivered again",
            then="finish the batch with the table and the settings of the last run (`tailrace run FILE --batch`); "
            "spark.sql.autoBroadcastJoinThreshold, -1 or larger than the table, gives the other join",
        )

    def check_repeatable(self, rules: str, code: str, settings: Settings = None, *, mixes: bool = False) -> None:
        """Raise CutChanged if a partly delivered batch could now distribute its records in another way.

        `mixes` is whether the function shuffles now, or unions branches of the records.
        """
        changed = "source.format, its schema or process.validate" if rules != self.rules else ""
        if not changed and (self.cut_by_code or mixes) and code != self.code:
            changed = (
                "process.function or its arguments: the function shuffles or unions branches of the records, so it "
                "decides what a sink partition gets"
            )
        changed = changed or ", ".join(self.unlike(settings, mixes=mixes))
        if changed:
            raise CutChanged(
                f"batch {self.batch} of {self.pipeline!r} is delivered in part, and was begun with another {changed}",
                kept="nothing more of the batch was delivered; what was, is not delivered again",
                then="finish the batch as it was begun (`tailrace run FILE --batch`), then change; if it cannot be "
                "finished: `tailrace explain TR-302`",
            )


# What the ledger may hold as a pipeline's last plan.
AnyPlan = Plan | StreamPlan


def read(value: bytes, where: str) -> AnyPlan:
    """Read a ledger record; raise LedgerUnusable if it is not a plan that this version knows."""
    try:
        data = unpacked(value)
        version = data["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise tampered(where, f"it is not a plan ({type(error).__name__}: {error})") from error
    if version in (REDIRECTED, VERSION, UNNAMED, BEFORE):
        return StreamPlan.of(data, where)
    if version == PLAN_VERSION:
        return Plan.of(data, where)
    raise LedgerUnusable(
        f"{where} holds a plan of version {version}, and this Tailrace writes version {PLAN_VERSION}",
        kept="nothing was written",
        then="run the version of Tailrace that wrote it, or a newer one",
    )


def offsets_json(offsets: Mapping[Place, int]) -> str:
    """Format offsets as Spark does, in its options and in its offset log."""
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        nested.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(nested, separators=(",", ":"))


def offsets_of(entry: str) -> dict[Place, int]:
    """Return the end offsets in an entry of Spark's offset log.

    After its version and its metadata it has a line for each place where Spark's plan reads the source: two if good and
    rejected records branch. They are one source, asked once per batch, so the lines are equal.
    """
    try:
        lines = set(entry.strip().splitlines()[_HEAD:])
        nested: dict[str, dict[str, int]] = json.loads(lines.pop())
        found = {(topic, int(number)): offset for topic, parts in nested.items() for number, offset in parts.items()}
    except (ValueError, AttributeError, KeyError) as error:
        raise LedgerUnusable(
            f"an entry of Spark's offset log does not hold offsets ({error})",
            kept="nothing was written",
            then="restore the ledger; a checkpoint folder of another query does not fit this pipeline",
        ) from error
    if lines:
        raise InvariantBroken(f"an entry of Spark's offset log has two sources that end differently: {entry!r}")
    return found


def replace_offsets(entry: str, offsets: Mapping[Place, int]) -> str:
    """Return the same entry with other end offsets."""
    lines = entry.strip().splitlines()
    return "\n".join([*lines[:_HEAD], *[offsets_json(offsets)] * len(lines[_HEAD:])])


def assign(plan: StreamPlan, slices: tuple[Slice, ...]) -> tuple[SinkPartition, ...]:
    """Return, for each of Spark's writing tasks, the sink partition whose slice it gets."""
    places: dict[Slice, list[int]] = {}
    for number, each in enumerate(plan.slices):
        places.setdefault(_in_order(each), []).append(number)
    chosen: list[SinkPartition] = []
    for each in slices:
        numbers = places.get(_in_order(each))
        if not numbers:
            raise _changed(plan, slices)
        chosen.append(SinkPartition(numbers.pop(0)))
    if len(chosen) != len(plan.slices):
        raise _changed(plan, slices)
    return tuple(chosen)


def _in_order(each: Slice) -> Slice:
    """Return a slice that names its ranges in order; Spark lists few of them in another order after a restart."""
    return Slice("+".join(sorted(each.split("+"))))


def _changed(plan: StreamPlan, slices: tuple[Slice, ...]) -> CutChanged:
    then, now = (set(map(_in_order, each)) for each in (plan.slices, slices))
    missing, new = sorted(then - now)[:3], sorted(now - then)[:3]
    return CutChanged(
        f"batch {plan.batch} of {plan.pipeline!r} was planned with {len(plan.slices)} sink partitions for outputs and "
        f"would now have {len(slices)}; missing now: {', '.join(missing) or 'none'}; new: {', '.join(new) or 'none'}",
        kept="nothing more of the batch was delivered; what was, is not delivered again",
        then=AS_BEGUN.get(plan.version, AS_BEGUN[VERSION]),
    )
