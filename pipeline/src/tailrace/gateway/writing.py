"""Writing one sink partition of one batch: exactly once, with its marker, or at least once."""

from __future__ import annotations

import collections
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from tailrace import crash_points, errors
from tailrace.config import Delivery
from tailrace.crash_points import Point
from tailrace.gateway import Assignment, ReadDone, ReadRequest, Written
from tailrace.gateway.attempts import Attempt, Attempts, completed
from tailrace.gateway.cache import Cache
from tailrace.gateway.content import Content, check_moved, check_replay
from tailrace.gateway.counting import Counting
from tailrace.gateway.markers import MarkerReader
from tailrace.gateway.producers import SinkProducer
from tailrace.gateway.reading import Reader
from tailrace.gateway.send import Counts, send
from tailrace.gateway.sender import AT_LEAST_ONCE, Sender
from tailrace.gateway.statistics import Listener, Statistics
from tailrace.gateway.verdicts import Verdicts
from tailrace.kafka.clients import connection
from tailrace.kafka.informed_reader import Informed
from tailrace.kafka.reader import remaining
from tailrace.progress.marker import Decision, Marker, decide
from tailrace.progress.plan import Range
from tailrace.progress.states import overtaken, remembers, repeated
from tailrace.telemetry import metrics
from tailrace.telemetry.measure import Measures

_INFORMED = 3  # producers in a row that may ask for a marker anew
_FLUSH_STEP = 5.0
_FLUSH_LIMIT = 120.0  # seconds without any acknowledgement


