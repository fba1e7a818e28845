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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue

from tailrace import errors
from tailrace.config import OnError, Pipeline
from tailrace.driver.engine import BLAMABLE, WAYS, Engine, Faults, Parts
from tailrace.driver.spark_errors import failure
from tailrace.gateway import Written
from tailrace.progress.plan import Place, Plan, Range, SinkPartition
from tailrace.stages.rules import Judged

_LIMIT = 300.0  # seconds for one search
_PAUSES = (1.0, 2.0, 4.0)  # seconds before a contested batch is delivered again
_LANES = 100_000  # from here on; tasks that deliver use the numbers below
_SHOWN = 120  # characters of an exception
_OWN = re.compile(r"^function '[^']*': ")

Part = tuple[Range, ...]


@dataclass(frozen=True)
class Fault:
    """A record at which the function raised, and what it raised."""

    place: Place
    offset: int
    why: str

    def __str__(self) -> str:
        return f"{self.place[0]}-{self.place[1]}, offset {self.offset}"


def size(part: Part) -> int:
    """Return the number of offsets of a part."""
    return sum(each.end - each.start for each in part)


def split(ranges: Part, ways: int) -> list[Part]:
    """Divide ranges into at most so many consecutive parts of about the same number of offsets."""
    step = max(1, -(-size(ranges) // ways))
    parts: list[Part] = []
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
    return parts


def search(ranges: Part, failing: Callable[[list[Part]], list[tuple[Part, str]]], most: int) -> list[Fault]:
    """Return up to so many records at which the function raises; `failing` tries parts, and tells which fail."""
    found: list[Fault] = []
    left = [ranges]
    while left and len(found) < most:
        failed = failing(split(left.pop(), WAYS))
        found += [Fault(part[0].place, part[0].start, _OWN.sub("", why)) for part, why in failed if size(part) == 1]
        left += [part for part, _ in reversed(failed) if size(part) > 1]  # the first is the next
    return found[:most]


@dataclass
class Tolerant:
    """Delivers the batches of an engine, and deals with faulty records as the pipeline says."""

    engine: Engine
    pipeline: Pipeline
    leads: Callable[[], bool]  # whether no newer driver has taken over
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    rejected: list[Fault] = field(default_factory=list)  # of the batch that was delivered last
    _cancelled: bool = False
    _in_vain: bool = False  # whether a search of this batch has found nothing
    _news: SimpleQueue[str] = field(default_factory=SimpleQueue)

    def news(self) -> Iterator[str]:
        """Yield what a person should know of the batch in progress, once; for another thread than the batch's."""
        while not self._news.empty():
            yield self._news.get()

    def deliver(
        self,
        plan: Plan,
        owners: Mapping[SinkPartition, str],
        gone: frozenset[str] = frozenset(),
        seen: Parts = frozenset(),
    ) -> list[Written]:
        """Deliver a batch; see `Engine.deliver`."""
        self._cancelled = self._in_vain = False
        self.rejected = []
        pauses = iter(_PAUSES)
        while True:
            try:
                return self.engine.deliver(plan, owners, gone, by_place(self.rejected), seen)
            except Exception as error:
                if not self._contested(plan, error, pauses):
                    self._reject(plan, gone, error)

    def _contested(self, plan: Plan, error: Exception, pauses: Iterator[float]) -> bool:
        """Wait and return True if the batch is to be delivered again: an older driver's attempt has fenced this one.

        An attempt of a driver that was suspended takes its transactional id again before the driver learns that it is
        not the last one, and each of its requests may end a transaction of this one.
        """
        reported = failure(error, self.pipeline)
        if not isinstance(reported, errors.Contested) or self._cancelled or not self.leads():
            return False
        pause = next(pauses, None)
        if pause is None:
            return False
        self._news.put(f"batch {plan.batch}: delivering it again in {pause:g} s, because of {reported.what}")
        self.sleep(pause)
        return not self._cancelled

    def _reject(self, plan: Plan, gone: frozenset[str], error: Exception) -> None:
        """Reject the records that an error came from; raise it, or what it means, if that cannot be.

        If no record is found, the batch is tried once more: the record may have been deleted from the topic since.
        """
        found = self._blamed(plan, gone, error)
        if found is None or self._cancelled:
            raise error
        if not found:
            if self._in_vain or self.pipeline.process.on_error is OnError.STOP:
                raise error
            self._in_vain = True
            return
        left_out = {(each.place, each.offset) for each in self.rejected}
        if any((each.place, each.offset) in left_out for each in found):  # so it is not why
            raise error
        refused = self._refusal(plan, [*self.rejected, *found])
        if refused is not None:
            raise refused from error
        self.rejected += found

    def judge(self, plan: Plan) -> Judged:
        """Count the rules over a batch that is not planned yet; see `Engine.judge`."""
        self._cancelled = self._in_vain = False
        self.rejected = []
        while True:
            try:
                return self.engine.judge(plan, by_place(self.rejected))
            except Exception as error:
                self._reject(plan, frozenset(), error)

    def cancel(self) -> None:
        """Give up the batch in progress."""
        self._cancelled = True
        self.engine.cancel()

    def _blamed(self, plan: Plan, gone: frozenset[str], error: Exception) -> list[Fault] | None:
        """Return the records that an error came from; None if none can be its cause."""
        process = self.pipeline.process
        own = process.function is not None or process.arrow is not None or bool(process.validate_)
        reported = failure(error, self.pipeline)
        if not own or not isinstance(reported, BLAMABLE) or self._cancelled:
            return None
        most = 1 if process.on_error is OnError.STOP else process.max_errors + 1 - len(self.rejected)
        known, until = by_place(self.rejected), self.clock() + _LIMIT
        self._news.put(f"batch {plan.batch}: {reported.what}; looking for the records, for up to {_LIMIT:.0f} s")
        ranges = tuple(each for each in plan.ranges if each.topic not in gone)
        lanes = max(1, min(WAYS, self.engine.slots))
        with ThreadPoolExecutor(lanes, "tailrace-probe") as threads:

            def probe(number: int, part: Part) -> str | None:
                if self._cancelled or self.clock() > until:
                    return None
                return self.engine.probe(plan, part, known, _LANES + number % lanes)

            def failing(parts: list[Part]) -> list[tuple[Part, str]]:
                whys: list[str | None] = []
                for first in range(0, len(parts), lanes):  # no two of them share a lane
                    chosen = parts[first : first + lanes]
                    whys += threads.map(probe, range(len(chosen)), chosen)
                return [(part, why) for part, why in zip(parts, whys, strict=True) if why is not None]

            try:
                found = search(ranges, failing, most)
                # A table that cannot be read, say: it fails in the same way without any record.
                none = self.engine.probe(plan, (), known, _LANES) if found else None
                if none is not None and _kind(none) in {_kind(each.why) for each in found}:
                    return None
                until = self.clock() + _LIMIT  # what was found by the end of the search is worth as much
                again = failing([(Range(*each.place, each.offset, each.offset + 1),) for each in found])
                sure = {(part[0].place, part[0].start) for part, _ in again}
                return [each for each in found if (each.place, each.offset) in sure]
            except errors.TailraceError as other:
                if process.on_error is OnError.REJECT:  # its records would have been rejected: the function is not why
                    raise other from error
                return []
            except Exception:  # whatever it was, the first error is what happened
                return []

    def _refusal(self, plan: Plan, found: list[Fault]) -> errors.FunctionFailed | None:
        """Return the error to stop with, or None if the records are to be rejected."""
        process = self.pipeline.process
        name = process.function or process.arrow
        who = f"function {name!r}" if name else "process.validate"
        if process.on_error is OnError.STOP:
            fix = "fix the function" if name else "mend the condition"
            reject = "" if plan.shuffles or not name else ", or set process.on_error: reject"
            return errors.FunctionFailed(
                f"{who}: {found[0].why}; at {found[0]}, in batch {plan.batch}",
                kept="the batch's open transactions were aborted; the batch is read again at the next start",
                then=f"{fix}{reject}; then start again",
            )
        if len(found) <= process.max_errors:
            return None
        return errors.FunctionFailed(
            f"{who} raised at more than {process.max_errors} records of batch {plan.batch}; one is {found[0]}: "
            f"{found[0].why}",
            kept="the batch's open transactions were aborted, so none of these records is in the rejected topic",
            then="fix the function; or, if that many records are faulty, raise process.max_errors; then start again",
        )


def _kind(why: str) -> str:
    """Return what tells one error from another whose text names a file, an address or a moment."""
    return _OWN.sub("", why).partition(":")[0]


def by_place(faults: list[Fault]) -> Faults:
    """Group faults by their source partition."""
    found: dict[Place, dict[int, str]] = {}
    for each in faults:
        found.setdefault(each.place, {})[each.offset] = each.why
    return found


def told(batch: int, faults: list[Fault]) -> str:
    """Describe a batch's faulty records in one line."""
    count = "1 record" if len(faults) == 1 else f"{len(faults)} records"
    why = f"{faults[0].why[:_SHOWN]}…" if len(faults[0].why) > _SHOWN else faults[0].why
    return f"batch {batch}: the function raised at {count}, now rejected; the first is {faults[0]}: {why}"
