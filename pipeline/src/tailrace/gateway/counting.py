"""A gateway's metrics: counted per transaction, task or producer, never per record."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tailrace.errors import CommitInDoubt
from tailrace.gateway import Assignment
from tailrace.gateway.cache import Cache
from tailrace.gateway.send import Counts
from tailrace.telemetry import metrics
from tailrace.telemetry.measure import Measures
from tailrace.telemetry.metrics import group

KINDS: Final = {"sinks": "sink", "shared": "shared", "readers": "reader", "sources": "source"}
_OF_A_GROUP = (
    metrics.GATEWAY_RECORDS,
    metrics.GATEWAY_BYTES,
    metrics.BEGUN,
    metrics.COMMITTED,
    metrics.ABORTED,
    metrics.DOUBTFUL,
    metrics.ALREADY,
    metrics.TRANSACTION_SECONDS,
    metrics.COMMIT_SECONDS,
    metrics.OPEN_SECONDS,
)


@dataclass
class Transaction:
    """An open transaction."""

    pipeline: str
    group: str
    began: float
    done: bool = False


class Counting:
    """The counters of one gateway; each task has its own thread."""

    def __init__(self, measures: Measures, clock: Callable[[], float] = time.monotonic) -> None:
        self.measures = measures
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[int, Transaction] = {}
        self._numbers = itertools.count()
        self._tasks: dict[str, int] = {}
        self._groups: dict[tuple[str, str], None] = {}

    def _begin(self, task: Assignment) -> tuple[str, str]:
        place = (task.pipeline, group(task.partition))
        if place not in self._groups:  # start all its series at 0: a rate must see the first increase
            self._groups[place] = None
            for metric in _OF_A_GROUP:
                self.measures.begin(metric, *place)
        return place

    @contextlib.contextmanager
    def transaction(self, task: Assignment) -> Iterator[Transaction]:
        """Count the transaction in this block; after an exception it counts as aborted, or as in doubt."""
        place = self._begin(task)
        opened, number = Transaction(*place, self._clock()), next(self._numbers)
        with self._lock:
            self._open[number] = opened
        self.measures.add(metrics.BEGUN, *place)
        try:
            yield opened
        except CommitInDoubt:
            self.measures.add(metrics.DOUBTFUL, *place)
            raise
        except BaseException:
            self.measures.add(metrics.ABORTED, *place)
            raise
        finally:
            with self._lock:
                del self._open[number]

    def committed(self, opened: Transaction, milliseconds: float) -> None:
        """Count a transaction that is committed without doubt."""
        place = (opened.pipeline, opened.group)
        self.measures.add(metrics.COMMITTED, *place)
        self.measures.observe(metrics.TRANSACTION_SECONDS, *place, value=self._clock() - opened.began)
        self.measures.observe(metrics.COMMIT_SECONDS, *place, value=milliseconds / 1000)

    def skipped(self, task: Assignment) -> None:
        """Count a sink partition that its marker showed to be delivered."""
        self.measures.add(metrics.ALREADY, *self._begin(task))

    def delivered(self, task: Assignment, counts: Counts) -> None:
        """Count the records that were delivered."""
        place = self._begin(task)
        self.measures.add(metrics.GATEWAY_RECORDS, *place, by=counts.out + counts.rejected)
        self.measures.add(metrics.GATEWAY_BYTES, *place, by=counts.size)
        for reason, number in counts.reasons.items():
            self.measures.add(metrics.GATEWAY_REJECTED, *place, reason, by=number)

    @contextlib.contextmanager
    def task(self, pipeline: str) -> Iterator[None]:
        """Count the task in this block."""
        began = self._clock()
        self._running(pipeline, 1)
        try:
            yield
        finally:
            self._running(pipeline, -1)
            self.measures.observe(metrics.TASK_SECONDS, pipeline, value=self._clock() - began)

    def _running(self, pipeline: str, more: int) -> None:
        with self._lock:
            self._tasks[pipeline] = self._tasks.get(pipeline, 0) + more

    # -- looking -----------------------------------------------------------------------------------

    def sample(self) -> None:
        """Observe the ages of the oldest open transactions, for their histogram."""
        for place, ages in self._ages().items():
            self.measures.observe(metrics.OPEN_SECONDS, *place, value=max(ages))

    def look(self, caches: Mapping[str, Cache[Any]]) -> None:
        """Set the gauges that are computed only for a scrape."""
        ages = self._ages()
        for place in list(self._groups):
            self.measures.set(metrics.TRANSACTIONS_OPEN, *place, value=len(ages.get(place, [])))
            self.measures.set(metrics.OLDEST_OPEN, *place, value=max(ages.get(place, [0.0])))
        for pipeline, number in list(self._tasks.items()):
            self.measures.set(metrics.TASKS, pipeline, value=number)
        queued: dict[tuple[str], float] = {}
        for name, cache in caches.items():
            kind = KINDS[name]
            for owner, counts in cache.owners().items():
                self.measures.total(metrics.CREATED, owner, kind, value=counts.created)
                self.measures.total(metrics.CLOSED, owner, kind, value=counts.closed)
                self.measures.set(metrics.OPEN, owner, kind, value=counts.created - counts.closed)
                self.measures.set(metrics.USED, owner, kind, value=counts.used)
                for why, number in counts.retired.items():
                    known = why if why in metrics.RETIREMENTS else metrics.OTHER
                    self.measures.total(metrics.RETIRED, owner, kind, known, value=number)
            for owner, producer in cache.each():
                queued[(owner,)] = queued.get((owner,), 0) + producer.queued
        for owners, waiting in queued.items():
            self.measures.set(metrics.QUEUED, *owners, value=waiting)

    def _ages(self) -> dict[tuple[str, str], list[float]]:
        now = self._clock()
        with self._lock:
            every = list(self._open.values())
        found: dict[tuple[str, str], list[float]] = {}
        for each in every:
            found.setdefault((each.pipeline, each.group), []).append(now - each.began)
        return found