class Deliveries:
    """Reads and writes with the cached clients of one gateway process; each task has its own thread."""

    def __init__(
        self,
        name: str,
        counting: Counting | None = None,
        statistics: Statistics | None = None,
        attempts: Attempts | None = None,
    ) -> None:
        self.name = name
        self.address = ""  # where this gateway serves its metrics
        self.counting = counting or Counting(Measures(metrics.EXECUTOR))
        self._statistics = statistics
        self._attempts = attempts
        self.sources: Cache[Reader] = Cache()
        self.sinks: Cache[SinkProducer] = Cache()
        self.shared: Cache[Sender] = Cache()
        self.readers: Cache[MarkerReader] = Cache()

    def read(self, request: ReadRequest, done: ReadDone) -> Generator[Any, None, None]:
        """Yield the records of the ranges as Arrow batches, and note in `done` what was read."""
        with self.sources.borrow(
            request.key,
            lambda: Reader(request),
            alone=False,
            owner=request.pipeline,
        ) as (reader, _):
            yield from reader.read(request, done)

    def write(self, task: Assignment, batches: Iterator[Any]) -> Written:
        """See `Gateway.write`."""
        if task.verdicts and self._attempts is not None:
            # Two tasks may read a range at the same time, if the function uses the records twice. With a transaction as
            # long as the task, each would fence the other until both are given up.
            with self._attempts.scratch() as aside:
                for each in batches:
                    aside.add(each)
                return self._write(task, aside.rows())
        if not task.attempt or self._attempts is None:
            return self._write(task, batches)
        with self._attempts.ending(task.attempt) as attempt:
            written = self._write(task, _with_rejected(task, batches, attempt))
        done = attempt.read or ReadDone()
        lost = tuple(map(str, done.lost))
        return replace(written, read=done.records, read_size=done.size, lost=lost)

    def _write(self, task: Assignment, batches: Iterator[Any]) -> Written:
        if task.delivery is Delivery.AT_LEAST_ONCE:
            return self._at_least_once(task, batches)
        connection = _key(task.options)
        # One marker reader for all sink partitions of a pipeline: it has connections of its own.
        with self.readers.borrow(
            (task.pipeline, task.ledger, connection),
            lambda: MarkerReader(task),
            idle=task.idle,
            alone=False,
            owner=task.pipeline,
        ) as (reader, _):
            return self._exactly_once(task, batches, reader)

    def caches(self) -> dict[str, Cache[Any]]:
        """Return the caches, by kind."""
        return {"sinks": self.sinks, "shared": self.shared, "readers": self.readers, "sources": self.sources}

    # -- exactly once ----------------------------------------------------------------------------

    def _exactly_once(self, task: Assignment, batches: Iterator[Any], ledger: MarkerReader) -> Written:
        told: Informed | None = None
        for left in reversed(range(_INFORMED)):
            with self.sinks.borrow(
                (task.pipeline, int(task.partition)),
                lambda: SinkProducer(task, ledger, self._listener(task)),
                lambda sink: self._doubt(sink, task),
                idle=task.idle,
                owner=task.pipeline,
            ) as (sink, fresh):
                sink.ledger = ledger
                if fresh:
                    sink.fence()
                    crash_points.at(Point.SINK_FENCED, task.batch, task.partition)
                    if told is None or (left and not told.recent):
                        told, doubt = sink.inform()
                        if doubt:
                            continue  # the next producer ends what is in doubt: it fences this one
                    else:
                        sink.hearsay = told.consumer
                    sink.informed = told.consumer
                return self._decided(sink, task, batches, fresh)
        raise errors.InvariantBroken(f"{task}: the last of several producers was not used")

    def _decided(self, sink: SinkProducer, task: Assignment, batches: Iterator[Any], fresh: bool) -> Written:
        """Write the sink partition, or skip it, as its marker says."""
        sink.decided = task.batch
        # With no doubt since the previous batch, no other producer can have written: no need to read the marker.
        known = remembers(sink.last, task.batch)
        if task.by_content:
            markers = {} if known else sink.markers()
            if not known and task.partition not in markers:
                sink.ledger.refuse_elsewhere(task.batch, markers.values)
            return self._by_content(sink, task, batches, fresh, markers)
        marker = None if known else sink.marker()
        if not task.planned and not known and marker is None:
            sink.ledger.refuse_elsewhere(task.batch, lambda: sink.markers().values())
        if task.seen and marker is None and not known:
            raise _gone(task)
        if marker is None and not known:
            sink.ledger.refuse_expired(task.at, str(task), time.time())
        if task.verdicts:
            return self._verdicts(sink, task, batches, fresh, marker)
        if decide(marker, task.batch, task.digest, str(task), planned=task.planned) is Decision.SKIP:
            # Read to the end all the same: only then does a stateful operator before the sink keep its state.
            collections.deque(batches, maxlen=0)
            return self._skipped(task, fresh)
        return self._committed(sink, task, batches, fresh)

    def _committed(
        self,
        sink: SinkProducer,
        task: Assignment,
        batches: Iterator[Any],
        fresh: bool,
        verdicts: Verdicts | None = None,
    ) -> Written:
        """Write all rows and the marker in one transaction."""
        batch, partition = task.batch, task.partition
        crash_points.at(Point.MARKER_READ, batch, partition)
        with self.counting.transaction(task) as opened:
            sink.begin()
            crash_points.at(Point.TRANSACTION_BEGUN, batch, partition)
            counts = send(sink, task, crash_points.halved(Point.SENT_IN_PART, batches, batch, partition, sink.flush))
            crash_points.at(Point.ALL_SENT, batch, partition, sink.flush)
            sink.seal(Marker.of(batch, task.digest, task.sinks, verdicts.text() if verdicts else ""))
            crash_points.at(Point.MARKER_SENT, batch, partition)
            took = sink.commit(batch)
            self.counting.committed(opened, took)
        written = self._done(task, counts, fresh, took)
        crash_points.at(Point.BATCH_WRITTEN, batch, partition)
        return written

    def _verdicts(
        self, sink: SinkProducer, task: Assignment, batches: Iterator[Any], fresh: bool, marker: Marker | None
    ) -> Written:
        """Commit the rejected records of a reading task; if they are already committed, compare the verdicts."""
        verdicts = Verdicts()
        if decide(marker, task.batch, task.digest, str(task)) is Decision.SKIP and marker is not None:
            collections.deque(verdicts.rows(batches), maxlen=0)
            lost = (*task.lost, *self._lost(task))
            verdicts.check(marker.verdicts, str(task), lost, partial(remaining, connection(task.options)))
            return self._skipped(task, fresh)
        return self._committed(sink, task, verdicts.rows(batches), fresh, verdicts)

    def _lost(self, task: Assignment) -> tuple[Range, ...]:
        """Return what the task has found deleted; its rows have been read to their end by now."""
        if not task.attempt or self._attempts is None:
            return ()
        with self._attempts.held(task.attempt) as attempt:
            return attempt.read.lost if attempt.read is not None else ()

    def _listener(self, task: Assignment) -> Listener | None:
        return self._statistics.listener(task.pipeline) if self._statistics is not None else None

    def _doubt(self, sink: SinkProducer, task: Assignment) -> str:
        return overtaken(sink.run, task.run, task.owner, self.name) or repeated(sink.decided, task.batch) or sink.doubt

    def _by_content(
        self, sink: SinkProducer, task: Assignment, batches: Iterator[Any], fresh: bool, markers: dict[int, Marker]
    ) -> Written:
        content = Content(task, markers)
        own = markers.get(task.partition)
        if own is not None and own.next > task.batch:
            for _ in content.rows(batches):
                pass
            check_replay(own, task, content)
            return self._skipped(task, fresh)
        with self.counting.transaction(task) as opened:
            sink.begin()
            counts = send(sink, task, content.rows(batches))
            check_moved(task, content)
            sink.seal(content.marker(task))
            took = sink.commit(task.batch)
            self.counting.committed(opened, took)
        return self._done(task, counts, fresh, took)

    def _skipped(self, task: Assignment, fresh: bool) -> Written:
        self.counting.skipped(task)
        return Written(task.partition, skipped=True, fresh=fresh, gateway=self.name, address=self.address)

    def _done(self, task: Assignment, counts: Counts, fresh: bool, took: float) -> Written:
        self.counting.delivered(task, counts)
        return Written(
            task.partition,
            skipped=False,
            out=counts.out,
            rejected=counts.rejected,
            size=counts.size,
            fresh=fresh,
            commit_ms=took,
            gateway=self.name,
            address=self.address,
            reasons=counts.reasons,
        )

    # -- at least once ---------------------------------------------------------------------------

    def _at_least_once(self, task: Assignment, batches: Iterator[Any]) -> Written:
        options = AT_LEAST_ONCE | task.options
        if options.get("acks") == "1":
            options["enable.idempotence"] = False
        with self.shared.borrow(
            _key(options),
            lambda: Sender(options, "at-least-once", self._listener(task)),
            lambda sender: sender.doubt,
            idle=task.idle,
            alone=False,
            owner=task.pipeline,
        ) as (sender, fresh):
            started = time.perf_counter()
            counts = send(sender, task, batches)
            _flush(sender, task)
            return self._done(task, counts, fresh, (time.perf_counter() - started) * 1000)


