"""Exact reads of offset ranges: every visible record of [start, end) once and in order, or an error.

A pipeline's tasks share one consumer, which keeps fetching after the last range of a partition: when the next range is
planned, it is mostly in memory. A range is done when the partition has been received up to its end, as shown by a
record or by librdkafka's end-of-partition event: compaction gaps, control records and aborted transactions have offsets
but no records.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from tailrace import errors
from tailrace.config import redact
from tailrace.gateway import ReadDone, ReadRequest
from tailrace.gateway.columns import Messages, batch, joined
from tailrace.gateway.consuming import Consumer, release, settings
from tailrace.gateway.log_ends import LogEnds
from tailrace.gateway.prefetch import Partition
from tailrace.gateway.source_ids import SourceIds
from tailrace.gateway.stalls import Lost, Stall
from tailrace.kafka.clients import connection
from tailrace.kafka.errors import translate
from tailrace.kafka.fetch_progress import fetched, reporting
from tailrace.progress.plan import Range

log = logging.getLogger(__name__)

IDLE = 10.0  # seconds without a read after which a partition is no longer prefetched
# The same if nothing is left to read: an idle consumer asks its brokers fifty times a second.
CAUGHT_UP = 2.0
LIMIT = 60.0  # seconds without progress after which a read fails
_STEP = 0.05  # longest wait for a record before the state of the read is checked


class Reader:
    """The consumer of one pipeline in this process. Many threads use it; a partition belongs to its latest read."""

    def __init__(
        self,
        request: ReadRequest,
        limit: float = LIMIT,
        idle: float = IDLE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = f"pipeline {request.pipeline!r}"
        self._limit, self._idle, self._clock = limit, idle, clock
        self._consumer = Consumer(settings(request.options, request.isolation, request.share) | reporting(limit))
        self._ends = LogEnds(request.options)
        self._ids = SourceIds(connection(request.options), limit)
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._lock = threading.Lock()
        self._events = threading.Lock()
        self._statistics = ""  # librdkafka's last report
        self._refusal: tuple[float, errors.TailraceError] | None = None
        self._closed = False
        shown = {name: str(value) for name, value in request.options.items()}
        log.info("created a consumer for %s: %s", self.name, redact(shown))

    def read(self, request: ReadRequest, done: ReadDone) -> Iterator[Any]:
        """Yield the records of all ranges, one range after another; raise if any cannot be read completely."""
        turns: dict[tuple[str, int], int] = {}
        try:
            for span in request.ranges:
                if (span.topic, span.partition) not in turns and span.start < span.end:
                    # Fetch all partitions from the start, while the first is read.
                    turns[span.topic, span.partition] = self._begin(span, request.topics.get(span.topic, ""))
            yield from joined(self._ranges(request, done, turns), request.rows)
            if turns:
                self._ids.require(request.topics, reset=request.reset)
        finally:
            for place in turns:
                partition = self._partitions[place]
                with partition.lock:
                    partition.readers -= 1
                    partition.used = self._clock()

    def _ranges(self, request: ReadRequest, done: ReadDone, turns: Mapping[tuple[str, int], int]) -> Iterator[Any]:
        absent: dict[str, float] = {}
        for span in request.ranges:
            if span.start < span.end:
                stall = Stall(self._consumer, self._ends, span, request.reset, self._limit, self._clock, absent)
                yield from self._range(span, request, done, turns[span.topic, span.partition], stall)

    def _begin(self, span: Range, topic_id: str) -> int:
        """Take over a partition of this topic; return the number of this turn."""
        with self._lock:
            place = span.topic, span.partition
            partition = self._partitions.setdefault(place, Partition(span.topic, span.partition))
        with partition.lock:
            if partition.topic_id != topic_id:
                self._stop(partition)  # what was fetched may be of a topic that was deleted since
                partition.topic_id = topic_id
            self._position(partition, span.start)
            partition.readers += 1
            partition.turn += 1
            return partition.turn

    def _range(self, span: Range, request: ReadRequest, done: ReadDone, turn: int, stall: Stall) -> Iterator[Any]:
        partition = self._partitions[span.topic, span.partition]
        with partition.lock:
            self._require(partition, turn)
            self._position(partition, span.start)
        while True:
            with partition.lock:
                self._require(partition, turn)
                found = partition.take(span.end, request.rows)
                if found is None and partition.seen >= span.end:
                    partition.next = span.end
                    return
                if found is not None:
                    copied = self._copy(partition, found, request.columns)
                    done.records += len(found)
                    done.size += int(found.sizes.sum())
                else:
                    self._fetch(partition, request, stall, done)
            if found is not None:
                yield copied

    def _require(self, partition: Partition, turn: int) -> None:
        if self._closed:
            raise errors.InvariantBroken(f"{partition} is read through a closed consumer")
        if partition.turn != turn:
            raise errors.InputCutOff(
                f"another task of {self.name} now reads {partition}",
                kept="everything that was delivered; this attempt delivers nothing",
                then="nothing: Spark started the other attempt in place of this one",
            )

    def _position(self, partition: Partition, start: int) -> None:
        """Continue from the partition's position if possible, otherwise seek."""
        if partition.fetched and partition.next <= start <= partition.seen:
            while (passed := partition.take(start, 1 << 30)) is not None:
                release(passed.pointers)
            partition.next = start
        else:
            self._seek(partition, start)

    def _seek(self, partition: Partition, offset: int) -> None:
        self._stop(partition)
        self._hear()
        self._statistics = ""  # of another position
        try:
            self._consumer.start(partition.topic, partition.number, offset)
        except KafkaException as error:
            raise translate(error, f"fetching {partition} from offset {offset}") from error
        partition.fetched, partition.next, partition.seen = True, offset, offset

    def _stop(self, partition: Partition) -> None:
        partition.drop()
        self._halt(partition)

    def _halt(self, partition: Partition) -> None:
        """Stop fetching, and keep the pending records."""
        if partition.fetched:
            partition.fetched = False
            self._consumer.stop(partition.topic, partition.number)

    def _copy(self, partition: Partition, found: Messages, columns: tuple[str, ...]) -> Any:
        try:
            copied = batch(found, partition.topic, partition.number, columns)
            partition.next = int(found.offsets[-1]) + 1
        except BaseException:
            self._stop(partition)  # the records are released but unread: the next read seeks
            raise
        finally:
            release(found.pointers)
        return copied

    def _fetch(self, partition: Partition, request: ReadRequest, stall: Stall, done: ReadDone) -> None:
        """Receive records; if none come, find out why and react."""
        failure = None
        if partition.fetched:
            before = partition.seen
            failure = self._receive(partition, request.rows)
            if failure is not None:
                self._halt(partition)  # after an error the prefetch cannot be trusted
                stall.refuse_truncation(failure, partition.seen)
            if partition.seen > before:
                stall.progress()
                return  # an error after these records comes again when fetching continues there
            if failure is None and not stall.due:
                return
        else:
            time.sleep(_STEP)
        self._hear()
        if stall.due and self._statistics:
            stall.fetched(fetched(self._statistics).get((partition.topic, partition.number), -1))
        asks = stall.due
        lost = stall.look(partition.seen, failure, self._refusal)
        if asks and request.reset and stall.missing:  # of a topic that was created again, no range is worth a wait
            self._ids.require(request.topics, reset=True)
        if isinstance(lost, Lost):
            done.lost += (lost.span,)
            self._seek(partition, lost.span.end)
        elif lost and not partition.fetched:
            self._seek(partition, partition.seen)

    def _receive(self, partition: Partition, rows: int) -> KafkaError | None:
        try:
            pointers = self._consumer.receive(partition.topic, partition.number, rows, _STEP)
        except KafkaException as error:
            return error.args[0]  # type: ignore[no-any-return]
        try:
            return partition.receive(pointers)
        except BaseException:
            self._stop(partition)
            raise

    # -- for the cache ---------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """The number of records that were received and not read yet."""
        with self._lock:
            partitions = list(self._partitions.values())
        return sum(len(each) for partition in partitions for each in list(partition.pending))

    def listen(self) -> None:
        """Log what librdkafka reports; stop fetching partitions that nobody has read for a while."""
        self._hear()
        with self._lock:
            partitions = list(self._partitions.values())
        for each in partitions:
            if each.fetched and each.lock.acquire(blocking=False):
                try:
                    if not each.readers and self._clock() - each.used >= self._patience(each):
                        self._stop(each)
                finally:
                    each.lock.release()

    def _patience(self, partition: Partition) -> float:
        """Return for how long an unread partition is fetched; a prefetched record is worth keeping for longer."""
        if partition.pending or self._consumer.queued(partition.topic, partition.number) > 1:
            return self._idle
        return min(CAUGHT_UP, self._idle)  # the one message, if any, may be the event of the end

    def _hear(self) -> None:
        if not self._events.acquire(blocking=False):
            return
        try:
            for event in () if self._closed else self._consumer.events():
                if event.statistics:
                    self._statistics = event.text
                    continue
                log.debug("%s: %s", self.name, event.text)
                if event.error is not None:
                    problem = translate(event.error, f"reading for {self.name}", kept="everything that was delivered")
                    if isinstance(problem, errors.NotAuthenticated):
                        self._refusal = self._clock(), problem
        finally:
            self._events.release()

    def close(self) -> None:
        """Release everything; a read in progress raises at its next step."""
        with self._lock:
            if self._closed:
                return
            partitions = list(self._partitions.values())
            self._closed = True
        for each in partitions:
            with each.lock:
                self._stop(each)
        self._ends.close()
        with self._events:
            self._consumer.close()
