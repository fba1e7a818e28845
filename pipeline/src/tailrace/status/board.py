"""The board: what the driver currently knows about its pipeline.

The batch's thread, Spark's progress and the lag write it; the HTTP port reads it. Each holds the lock only briefly.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

from tailrace.config import Pipeline
from tailrace.status.document import lag_of, totals_of
from tailrace.status.events import (
    BatchPlanned,
    BrokersAway,
    BrokersBack,
    Event,
    ExecutorsWanted,
    Idle,
    OffsetsReset,
    Ready,
    StandingBy,
    Started,
    Stopped,
    Warned,
)
from tailrace.status.snapshots import Finished, LagSeen, Progress, totals
from tailrace.telemetry import metrics
from tailrace.telemetry.measure import Measures
from tailrace.telemetry.metrics import Metric
from tailrace.version import VERSION

HISTORY: Final = 100
_WARNINGS = 10


class Phase(StrEnum):
    """What a driver is doing."""

    STARTING = "starting"
    STANDBY = "standby"
    LEADING = "leading"
    STOPPING = "stopping"


class Board:
    """The board of one driver; used by many threads."""

    def __init__(self, pipeline: Pipeline, run: str, clock: Callable[[], float] = time.time) -> None:
        self.pipeline = pipeline
        self.run = run
        self.measures = Measures(metrics.DRIVER + metrics.BOTH)
        self._clock = clock
        self._lock = threading.RLock()
        self._started = clock()
        self._phase, self._since = Phase.STARTING, self._started
        self._ready = False
        self._busy: float | None = None  # since when a batch is in progress
        self._behind: float | None = None  # since when there is lag
        self._last: Finished | None = None
        self._counted: float | None = None  # when the last batch that the driver planned was finished
        self._pending: dict[int, Finished] = {}
        self._progress: Progress | None = None
        self._observed: Mapping[str, Mapping[str, float]] = {}
        self._lag: LagSeen | None = None
        self._history: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self._owners: dict[int, tuple[str, str]] = {}
        self._warnings: deque[str] = deque(maxlen=_WARNINGS)
        self._executors: tuple[int, int] | None = None
        self.links: dict[str, str] = {}
        self.planning: tuple[str, tuple[str, ...]] | None = None  # how a stateless pipeline's frame is planned, and why
        self._begin()

    def _begin(self) -> None:
        self.measures.begin_all(self.pipeline.pipeline)
        self._set(metrics.BATCH, -1)
        self._set(metrics.BATCH_TARGET, self.pipeline.batch.target)
        self._set(metrics.DRIVER_STARTED, self._started)
        self._set(metrics.DRIVER_INFO, 1, self.run, VERSION)
        self._away("")
        self._be(Phase.STARTING)
        self.measures.before(lambda: self._set(metrics.STALLED, float(bool(self.stalled()))))

    def _set(self, metric: Metric, value: float, *labels: str) -> None:
        self.measures.set(metric, self.pipeline.pipeline, *labels, value=value)

    def _add(self, metric: Metric, by: float, *labels: str) -> None:
        self.measures.add(metric, self.pipeline.pipeline, *labels, by=by)

    # -- writing ----------------------------------------------------------------------------------

    def heard(self, event: Event) -> None:
        """Record an event of the run."""
        with self._lock:
            match event:
                case Started():  # a standby that was ready stays it
                    self._be(Phase.LEADING, ready=self._ready)
                case Ready():
                    self._be(Phase.LEADING, ready=True)
                case StandingBy():
                    self._be(Phase.STANDBY, ready=True)
                case Stopped():
                    self._be(Phase.STOPPING)
                case BatchPlanned():
                    self._busy = self._clock()
                case Warned():
                    self._warnings.append(event.what)
                    self._add(metrics.DRIVER_WARNINGS, 1)
                case OffsetsReset():
                    self._warnings.append(f"offsets out of range: {event.what}")
                    self._add(metrics.GAPS, 1)
                case Idle():
                    self._rates(0.0, 0.0)
                case BrokersAway():
                    self._away(event.what)
                case BrokersBack():
                    self._away("")
                case ExecutorsWanted():
                    self.executors(event.wanted, self._executors[1] if self._executors else 0)

    def _away(self, why: str) -> None:
        self._silent: tuple[float, str] | None = (self._clock(), why) if why else None  # since when, and what was asked
        self._set(metrics.BROKERS_AWAY, float(bool(why)))

    def stopping(self) -> None:
        """Record that a stop was requested."""
        with self._lock:
            self._be(Phase.STOPPING)

    def _be(self, phase: Phase, ready: bool = False) -> None:
        if phase is not self._phase:  # a stop is reported again and again until it is done
            self._since = self._clock()
        self._phase, self._ready = phase, ready
        for each in Phase:
            self._set(metrics.DRIVER_PHASE, float(each is phase), each)
        self._set(metrics.READY, float(ready))

    def finished(self, batch: Finished) -> None:
        """Record a finished batch."""
        with self._lock:
            self._last, self._busy = batch, None
            self._behind = batch.at if self._behind is not None else None
            for each in batch.written:
                self._owners[int(each.partition)] = (each.gateway, each.address)
            for gone in [number for number in self._owners if number >= len(batch.written)]:
                del self._owners[gone]
            self._history.append(
                {
                    "batch": batch.batch,
                    "at": batch.at,
                    "in": batch.records,
                    "out": batch.out,
                    "rejected": batch.rejected,
                    "seconds": round(sum(batch.phases.values()), 4),
                    "lag": self._lag.records if self._lag is not None else None,
                    "replay": batch.replay,
                }
            )
            self._pending[batch.batch] = batch
            for old in sorted(self._pending)[:-HISTORY]:
                del self._pending[old]
        self._set(metrics.BATCH, batch.batch)
        self._set(metrics.BATCH_FINISHED, batch.at)
        self._set(metrics.LEDGER_WRITTEN, batch.at)
        self._set(metrics.SINK_PARTITIONS, len(batch.written))
        if batch.limit:
            self._set(metrics.BATCH_LIMIT, batch.limit)
        self._add(metrics.BATCHES, 1)
        self._add(metrics.SKIPPED, batch.skipped)
        self._add(metrics.FRESH, sum(each.fresh for each in batch.written))
        self._add(metrics.DELIVERED_BYTES, sum(each.size for each in batch.written))
        for name, spent in batch.phases.items():
            self.measures.observe(metrics.PHASE_SECONDS, self.pipeline.pipeline, name, value=spent)

    def counted(self, batch: Finished) -> None:
        """Count what a batch that the driver planned has read and delivered."""
        read = sum(each.read for each in batch.written)
        self._add(metrics.CONSUMED_RECORDS, read)
        self._add(metrics.CONSUMED_BYTES, sum(each.read_size for each in batch.written))
        self._add(metrics.PRODUCED_RECORDS, batch.out)
        for reason, number in batch.reasons.items():
            self._add(metrics.REJECTED_RECORDS, number, reason)
        self._observe(batch.observed)
        self._set(metrics.BATCH_RECORDS, read)
        if batch.seconds:
            self.measures.observe(metrics.BATCH_SECONDS, self.pipeline.pipeline, value=batch.seconds)
            # There may be a wait for a trigger between two batches: records that arrived meanwhile count for that time.
            came_in = batch.at - self._counted if self._counted is not None else batch.seconds
            self._rates(read / max(came_in, batch.seconds), read / batch.seconds)
        self._counted = batch.at

    def _rates(self, arriving: float, processed: float) -> None:
        self._set(metrics.INPUT_RATE, arriving)
        self._set(metrics.PROCESSED_RATE, processed)

    def progressed(self, progress: Progress) -> None:
        """Record Spark's progress on a batch, and count consumed and delivered records together."""
        if progress.idle:
            self._rates(0.0, 0.0)
            return
        with self._lock:
            self._progress = progress
            batch = self._pending.pop(progress.batch, None)
            total = progress.durations.get("triggerExecution")
            if self._history and self._history[-1]["batch"] == progress.batch and total is not None:
                self._history[-1]["seconds"], self._history[-1]["in"] = total, progress.consumed
        self._rates(progress.input_rate, progress.processed_rate)
        self._set(metrics.BATCH_RECORDS, progress.consumed)
        for name, spent in progress.durations.items():
            if name == "triggerExecution":
                self.measures.observe(metrics.BATCH_SECONDS, self.pipeline.pipeline, value=spent)
            else:
                self.measures.observe(metrics.PHASE_SECONDS, self.pipeline.pipeline, name, value=spent)
        if progress.watermark is not None:
            self._set(metrics.WATERMARK, progress.watermark)
        for each in progress.operators:
            self._set(metrics.STATE_ROWS, each.rows, each.name)
            self._set(metrics.STATE_BYTES, each.size, each.name)
            self._add(metrics.STATE_DROPPED, each.dropped, each.name)
        self._observe(progress.own)
        if batch is not None:
            counted = totals(progress, batch)
            self._add(metrics.CONSUMED_RECORDS, counted.consumed)
            self._add(metrics.CONSUMED_BYTES, counted.size)
            self._add(metrics.PRODUCED_RECORDS, counted.produced)
            for reason, number in counted.reasons.items():
                self._add(metrics.REJECTED_RECORDS, number, reason)

    def _observe(self, observed: Mapping[str, Mapping[str, float]]) -> None:
        """Count what the function has observed in a batch."""
        with self._lock:
            self._observed = observed
        for name, row in observed.items():
            for counter, value in row.items():
                self._set(metrics.OBSERVED, value, name, counter)
                self._add(metrics.OBSERVED_SUM, max(0.0, value), name, counter)

    def lag(self, seen: LagSeen) -> None:
        """Record the lag."""
        with self._lock:
            self._lag = seen
            self._behind = (self._behind or seen.at) if seen.records else None
        name = self.pipeline.pipeline
        lags = {(name, topic, number): seen.of((topic, number)) for topic, number in seen.positions}
        self.measures.replace(metrics.LAG, lags)
        self._set(metrics.LAG_SECONDS, seen.seconds)
        self._set(metrics.LAG_CHECKED, seen.at)
        beyond = {(name, topic, number): seen.beyond((topic, number)) for topic, number in seen.positions}
        self.measures.replace(metrics.UNSTABLE, beyond)
        self._set(metrics.UNSTABLE_SECONDS, seen.unstable_seconds)

    def executors(self, wanted: int, present: int) -> None:
        """Record how many executors are wanted and present."""
        with self._lock:
            self._executors = (wanted, present)
        self._set(metrics.EXECUTORS_WANTED, wanted)
        self._set(metrics.EXECUTORS_PRESENT, present)

    def retention(self, seconds: float) -> None:
        """Record how long the brokers keep markers, in seconds."""
        self._set(metrics.LEDGER_RETENTION, seconds)

    # -- reading ----------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the driver runs, or could take over at once."""
        return self._ready

    def stalled(self) -> str:
        """Return why the driver counts as stalled; an empty string if it does not."""
        with self._lock:
            waits = [since for since in (self._behind, self._busy) if since is not None]
            if self._phase is not Phase.LEADING or not waits:
                return ""
            since = max(min(waits), self._since, self._last.at if self._last is not None else 0.0)
            still, limit = self._clock() - since, self.pipeline.metrics.stalled + self.pipeline.batch.trigger
            if still <= limit:
                return ""
            records = self._lag.records if self._lag is not None else 0
            return f"lag {records}, and no batch has finished for {still:.0f} s; the limit is {limit:.0f} s"

    def status(self) -> dict[str, Any]:
        """Return the document at /status."""
        with self._lock:
            return {
                "schema": 1,
                "tailrace": VERSION,
                "pipeline": self.pipeline.pipeline,
                "run": self.run,
                "now": self._clock(),
                "phase": self._phase.value,
                "since": self._since,
                "started": self._started,
                "ready": self._ready,
                "stalled": self.stalled(),
                "away": {"since": self._silent[0], "what": self._silent[1]} if self._silent is not None else None,
                "batch": self._batch(),
                "rates": {
                    "input": self.measures.value(metrics.INPUT_RATE, self.pipeline.pipeline),
                    "processed": self.measures.value(metrics.PROCESSED_RATE, self.pipeline.pipeline),
                },
                "totals": totals_of(self.measures, self.pipeline.pipeline),
                "lag": lag_of(self._lag) if self._lag is not None else None,
                "source": {"topics": list(self.pipeline.source.topics), "pattern": self.pipeline.source.pattern},
                "sink": {"topic": self.pipeline.sink.topic, "delivery": self.pipeline.sink.delivery.value},
                "rejected_topic": self.pipeline.rejected_topic,
                "gateways": self.gateways(),
                "executors": dict(zip(("wanted", "present"), self._executors, strict=True))
                if self._executors
                else None,
                "planning": {"frame": self.planning[0], "reasons": list(self.planning[1])} if self.planning else None,
                "watermark": self._progress.watermark if self._progress else None,
                "state": [vars(each) for each in self._progress.operators] if self._progress else [],
                "observed": {name: dict(row) for name, row in self._observed.items()},
                "batches": list(self._history),
                "warnings": list(self._warnings),
                "links": dict(self.links),
            }

    def gateways(self) -> list[dict[str, Any]]:
        """Return the gateways, each with the sink partitions that it wrote last."""
        with self._lock:
            found: dict[str, dict[str, Any]] = {}
            for number, (name, address) in sorted(self._owners.items()):
                found.setdefault(name, {"name": name, "address": address, "sinks": []})["sinks"].append(number)
            return list(found.values())

    def _batch(self) -> dict[str, Any] | None:
        if self._last is None:
            return None
        spent = dict(self._last.phases)
        if self._progress is not None and self._progress.batch == self._last.batch:
            spent |= {name: value for name, value in self._progress.durations.items() if name != "addBatch"}
        return {
            "number": self._last.batch,
            "records": self._last.records,
            "out": self._last.out,
            "rejected": self._last.rejected,
            "sinks": len(self._last.written),
            "finished": self._last.at,
            "busy": self._busy is not None,
            "limit": self._last.limit,
            "target": self.pipeline.batch.target,
            "phases": spent,
        }