def _with_rejected(task: Assignment, batches: Iterator[Any], attempt: Attempt) -> Iterator[Any]:
    """Yield the rows, then the rejected ones; raise InputUnread if the input was not read completely."""
    yield from batches
    yield from completed(attempt, task).aside.rows()


def _gone(task: Assignment) -> errors.ProgressMissing:
    return errors.ProgressMissing(
        f"{task}: its marker, which this run has read when it started, is gone: the brokers delete a marker "
        "offsets.retention.minutes after it was committed",
        kept="nothing was written to this sink partition, which may have written the batch before",
        then="start the pipeline again: it compares the age of the batch with the retention; if that is refused, or if "
        "the markers were deleted by hand, check the output; `tailrace explain TR-306` lists the choices",
    )


def _key(options: dict[str, Any]) -> frozenset[tuple[str, str]]:
    return frozenset((name, str(value)) for name, value in options.items())


def _flush(sender: Sender, task: Assignment) -> None:
    """Wait until everything is acknowledged; other tasks may be sending too, so only a standstill fails."""
    still = time.monotonic() + _FLUSH_LIMIT
    left = len(sender.producer)
    while left:
        before, left = left, sender.flush(_FLUSH_STEP)
        sender.check()
        if left < before:
            still = time.monotonic() + _FLUSH_LIMIT
        elif time.monotonic() > still:
            raise errors.KafkaFailed(
                f"{task}: {left} records were not acknowledged within {_FLUSH_LIMIT:.0f} s",
                kept="the task is tried again; some of its records may come out twice (at-least-once)",
            )
    sender.check()
