"""A pipeline's lag in offsets and in time, and the offsets that an open transaction holds back.

The end of a topic partition for a read_committed reader lies after the markers of transactions, and so does the end of
Spark's plan: a drained pipeline has a lag of exactly 0. If only markers and aborted records are left, a reader would
get nothing. A request for the next record finds that out, and that record's age. Offsets after the first open
transaction of a topic partition cannot be read either and are not counted as lag; the high watermark shows how many
wait there. All this runs in a thread with its own clients.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, TopicPartition

from tailrace import errors
from tailrace.config import Isolation, Pipeline
from tailrace.kafka import source
from tailrace.kafka.clients import TopicPartitions, client_options
from tailrace.kafka.cluster import Cluster
from tailrace.progress import expiry
from tailrace.progress.positions import bounded
from tailrace.status.listening import Listening
from tailrace.status.snapshots import LagSeen

log = logging.getLogger(__name__)

LOOK_EVERY = 1.0
_AGE_EVERY = 3.0
_AGE_LIMIT = 2.0
_DEAF = 5  # questions in a row of whose answers the consumer has heard nothing, after which it is replaced
_ASKED = 64  # topic partitions whose next record is requested, those with most lag first


class Lags:
    """Looks at the lag regularly until it is stopped."""

    def __init__(self, pipeline: Pipeline, seen: Callable[[LagSeen], None], kept: Callable[[float], None]) -> None:
        self._pipeline = pipeline
        self._seen = seen
        self._kept = kept
        self._positions: Callable[[], TopicPartitions] = dict
        self._until: TopicPartitions | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._nothing: TopicPartitions = {}
        self._next: dict[tuple[str, int], tuple[int, float]] = {}  # a position, and the time of its record
        self._aged = 0.0
        self._before: LagSeen | None = None

    def start(self, positions: Callable[[], TopicPartitions], until: TopicPartitions | None = None) -> None:
        """Start to look; `positions` returns the offsets read so far, and a backfill's lag ends at `until`."""
        self._positions, self._until = positions, until
        if self._thread is None:  # a run that starts over has one
            self._thread = threading.Thread(target=self._run, name="tailrace-lag", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop looking, and wait up to 2 s for the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2)
        # Nothing may keep a finished run, and its clients, until a garbage collection: freeing a client whose broker
        # has gone can wait for ever there (its thread reports the error, and needs the interpreter's lock).
        self._positions = dict

    def _run(self) -> None:
        cluster, listening = Cluster(self._pipeline.kafka), Listening(_options(self._pipeline), _DEAF)
        reported = False
        try:
            while not self._stop.is_set():
                try:
                    if not reported:
                        found = expiry.retention(cluster.admin)
                        reported = True
                        if not found.note:
                            self._kept(found.seconds)
                    self._look(cluster, listening)
                except (errors.TailraceError, KafkaException) as problem:
                    log.debug("the lag is not known: %s", problem)  # if brokers are away, the batch reports it
                self._stop.wait(LOOK_EVERY)
        except Exception:
            log.exception("measuring the lag failed")
        finally:
            listening.close()

    def _look(self, cluster: Cluster, listening: Listening) -> None:
        positions = dict(self._positions())
        if not positions:
            return
        ends = source.ends(self._pipeline, positions, cluster)
        # Requested after the ends, so records that arrived in between count until the next look.
        committed = self._pipeline.source.isolation is Isolation.READ_COMMITTED
        tops = cluster.latest(positions) if committed else {}
        if self._until is not None:
            ends, tops = bounded(ends, self._until), bounded(tops, self._until)
        self._nothing = {place: end for place, end in self._nothing.items() if ends.get(place) == end}
        seen = LagSeen(time.time(), positions, ends, self._nothing, tops=tops).after(self._before)
        behind = sorted((place for place in positions if seen.of(place)), key=seen.of, reverse=True)[:_ASKED]
        # The next record at a position does not change: each is requested until it arrives, and then not again. Until
        # then the one before it tells the age: without, a pipeline that moves on would seem to have caught up.
        self._next = {place: self._next[place] for place in behind if place in self._next}
        asked = {place: positions[place] for place in behind if self._next.get(place, (-1,))[0] != positions[place]}
        if asked and time.monotonic() - self._aged >= _AGE_EVERY:
            self._aged = time.monotonic()
            found, nothing = _next_records(listening.consumer, asked, self._stop)
            listening.heard(bool(found or nothing))
            self._next |= {place: (positions[place], written) for place, written in found.items()}
            self._nothing |= {place: ends[place] for place in nothing}
        oldest = min((written for _, written in self._next.values()), default=None)
        self._before = replace(seen, nothing=dict(self._nothing), oldest=oldest)
        self._seen(self._before)


def _options(pipeline: Pipeline) -> dict[str, Any]:
    return client_options(pipeline.kafka) | {
        "group.id": "tailrace.lag",  # never joined: the partitions are assigned
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": pipeline.source.isolation.value,
        "fetch.message.max.bytes": 16_384,
        "queued.min.messages": 1,
        "queued.max.messages.kbytes": 1_024,
    }


def _next_records(
    consumer: Consumer, places: TopicPartitions, stop: threading.Event
) -> tuple[dict[tuple[str, int], float], list[tuple[str, int]]]:
    """Return when the next record of each place was written, and the places that have none."""
    times: dict[tuple[str, int], float] = {}
    nothing: list[tuple[str, int]] = []
    waiting = set(places)
    consumer.assign([TopicPartition(*place, offset) for place, offset in places.items()])
    limit = time.monotonic() + _AGE_LIMIT
    try:
        while waiting and time.monotonic() < limit and not stop.is_set():
            for message in consumer.consume(256, 0.1):
                place = (message.topic() or "", message.partition() or 0)
                problem = message.error()
                if place not in waiting:
                    continue
                if problem is None:
                    waiting.discard(place)
                    kind, written = message.timestamp()
                    if kind != TIMESTAMP_NOT_AVAILABLE and written > 0:
                        times[place] = written / 1000
                elif problem.code() == KafkaError._PARTITION_EOF:
                    waiting.discard(place)
                    nothing.append(place)
    finally:
        consumer.unassign()
    return times, nothing
