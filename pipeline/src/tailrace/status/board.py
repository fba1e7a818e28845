"""The board: what the driver currently knows about its pipeline.

The batch's thread, Spark's progress and the lag write it; the HTTP port reads it. Each holds the lock only briefly.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from tailrace.config import OnError, Pipeline
from tailrace.status.counters import Counters
from tailrace.status.document import batch_of, configured, error_of, gateways_of, lag_of, totals_of
from tailrace.status.event_lines import entry
from tailrace.status.events import (
    BatchPlanned,
    BrokersAway,
    BrokersBack,
    Event,
    ExecutorsWanted,
    Idle,
    Noted,
    OffsetsReset,
    Ready,
    StandingBy,
    Started,
    Starting,
    Stopped,
    Warned,
)
from tailrace.status.fault_search import FaultSearch, announced
from tailrace.status.health import PATIENT, Health, Phase, Sight, assess
from tailrace.status.history import COARSE, FINE, Course, Journal, Slots, rejected_lately
from tailrace.status.snapshots import Finished, LagSeen, Progress
from tailrace.telemetry import metrics
from tailrace.version import VERSION

HISTORY: Final = 100
_WARNINGS = 10


class Board:
    """The board of one driver; used by many threads."""

    def __init__(self, pipeline: Pipeline, run: str, clock: Callable[[], float] = time.time) -> None:
        self.pipeline = pipeline
        self.run = run
        self._clock = clock
        self._lock = threading.RLock()
        self._started = clock()
        self._phase, self._since = Phase.STARTING, self._started
        self._ready = False
        self._step = "asks for the brokers and the topics"
        self._leader = ""
        self._busy: float | None = None  # since when a batch is in progress
        self._behind: float | None = None  # since when there is lag
        self._search: FaultSearch | None = None  # of the batch in progress
        self._silent: tuple[float, str] | None = None  # since when no broker answers, and what was asked
        self._last: Finished | None = None
        self._pending: dict[int, Finished] = {}
        self._progress: Progress | None = None
        self._observed: Mapping[str, Mapping[str, float]] = {}
        self._lag: LagSeen | None = None
        self._history: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self._owners: dict[int, tuple[str, str]] = {}
        self._warnings: deque[str] = deque(maxlen=_WARNINGS)
        self._executors: tuple[int, int] | None = None
        self._course, self._fine, self._coarse = Course(), Slots(*FINE), Slots(*COARSE)
        self._journal = Journal()
        self._health: Health | None = None
        self._error: Mapping[str, Any] | None = None
        self.links: dict[str, str] = {}
        self.samples: Mapping[str, Any] = {}  # the document at /samples
        self.planning: tuple[str, tuple[str, ...]] | None = None  # how a stateless pipeline's frame is planned, and why
        self._counters = Counters(pipeline, run, self._started)
        self.measures = self._counters.measures
        self._away("")
        self._be(Phase.STARTING)
        self.measures.before(lambda: self._counters.set(metrics.STALLED, float(bool(self.stalled()))))

    # -- writing ----------------------------------------------------------------------------------

    def heard(self, event: Event) -> None:
        """Record an event of the run."""
        with self._lock:
            self._write_down(event)
            match event:
                case Starting():
                    self._step = "starts Spark, and checks what the pipeline runs"
                case Started():  # a standby that was ready stays it
                    self._busy = None  # of a run before: its batch may have been delivered although it failed
                    self._be(Phase.LEADING, ready=self._ready)
                    self._step = "takes over, and finishes the open batch if there is one"
                case Ready():
                    self._be(Phase.LEADING, ready=True)
                case StandingBy():
                    self._be(Phase.STANDBY, ready=True)
                    self._leader = f"Run {event.leader['run']} on {event.leader['host']}" if event.leader else ""
                case Stopped():
                    self._be(Phase.STOPPING)
                case BatchPlanned():
                    self._busy, self._search = self._clock(), None
                case Noted():
                    self._search = announced(event.what, self._clock()) or self._search
                case Warned():
                    self._warnings.append(event.what)
                    self._counters.add(metrics.DRIVER_WARNINGS, 1)
                case OffsetsReset():
                    self._warnings.append(f"offsets out of range: {event.what}")
                    self._counters.add(metrics.GAPS, 1)
                case Idle():
                    self._counters.rates(0.0, 0.0)
                case BrokersAway():
                    self._away(event.what)
                case BrokersBack():
                    self._away("")
                    self._busy = self._behind = None  # from now on a batch has the usual time
                case ExecutorsWanted():
                    self.executors(event.wanted, self._executors[1] if self._executors else 0)
            self.health()

    def _write_down(self, event: Event) -> None:
        found = entry(event)
        if found is not None:
            self._journal.write(self._clock(), *found)

    def _away(self, why: str) -> None:
        self._silent = (self._clock(), why) if why else None
        self._counters.set(metrics.BROKERS_AWAY, float(bool(why)))

    def stopping(self) -> None:
        """Record that a stop was requested."""
        with self._lock:
            self._be(Phase.STOPPING)

    def _be(self, phase: Phase, ready: bool = False) -> None:
        if phase is not self._phase:  # a stop is reported again and again until it is done
            self._since = self._clock()
        self._phase, self._ready = phase, ready
        self._counters.phase(phase, ready)

    def failed(self, error: Mapping[str, Any]) -> None:
        """Record the error that ended this run or an earlier one, in the form of last_error."""
        with self._lock:
            if self._error is None or self._error["at"] <= error["at"]:
                self._error = error_of(error)
            for at, kind, text in error.get("log", ()):
                self._journal.write(at, kind, text, before=True)
            self._journal.write(error["at"], "error", f"{error['error']} {error['title']}: {error['what']}")

    def lines(self) -> list[tuple[float, str, str]]:
        """Return the log, as last_error keeps it."""
        with self._lock:
            return self._journal.lines()

    def finished(self, batch: Finished) -> None:
        """Record a finished batch."""
        with self._lock:
            self._last, self._busy, self._search = batch, None, None
            self._behind = batch.at if self._behind is not None else None
            before = {name for name, _ in self._owners.values()}
            for each in batch.written:
                self._owners[int(each.partition)] = (each.gateway, each.address)
            for gone in [number for number in self._owners if number >= len(batch.written)]:
                del self._owners[gone]
            self._moved(before)
            seconds = sum(batch.phases.values())
            self._history.append(
                {
                    "batch": batch.batch,
                    "at": batch.at,
                    "in": batch.records,
                    "out": batch.out,
                    "rejected": batch.rejected,
                    "seconds": round(seconds, 4),
                    "lag": self._lag.records if self._lag is not None else None,
                    "replay": batch.replay,
                }
            )
            for slots in (self._fine, self._coarse):
                slots.finished(batch, seconds)
            self._pending[batch.batch] = batch
            for old in sorted(self._pending)[:-HISTORY]:
                del self._pending[old]
        self._counters.finished(batch)

    def _moved(self, before: set[str]) -> None:
        """Write down that other gateways than before write the sink partitions."""
        new = sorted({name for name, _ in self._owners.values()} - before)
        if before and new:
            self._journal.write(self._clock(), "change", f"sink partitions moved to gateway {', '.join(new)}")

    def counted(self, batch: Finished) -> None:
        """Count what a batch that the driver planned has read and delivered."""
        with self._lock:
            self._observed = batch.observed
        self._counters.counted(batch)

    def progressed(self, progress: Progress) -> None:
        """Record Spark's progress on a batch, and count consumed and delivered records together."""
        if progress.idle:
            self._counters.rates(0.0, 0.0)
            return
        with self._lock:
            self._progress, self._observed = progress, progress.own
            batch = self._pending.pop(progress.batch, None)
            total = progress.durations.get("triggerExecution")
            if self._history and self._history[-1]["batch"] == progress.batch and total is not None:
                self._history[-1]["seconds"], self._history[-1]["in"] = total, progress.consumed
        self._counters.progressed(progress, batch)

    def lag(self, seen: LagSeen) -> None:
        """Record the lag."""
        with self._lock:
            self._lag = seen
            self._behind = (self._behind or seen.at) if seen.records else None
            self._course.saw(seen)
            for slots in (self._fine, self._coarse):
                slots.lag(seen)
            self.health()
        self._counters.lag(seen)

    def executors(self, wanted: int, present: int) -> None:
        """Record how many executors are wanted and present."""
        with self._lock:
            if self._executors is not None and self._executors[1] != present:
                text = f"executors: {present} present, {self._executors[1]} before, {wanted} wanted"
                self._journal.write(self._clock(), "change", text)
            self._executors = (wanted, present)
        self._counters.executors(wanted, present)

    def retention(self, seconds: float) -> None:
        """Record how long the brokers keep markers, in seconds."""
        self._counters.set(metrics.LEDGER_RETENTION, seconds)

    # -- reading ----------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the driver runs, or could take over at once."""
        return self._ready

    def stalled(self) -> str:
        """Return why the driver counts as stalled; an empty string if it does not. A batch may take its target."""
        with self._lock:
            if self._phase is not Phase.LEADING or (self._behind is None and self._busy is None):
                return ""
            limit = max(self.pipeline.metrics.stalled, 2 * self.pipeline.batch.target) + self.pipeline.batch.trigger
            still, records = self._clock() - self._idle_since, self._lag.records if self._lag is not None else 0
            if still <= limit:
                return ""
            return f"lag {records}, and no batch has finished for {still:.0f} s; the limit is {limit:.0f} s"

    @property
    def _idle_since(self) -> float:
        """When a batch was last finished, or could have begun; a search for faulty records is no idleness."""
        waits = [since for since in (self._behind, self._busy) if since is not None]
        searched = min(self._search.until, self._clock()) if self._search is not None else 0.0
        return max(min(waits, default=0.0), self._since, self._last.at if self._last is not None else 0.0, searched)

    def health(self) -> Health:
        """Decide how the pipeline is, and write down when that changes."""
        with self._lock:
            now, lag, batch = self._clock(), self._lag, self.pipeline.batch
            read, rejected, reason = rejected_lately(self._fine, now)
            found = assess(
                Sight(
                    now,
                    self._phase,
                    self._since,
                    ready=self._ready,
                    step=self._step,
                    leader=self._leader,
                    stalled=self.stalled(),
                    moved=self._idle_since,
                    away=self._silent,
                    search=self._search,
                    rejects=self.pipeline.process.on_error is OnError.REJECT,
                    lag=lag.records if lag is not None else None,
                    age=lag.seconds if lag is not None else 0.0,
                    held=(lag.unstable, lag.unstable_seconds) if lag is not None else (0, 0.0),
                    speed=self._course.speed,
                    patience=max(PATIENT, 3 * (batch.target + batch.trigger)),
                    read=read,
                    rejected=rejected,
                    reason=reason,
                    executors=self._executors,
                ),
                self._health,
            )
            if self._health is not None and found.state is not self._health.state:
                before = self._health.state.value
                self._journal.write(now, "health", f"{before} → {found.state.value}: {found.why}")
            self._health = found
            return found

    def history(self) -> dict[str, Any]:
        """Return the document at /history."""
        with self._lock:
            now = self._clock()
            return {"now": now, "fine": self._fine.as_dict(now), "coarse": self._coarse.as_dict(now)}

    def status(self) -> dict[str, Any]:
        """Return the document at /status."""
        with self._lock:
            wanted = dict(zip(("wanted", "present"), self._executors or (), strict=False)) or None
            speed = self._course.speed
            return {
                "schema": 1,
                "tailrace": VERSION,
                "pipeline": self.pipeline.pipeline,
                "run": self.run,
                "now": self._clock(),
                "health": self.health().as_dict(),
                "phase": self._phase.value,
                "since": self._since,
                "started": self._started,
                "ready": self._ready,
                "stalled": self.stalled(),
                "away": {"since": self._silent[0], "what": self._silent[1]} if self._silent is not None else None,
                "error": self._error,
                "change": self._journal.change,
                "batch": batch_of(self._last, self._progress, self._busy is not None, self.pipeline.batch.target),
                "rates": {
                    "input": self._counters.value(metrics.INPUT_RATE),
                    "processed": self._counters.value(metrics.PROCESSED_RATE),
                },
                "speed": {"arriving": speed.arriving, "reading": speed.reading} if speed is not None else None,
                "totals": totals_of(self.measures, self.pipeline),
                "lag": lag_of(self._lag) if self._lag is not None else None,
                **configured(self.pipeline),
                "gateways": self.gateways(),
                "executors": wanted,
                "planning": {"frame": self.planning[0], "reasons": list(self.planning[1])} if self.planning else None,
                "watermark": self._progress.watermark if self._progress else None,
                "state": [vars(each) for each in self._progress.operators] if self._progress else [],
                "observed": {name: dict(row) for name, row in self._observed.items()},
                "batches": list(self._history),
                "warnings": list(self._warnings),
                "log": self._journal.entries(),
                "links": dict(self.links),
            }

    def gateways(self) -> list[dict[str, Any]]:
        """Return the gateways, each with the sink partitions that it wrote last."""
        with self._lock:
            return gateways_of(self._owners)
