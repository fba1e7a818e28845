"""The engine without Spark: read, decode, gate, encode and write in threads of one process.

It serves pipelines that need no DataFrame, for previews and for tests of the protocol against a real Kafka. It writes
with the gateway's own code, so what is proved here holds for the gateway too.
"""

from __future__ import annotations

import collections
import itertools
import tempfile
import uuid
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from tailrace import errors
from tailrace.config import Pipeline
from tailrace.driver.arrow_rows import rows
from tailrace.driver.engine import BLAMABLE, NO_FAULTS, Cut, Faults, Parts, already
from tailrace.driver.tasks import BatchInfo, Tasks
from tailrace.gateway import ReadDone, Written
from tailrace.gateway.attempts import Attempts
from tailrace.gateway.writing import Deliveries
from tailrace.progress.plan import Plan, Range, SinkPartition
from tailrace.stages.arrow_stages import ArrowSpec, stages_of
from tailrace.stages.rules import Judged, total

_TRIES = 4  # as many as Spark gives a task


class ThreadEngine:
    """Delivers the batches of one run in threads."""

    def __init__(self, pipeline: Pipeline, folder: Path, run: str, slots: int = 2) -> None:
        self._run = run
        self._spec = ArrowSpec.of(pipeline, folder)
        self._tasks = Tasks.of(pipeline, self._spec.columns, shuffles=False, judges=False)
        self._slots = slots
        self._threads = ThreadPoolExecutor(slots, "tailrace-part")
        self._scratch = tempfile.TemporaryDirectory(prefix="tailrace-")
        self.deliveries = Deliveries(uuid.uuid4().hex[:12], attempts=Attempts(Path(self._scratch.name)))
        self._cancelled = False

    @property
    def slots(self) -> int:
        """See `Engine.slots`."""
        return self._slots

    @property
    def cut(self) -> Cut:
        """See `Engine.cut`."""
        return Cut()

    def fits(self, plan: Plan) -> bool:
        """See `Engine.fits`."""
        return self.cut.fits(plan)

    @property
    def planning(self) -> tuple[str, tuple[str, ...]]:
        """See `Engine.planning`."""
        return "kept", ()

    @property
    def observed(self) -> Mapping[str, Mapping[str, float]]:
        """See `Engine.observed`: Arrow functions observe nothing."""
        return {}

    def deliver(
        self,
        plan: Plan,
        owners: Mapping[SinkPartition, str],
        gone: frozenset[str] = frozenset(),
        faults: Faults = NO_FAULTS,
        seen: Parts = frozenset(),
    ) -> list[Written]:
        """See `Engine.deliver`."""
        if plan.shuffles:
            raise errors.CutChanged(
                f"batch {plan.batch} of {plan.pipeline!r} was planned behind a shuffle, which needs Spark",
                kept="nothing more of the batch was delivered, and nothing is delivered twice",
                then="run the pipeline with Spark: tailrace run FILE",
            )
        self._cancelled = False
        info = BatchInfo.of(plan, self._run, owners, gone, faults, seen)
        jobs = [self._threads.submit(self._part, info, number) for number in plan.open]
        try:
            written = already(plan) | {each.partition: each for each in (job.result() for job in jobs)}
            return [written[number] for number in sorted(written)]
        finally:
            for job in jobs:
                job.cancel()
            for cache in self.deliveries.caches().values():
                cache.tend()

    def part(self, plan: Plan, number: int, owners: Mapping[SinkPartition, str], gone: frozenset[str]) -> Written:
        """Deliver one sink partition of a plan."""
        return self._part(BatchInfo.of(plan, self._run, owners, gone), number)

    def _part(self, info: BatchInfo, number: int) -> Written:
        for attempt in range(_TRIES):
            try:
                return self._attempt(info, number)
            except errors.TailraceError as error:
                last = attempt == _TRIES - 1 or not isinstance(error, errors.CommitInDoubt | errors.KafkaError)
                if last or self._cancelled:
                    raise
        raise errors.InvariantBroken("an attempt neither returned nor raised")

    def _attempt(self, info: BatchInfo, number: int) -> Written:
        done = ReadDone()
        judged: list[Judged] = []
        with self._read(info, number, done) as read:
            made = self._rows(info, number, read, judged)
            written = self.deliveries.write(self._tasks.assignment(info, number), made)
        written = replace(written, read=done.records, read_size=done.size, lost=tuple(map(str, done.lost)))
        return written if written.skipped else replace(written, judged=total(judged))

    def _read(self, info: BatchInfo, number: int, done: ReadDone) -> closing[Generator[Any, None, None]]:
        """Read a part; a failed attempt that did not close it would hold its consumer until the error is freed."""
        return closing(self.deliveries.read(self._tasks.request(info, number), done))

    def _rows(
        self, info: BatchInfo, number: int, read: Generator[Any, None, None], judged: list[Judged]
    ) -> Iterator[Any]:
        """Return a part's rows, the rejected ones among them; `judged` gets the counts of the rules."""
        aside: list[Any] = []
        records = self._records(info, number, read, aside)
        return itertools.chain(rows(stages_of(self._spec), records, judged.append), aside)

    def _records(
        self, info: BatchInfo, number: int, read: Generator[Any, None, None], aside: list[Any]
    ) -> Iterator[Any]:
        return self._checked(self._tasks.records(info, number, read, aside.append))

    def judge(self, plan: Plan, faults: Faults = NO_FAULTS) -> Judged:
        """See `Engine.judge`."""
        self._cancelled = False
        info = BatchInfo.of(plan, self._run, {}, frozenset(), faults)
        stages = stages_of(self._spec)

        def judged(number: int) -> Judged:
            with self._read(info, number, ReadDone()) as read:
                return total(stages.judge(each)[2] for each in self._records(info, number, read, []))

        return total(self._threads.map(judged, range(len(plan.parts))))

    def probe(self, plan: Plan, part: tuple[Range, ...], faults: Faults, lane: int) -> str | None:
        """See `Engine.probe`."""
        info = BatchInfo.of(plan, self._run, {}, frozenset(), faults).probing(part, lane)
        try:
            with self._read(info, 0, ReadDone()) as read:
                collections.deque(self._rows(info, 0, read, []), maxlen=0)
        except BLAMABLE as error:
            return error.what
        return None

    def _checked(self, records: Iterator[Any]) -> Iterator[Any]:
        for batch in records:
            if self._cancelled:
                raise errors.InputCutOff("the batch was given up", kept="its transactions were aborted")
            yield batch

    def cancel(self) -> None:
        """See `Engine.cancel`."""
        self._cancelled = True

    def close(self) -> None:
        """Close producers, consumers and threads."""
        self._threads.shutdown()
        for cache in self.deliveries.caches().values():
            cache.close()
        self._scratch.cleanup()
