"""Faulty records, those at which the pipeline's function raises: found by trying parts of the batch.

A task that fails does not say at which record. So the batch's ranges are processed again in smaller and smaller parts,
and nothing is written, until a part of one offset fails. Then the pipeline stops and names the record, or, with
`process.on_error: reject`, the batch is delivered with the record in the rejected topic. That is exact: without a
shuffle, a sink partition's outputs and rejected records are in one transaction.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tailrace import errors
from tailrace.config import OnError, Pipeline
from tailrace.driver.engine import Engine, Faults
from tailrace.driver.spark_errors import failure
from tailrace.gateway import Written
from tailrace.progress.plan import Place, Plan, Range, SinkPartition

WAYS = 4  # parts of a part that failed
_LIMIT = 300.0  # seconds to look for one record
_OWN = re.compile(r"^function '[^']*': ")

Probe = Callable[[tuple[Range, ...]], str | None]
Parts = tuple[tuple[Range, ...], ...]


@dataclass(frozen=True)
class Fault:
    """A record at which the function raised, and what it raised."""

    place: Place
    offset: int
    why: str

    def __str__(self) -> str:
        return f"{self.place[0]}-{self.place[1]}, offset {self.offset}"


def split(ranges: tuple[Range, ...], ways: int) -> Parts:
    """Divide ranges into at most so many consecutive parts of about the same number of offsets."""
    total = sum(each.end - each.start for each in ranges)
    step = max(1, -(-total // ways))
    parts: list[tuple[Range, ...]] = []
    part: list[Range] = []
    room = step
    for each in ranges:
        start = each.start
        while start < each.end:
            end = min(each.end, start + room)
            part.append(Range(each.topic, each.partition, start, end))
            room, start = room - (end - start), end
            if not room:
                parts.append(tuple(part))
                part, room = [], step
    if part:
        parts.append(tuple(part))
    return tuple(parts)


def search(ranges: tuple[Range, ...], probe: Probe, in_time: Callable[[], bool]) -> Fault | None:
    """Return a record at which the function raises; None if there is none any more, or it takes too long."""
    found: tuple[tuple[Range, ...], str] | None = None
    while found is None or sum(each.end - each.start for each in found[0]) > 1:
        found = next(_failing(split(found[0] if found else ranges, WAYS), probe, in_time), None)
        if found is None:
            return None
    (last,), why = found
    return Fault(last.place, last.start, _OWN.sub("", why))


def _failing(parts: Parts, probe: Probe, in_time: Callable[[], bool]) -> Iterator[tuple[tuple[Range, ...], str]]:
    """Yield each part that fails, and why."""
    for part in parts:
        if not in_time():
            return
        why = probe(part)
        if why is not None:
            yield part, why


@dataclass
class Tolerant:
    """Delivers the batches of an engine, and deals with faulty records as the pipeline says."""

    engine: Engine
    pipeline: Pipeline
    clock: Callable[[], float] = time.monotonic
    rejected: list[Fault] = field(default_factory=list)  # of the batch that was delivered last
    _cancelled: bool = False

    def deliver(
        self, plan: Plan, owners: Mapping[SinkPartition, str], gone: frozenset[str] = frozenset()
    ) -> list[Written]:
        """Deliver a batch; see `Engine.deliver`."""
        self._cancelled = False
        self.rejected = []
        while True:
            try:
                if not self.rejected:
                    return self.engine.deliver(plan, owners, gone)
                return self.engine.deliver(plan, owners, gone, by_place(self.rejected))
            except Exception as error:
                found = self._blamed(plan, gone, error)
                if found is None:
                    raise
                refused = self._refusal(plan, found)
                if refused is not None:
                    raise refused from error
                self.rejected.append(found)

    def cancel(self) -> None:
        """Give up the batch in progress."""
        self._cancelled = True
        self.engine.cancel()

    def _blamed(self, plan: Plan, gone: frozenset[str], error: Exception) -> Fault | None:
        """Return the record that an error came from, if it came from one."""
        process = self.pipeline.process
        own = process.function is not None or process.arrow is not None or bool(process.validate_)
        reported = failure(error, self.pipeline)
        if not own or not isinstance(reported, errors.FunctionFailed | errors.QueryFailed) or self._cancelled:
            return None
        known = by_place(self.rejected)
        ranges = tuple(each for each in plan.ranges if each.topic not in gone)
        until = self.clock() + _LIMIT

        def probe(part: tuple[Range, ...]) -> str | None:
            return self.engine.probe(plan, part, known)

        try:
            return search(ranges, probe, lambda: self.clock() < until and not self._cancelled)
        except Exception:  # whatever it was, the first error is what happened
            return None

    def _refusal(self, plan: Plan, found: Fault) -> errors.FunctionFailed | None:
        """Return the error to stop with, or None if the record is to be rejected."""
        process = self.pipeline.process
        name = process.function or process.arrow
        who = f"function {name!r}" if name else "process.validate"
        if process.on_error is OnError.STOP:
            fix = "fix the function" if name else "mend the condition"
            reject = "" if plan.shuffles or not name else ", or set process.on_error: reject"
            return errors.FunctionFailed(
                f"{who}: {found.why}; at {found}, in batch {plan.batch}",
                kept="the batch's open transactions were aborted; the batch is read again at the next start",
                then=f"{fix}{reject}; then start again",
            )
        if len(self.rejected) < process.max_errors:
            return None
        return errors.FunctionFailed(
            f"{who} raised at more than {process.max_errors} records of batch {plan.batch}; the last was {found}: "
            f"{found.why}",
            kept="the batch's open transactions were aborted, so none of these records is in the rejected topic",
            then="fix the function; or, if that many records are faulty, raise process.max_errors; then start again",
        )


def by_place(faults: list[Fault]) -> Faults:
    """Group faults by their source partition."""
    found: dict[Place, dict[int, str]] = {}
    for each in faults:
        found.setdefault(each.place, {})[each.offset] = each.why
    return found
