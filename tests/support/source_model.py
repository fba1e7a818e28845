"""The batch loop against a small model of its source: whatever changes between two looks, no record is skipped or read
twice.

The decisions are the loop's own code. The model replaces Kafka, which cannot be made to trim a topic between a look
ahead and the batch that is chosen from it. A look ahead may be older than what happened since; the model draws how old.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any

from tailrace.config import Pipeline
from tailrace.driver.context import RENEW_EVERY
from tailrace.driver.engine import NO_FAULTS, Cut, Faults, Parts
from tailrace.driver.look import Seen
from tailrace.driver.loop import Loop
from tailrace.driver.shutdown import Stop
from tailrace.errors import SourceChanged, TailraceError
from tailrace.gateway import Written
from tailrace.kafka.clients import TopicPartitions
from tailrace.progress.plan import Plan, Range, SinkPartition
from tailrace.stages.rules import Judged

TOPIC = "in"
Record = tuple[str, int, int]  # the topic's id, partition, offset


class Step(Enum):
    """What happens, to the source or in the loop."""

    APPEND = auto()
    GROW = auto()
    TRIM = auto()
    RECREATE = auto()
    HIDE = auto()  # the right to describe it is withdrawn
    SHOW = auto()
    LOOK_AHEAD = auto()
    LOOK_STALE = auto()  # the same, answered by a broker that lags
    BATCH = auto()


@dataclass
class Log:
    """The offsets of one partition that exist."""

    start: int = 0
    end: int = 0


@dataclass
class Source:
    """A topic, what was ever in it, and what was read of it."""

    number: int = 0
    hidden: bool = False
    logs: list[Log] = field(default_factory=lambda: [Log(), Log()])
    ever: set[Record] = field(default_factory=set)
    gone: set[Record] = field(default_factory=set)  # deleted before they were read
    read: Counter[Record] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """The topic's id."""
        return f"id-{self.number}"

    def apply(self, step: Step) -> None:
        """Change the topic."""
        if step is Step.APPEND:
            for number, log in enumerate(self.logs):
                self.ever |= {(self.name, number, offset) for offset in range(log.end, log.end + 3 + number)}
                log.end += 3 + number
        elif step in {Step.HIDE, Step.SHOW}:
            self.hidden = step is Step.HIDE
        elif step is Step.GROW:
            self.logs.append(Log())
        elif step is Step.TRIM:
            for number, log in enumerate(self.logs):
                self._delete(number, log, (log.start + log.end + 1) // 2)
        elif step is Step.RECREATE:
            for number, log in enumerate(self.logs):
                self._delete(number, log, log.end)
            self.number += 1
            self.logs = [Log(), Log()]

    def _delete(self, number: int, log: Log, start: int) -> None:
        self.gone |= {(self.name, number, offset) for offset in range(log.start, start)} - self.read.keys()
        log.start = start

    def seen(self, *, stale: bool = False) -> Seen:
        """Look at it; a stale answer shows fewer partitions and earlier ends. No look is too old, on no machine."""
        if self.hidden:
            return Seen({}, {}, math.inf)
        if stale:
            return Seen({(TOPIC, 0): self.logs[0].end // 2}, {TOPIC: self.name}, math.inf)
        ends = {(TOPIC, number): log.end for number, log in enumerate(self.logs)}
        return Seen(ends, {TOPIC: self.name}, math.inf)

    def earliest(self, places: Sequence[tuple[str, int]]) -> TopicPartitions:
        """Return the first offsets that exist; of a partition that does not, 0."""
        return {place: self.logs[place[1]].start if place[1] < len(self.logs) else 0 for place in places}


@dataclass
class Engine:
    """Reads what a plan says, as the gateway does: only of the topic with the planned id, if it asks for that."""

    source: Source
    reset: bool
    asks: bool = True
    slots: int = 2
    cut: Cut = field(default_factory=Cut)
    planning: tuple[str, tuple[str, ...]] = ("kept", ())
    observed: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def fits(self, plan: Plan) -> bool:
        """Return whether there is no shuffle."""
        return self.cut.fits(plan)

    def deliver(
        self,
        plan: Plan,
        owners: Mapping[SinkPartition, str],
        gone: frozenset[str] = frozenset(),
        faults: Faults = NO_FAULTS,
        seen: Parts = frozenset(),
    ) -> list[Written]:
        """Read the ranges."""
        if self.asks and plan.topics != {TOPIC: self.source.name}:
            raise stopped()
        for each in plan.ranges:
            log = self.source.logs[each.partition] if each.partition < len(self.source.logs) else Log()
            if each.start < log.start and not self.reset:
                raise stopped()
            here = range(max(each.start, log.start), min(each.end, log.end))
            self.source.read.update((self.source.name, each.partition, offset) for offset in here)
        return [Written(SinkPartition(number), skipped=False) for number in range(plan.sinks)]

    def judge(self, plan: Plan, faults: Faults = NO_FAULTS) -> Judged:
        """Count nothing: there are no rules."""
        return ()

    def probe(self, plan: Plan, part: tuple[Range, ...], faults: Faults, lane: int) -> str | None:
        """Find nothing: there is no function."""
        return None

    def cancel(self) -> None:
        """Give nothing up."""


def stopped() -> TailraceError:
    """Return the error of a reader that finds another source than was planned; another start decides what is left."""
    return SourceChanged("the source changed under the batch", kept="all", then="none")


def walk(steps: Sequence[Step], *, reset: bool, asks: bool = True, admits: bool = True) -> tuple[Source, bool]:
    """Run the steps, then batches until nothing is left; return the source, and whether the pipeline stopped itself.

    Without `asks` the reader does not compare topic ids; without `admits` the loop ignores what changed.
    """
    source = Source()
    loop = _loop(source, Engine(source, reset, asks), reset)
    if not admits:
        loop._admit = lambda seen: None  # type: ignore[method-assign]
    looks: list[Seen] = []

    def batch() -> bool:
        loop._ahead = looks.pop() if looks else None
        looks.clear()
        seen = loop._look_at_source(aiming=False)
        return seen is not None and loop._batch(seen, time.monotonic())

    try:
        for step in steps:
            if step in {Step.LOOK_AHEAD, Step.LOOK_STALE}:
                looks.append(source.seen(stale=step is Step.LOOK_STALE))
            elif step is Step.BATCH:
                batch()
            else:
                source.apply(step)
        source.apply(Step.SHOW)
        for _ in range(100):
            if not batch() and not batch():  # the first may have been chosen from an old look
                return source, False
        raise RuntimeError("the loop does not come to an end of its source")
    except TailraceError:
        return source, True
    finally:
        loop._threads.shutdown()


def _loop(source: Source, engine: Engine, reset: bool) -> Loop:
    pipeline = Pipeline.model_validate(
        {
            "pipeline": "p", "kafka": {"bootstrap.servers": "127.0.0.1:1"}, "sink": {"topic": "out"},
            "source": {"topics": [TOPIC], "on_data_loss": "reset" if reset else "stop"},
            "batch": {"target": 0, "max_records": 5},
        }
    )  # fmt: skip
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    context: Any = SimpleNamespace(
        pipeline=pipeline,
        assembly=SimpleNamespace(rules="", code="", settings=None),
        cluster=source,
        ledger=SimpleNamespace(partitions=64, write=nothing, latest=nothing),
        mirror=SimpleNamespace(planned=nothing),
        watcher=SimpleNamespace(finished=nothing, tick=nothing),
        emit=nothing,
        stop=Stop(),
        run="r",
        renew_every=RENEW_EVERY,
    )
    loop = Loop(context, engine, positions={(TOPIC, number): 0 for number in range(len(source.logs))})
    loop.look = lambda positions: source.seen()  # type: ignore[assignment]
    loop._ids = {TOPIC: source.name}
    return loop
