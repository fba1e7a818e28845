"""What a batch will read, decided once and written down before anything of it is delivered.

A replay is exact only if each sink partition gets the same records again. Spark does not promise that: with four
topic partitions or fewer its source lists them in another order after a restart (docs/decisions/0002). So a sink
partition is known by what it reads, not by Spark's number for it.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import NewType

from tailrace.config import Delivery
from tailrace.errors import CutChanged, LedgerUnusable

BatchId = NewType("BatchId", int)
SinkPartition = NewType("SinkPartition", int)
# What one task reads: source ranges joined by "+", or a shuffle's partition.
Slice = NewType("Slice", str)

VERSION = 1


@dataclass(frozen=True, order=True)
class Range:
    """Offsets of one topic partition: from `start`, up to but without `end`."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}:{self.start}-{self.end}"

    @classmethod
    def parse(cls, text: str) -> Range:
        """The range that `str` has written."""
        found = re.fullmatch(r"(.+)-(\d+):(\d+)-(\d+)", text)
        if found is None:
            raise LedgerUnusable(f"{text!r} is not a range")
        return cls(found[1], int(found[2]), int(found[3]), int(found[4]))


@dataclass(frozen=True)
class Plan:
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
    shape: str = ""  # what decides which branch a record takes: format, schema, conditions
    code: str = ""  # the function's files and arguments
    mixes: bool = False  # the function shuffles
    done: bool = False  # every sink partition is written

    @property
    def sinks(self) -> int:
        """The number of sink partitions."""
        return len(self.slices)

    @property
    def digest(self) -> str:
        """What a marker names: the same if and only if each sink partition reads the same."""
        text = json.dumps([self.pipeline, self.query, self.batch, list(self.slices)])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def records(self) -> int:
        """How many offsets the batch spans."""
        return sum(each.end - each.start for each in self.ranges)

    def to_json(self) -> str:
        """The plan as the ledger keeps it."""
        return json.dumps(
            {
                "version": VERSION,
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
                "shape": self.shape,
                "code": self.code,
                "mixes": self.mixes,
                "done": self.done,
                "digest": self.digest,
            }
        )

    @classmethod
    def from_json(cls, text: bytes | str, where: str) -> Plan:
        """The plan that the ledger holds at `where`; whoever has changed it is noticed."""
        try:
            data = json.loads(text)
            if data["version"] != VERSION:
                raise LedgerUnusable(
                    f"{where} holds a plan of version {data['version']}, and this Tailrace writes version {VERSION}",
                    kept="nothing was written",
                    then="run the version of Tailrace that wrote it, or a newer one",
                )
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
                shape=data["shape"],
                code=data["code"],
                mixes=data["mixes"],
                done=data["done"],
            )
            digest = data["digest"]
        except (ValueError, KeyError, TypeError) as error:
            raise _tampered(where, f"it is not a plan ({type(error).__name__}: {error})") from error
        if digest != plan.digest:
            raise _tampered(where, "its digest does not fit its contents")
        return plan

    def finished(self, entry: str | None = None) -> Plan:
        """The same plan, done; with another offset log entry where the positions were reset after it."""
        return replace(self, done=True, entry=entry or self.entry)

    def check_repeatable(self, shape: str, code: str) -> None:
        """Refuse to finish a batch that is delivered in part if its records could now part in another way."""
        changed = "source.format, its schema or process.validate" if shape != self.shape else ""
        if not changed and self.mixes and code != self.code:
            changed = (
                "process.function or its arguments: the function shuffles, so it decides what a sink partition gets"
            )
        if changed:
            raise CutChanged(
                f"batch {self.batch} of {self.pipeline!r} is delivered in part, and was begun with another {changed}",
                kept="nothing more of the batch was delivered; what was, is not delivered again",
                then="finish the batch as it was begun (`tailrace run FILE --batch`), then change",
            )


def _tampered(where: str, why: str) -> LedgerUnusable:
    return LedgerUnusable(
        f"{where} was changed by somebody else: {why}",
        kept="nothing was written",
        then="restore the ledger, or give the pipeline a new name and set auto.offset.reset",
    )


def assign(plan: Plan, slices: tuple[Slice, ...]) -> tuple[SinkPartition, ...]:
    """For each of Spark's tasks now, the sink partition whose slice it reads."""
    places: dict[Slice, list[int]] = {}
    for number, each in enumerate(plan.slices):
        places.setdefault(each, []).append(number)
    chosen: list[SinkPartition] = []
    for each in slices:
        numbers = places.get(each)
        if not numbers:
            raise _changed(plan, slices)
        chosen.append(SinkPartition(numbers.pop(0)))
    if len(chosen) != plan.sinks:
        raise _changed(plan, slices)
    return tuple(chosen)


def _changed(plan: Plan, slices: tuple[Slice, ...]) -> CutChanged:
    missing = sorted(set(plan.slices) - set(slices))[:3]
    new = sorted(set(slices) - set(plan.slices))[:3]
    return CutChanged(
        f"batch {plan.batch} of {plan.pipeline!r} was planned with {plan.sinks} sink partitions and would now have "
        f"{len(slices)}; missing now: {', '.join(missing) or 'none'}; new: {', '.join(new) or 'none'}",
        kept="nothing more of the batch was delivered; what was, is not delivered again",
        then="start with the settings of the last run once (`tailrace run FILE --batch`), then change them",
    )
