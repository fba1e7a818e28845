"""A mirror of the input offsets in a store that others read: read at a first start, written once per batch, compared.

The ledger is authoritative, so a store that fails stops only a first start. A failure is reported once until the store
works again, and so is every mismatch between the store and the ledger.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from tailrace.config import Pipeline
from tailrace.errors import TailraceError
from tailrace.kafka import source
from tailrace.kafka.clients import TopicPartitions
from tailrace.kafka.cluster import Cluster
from tailrace.progress.plan import Place
from tailrace.progress.positions import Known, begins, differences, listed, named
from tailrace.progress.stores import KafkaStore, OffsetStore
from tailrace.progress.stream_plan import AnyPlan, offsets_json
from tailrace.status.events import Emit, OffsetsReset, OffsetStoreReport

log = logging.getLogger(__name__)

_OPEN_EVERY = 30.0  # seconds between attempts to reach a store that could not be opened


class Beginning(NamedTuple):
    """Where a pipeline without a plan begins."""

    positions: TopicPartitions
    stored: TopicPartitions  # those of them that a store names now, and may no longer name at the next start
    reset: frozenset[Place] = frozenset()  # where the store's offset was out of range, and so is not the position


class OffsetMirror:
    """Mirrors the input offsets of one run in its pipeline's store."""

    def __init__(self, pipeline: Pipeline, open_it: Callable[[], OffsetStore], emit: Emit) -> None:
        self._pipeline = pipeline
        self._open = open_it
        self._emit = emit
        self._store: OffsetStore | None = None
        self._failed = ""
        self._saved: TopicPartitions | None = None
        self._closed: TailraceError | None = None  # why the store could not be opened
        self._again = 0.0

    def begin(self, cluster: Cluster) -> Beginning:
        """Return where a pipeline without a plan begins: at the stored offsets, otherwise by auto.offset.reset."""
        fallback = source.beginning(self._pipeline, cluster)
        store = self._opened()
        stored = (store.take_over if isinstance(store, KafkaStore) else store.begin)(list(fallback))
        if not stored:
            return Beginning(fallback, {})
        place = self._pipeline.offsets.from_ or store.where
        here, notes = source.within(self._pipeline, stored, cluster, place)
        for note in notes:
            self._emit(OffsetsReset(note))
        others = [each for each in fallback if each not in here]
        notice = f"starting from {place}: {listed([f'{named(each)} at {here[each]}' for each in sorted(here)])}"
        if others:
            notice += f"; by auto.offset.reset: {listed([f'{named(each)} at {fallback[each]}' for each in others])}"
        self._say(notice)
        reset = frozenset(place for place, offset in here.items() if stored[place] != offset)
        return Beginning(fallback | here, here, reset)

    def tells(self, cluster: Cluster) -> bool:
        """Return whether the group of `offsets.from` may be read."""
        store = self._opened()
        return isinstance(store, KafkaStore) and store.tells(source.partitions_of(self._pipeline, cluster))

    def compare(self, plan: AnyPlan, positions: TopicPartitions) -> None:
        """Report where the store differs from the ledger; the ledger is authoritative."""
        try:
            store = self._opened()
            # After a batch was recorded as done, its end was written to the store.
            last = {} if plan.done else begins(plan, plan.ends)
            found = differences(Known(positions, last), store.load([*positions]))
        except TailraceError as error:
            self._fail(error)
            return
        if found:
            self._say(f"{store.where} differs from the ledger: {listed(found)}; the next batch overwrites it")

    def planned(self, plan: AnyPlan, positions: TopicPartitions, seconds: float) -> None:
        """Save where the batch begins, once the ledger has its plan."""
        took = self._save(positions)
        if log.isEnabledFor(logging.DEBUG):
            ranges = ", ".join(map(str, plan.ranges)) or "nothing"
            log.debug("batch %d reads %s; stored in the ledger in %.1f ms%s", plan.batch, ranges, seconds * 1000, took)

    def settled(self, positions: TopicPartitions) -> None:
        """Save where the next batch begins, once the last one is done."""
        if positions != self._saved:
            took = self._save(positions)
            log.debug("the last batch is done, continuing at %s%s", offsets_json(positions), took)

    def close(self) -> None:
        """Close the store."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def _opened(self) -> OffsetStore:
        if self._store is None:
            if self._closed is not None and time.monotonic() < self._again:
                raise self._closed  # opening takes time, and not every batch should wait for it
            try:
                self._store = self._open()
            except TailraceError as error:
                self._closed, self._again = error, time.monotonic() + _OPEN_EVERY
                raise
        return self._store

    def _save(self, positions: TopicPartitions) -> str:
        started = time.monotonic()
        try:
            store = self._opened()
            if store.with_the_plan:
                return ""
            store.save(positions)
        except TailraceError as error:
            self._fail(error)
            return ""
        self._saved = dict(positions)
        if self._failed:
            self._failed = ""
            self._say(f"{store.where} is written again")
        return f", in {store.where} in {(time.monotonic() - started) * 1000:.1f} ms"

    def _fail(self, error: TailraceError) -> None:
        if error.what != self._failed:
            self._failed = error.what
            self._say(f"{error.what}; the pipeline continues, because the ledger knows what was delivered")

    def _say(self, what: str) -> None:
        self._emit(OffsetStoreReport(what))
