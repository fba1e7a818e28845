"""Snapshots of a pipeline, as values: a finished batch, Spark's progress, the lag."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from tailrace.gateway import Written
from tailrace.kafka.clients import TopicPartitions
from tailrace.stages.rules import Judged, total
from tailrace.telemetry import metrics


@dataclass(frozen=True)
class Finished:
    """A finished batch."""

    batch: int
    records: int  # read; of a stateful pipeline the offsets that it spans, markers of transactions included
    written: tuple[Written, ...]
    phases: Mapping[str, float]  # seconds
    replay: bool
    at: float  # when it finished, in seconds since 1970
    limit: int = 0  # most records that the next one may have
    seconds: float = 0.0  # of the complete batch, if the driver planned it
    observed: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # what the function observed
    outputs: int | None = None  # sink partitions of outputs, before those of rejected records; None: all of them

    @property
    def out(self) -> int:
        """Count the records delivered to the sink topics."""
        return sum(each.out for each in self.written)

    @property
    def rejected(self) -> int:
        """Count the records delivered to the rejected topic."""
        return sum(each.rejected for each in self.written)

    @property
    def skipped(self) -> int:
        """Count the sink partitions that had been delivered before."""
        return sum(each.skipped for each in self.written)

    @property
    def reasons(self) -> dict[str, int]:
        """Count the rejected records by reason."""
        found: dict[str, int] = {}
        for each in self.written:
            for reason, number in each.reasons.items():
                found[reason] = found.get(reason, 0) + number
        return found

    @property
    def judged(self) -> Judged:
        """Count the records that the rules have judged, and how many of them broke each rule."""
        return total(each.judged for each in self.written)


@dataclass(frozen=True)
class Operator:
    """A stateful operator after a batch."""

    name: str
    rows: int
    size: int
    dropped: int


@dataclass(frozen=True)
class Progress:
    """What Spark reports about a batch."""

    batch: int
    input_rate: float
    processed_rate: float
    durations: Mapping[str, float]  # seconds
    watermark: float | None
    operators: tuple[Operator, ...]
    observed: Mapping[str, Mapping[str, float]]  # numbers only

    @property
    def idle(self) -> bool:
        """Whether there was no batch to run."""
        return "addBatch" not in self.durations

    @property
    def consumed(self) -> int:
        """Count the records that were read."""
        return int(self.observed.get(metrics.READ, {}).get(metrics.CONSUMED, 0))

    @property
    def size(self) -> int:
        """Count the bytes that were read."""
        return int(self.observed.get(metrics.READ, {}).get(metrics.SIZE, 0))

    def offered(self, name: str) -> int:
        """Count the rows that reached the sink; `name` is PRODUCED or REJECTED."""
        return int(self.observed.get(metrics.WRITTEN, {}).get(name, 0))

    @property
    def own(self) -> dict[str, Mapping[str, float]]:
        """Return what the pipeline's function observes."""
        return {name: row for name, row in self.observed.items() if name not in {metrics.READ, metrics.WRITTEN}}

    @classmethod
    def read(cls, text: str) -> Progress:
        """Parse Spark's JSON."""
        progress = json.loads(text)
        observed = {name: _numbers(row) for name, row in (progress.get("observedMetrics") or {}).items()}
        rows = int(progress.get("numInputRows") or 0)
        consumed = observed.get(metrics.READ, {}).get(metrics.CONSUMED)
        # If a plan splits good and rejected records, Spark reads the source twice, and counts it twice.
        part = consumed / rows if consumed is not None and rows else 1.0
        return cls(
            batch=int(progress["batchId"]),
            input_rate=float(progress.get("inputRowsPerSecond") or 0.0) * part,
            processed_rate=float(progress.get("processedRowsPerSecond") or 0.0) * part,
            durations={name: spent / 1000 for name, spent in (progress.get("durationMs") or {}).items()},
            watermark=_time((progress.get("eventTime") or {}).get("watermark")),
            operators=tuple(
                Operator(
                    f"{number}-{each.get('operatorName', '')}",
                    int(each.get("numRowsTotal", 0)),
                    int(each.get("memoryUsedBytes", 0)),
                    int(each.get("numRowsDroppedByWatermark", 0)),
                )
                for number, each in enumerate(progress.get("stateOperators") or ())
            ),
            observed=observed,
        )


def _numbers(row: Any) -> dict[str, float]:
    if not isinstance(row, Mapping):
        return {}
    kept = {name: value for name, value in row.items() if isinstance(value, int | float)}
    return {name: value for name, value in kept.items() if not isinstance(value, bool)}


def _time(text: str | None) -> float | None:
    if not text:
        return None
    seconds = datetime.fromisoformat(text).timestamp()
    return seconds if seconds > 0 else None  # Spark starts at 1970: no event time was seen yet


@dataclass(frozen=True)
class Totals:
    """What a batch adds to the counters."""

    consumed: int
    size: int
    produced: int
    reasons: Mapping[str, int]


def totals(progress: Progress, finished: Finished) -> Totals:
    """Return what a batch has consumed and delivered, each record once.

    A retried task finds its sink partition delivered and writes nothing: Spark's own counts of the rows that reached
    the sink then give the numbers. Only the sink knows which of those had no topic to go to.
    """
    produced, reasons = finished.out, dict(finished.reasons)
    if finished.skipped:
        at_sink = sum(sum(each.reasons.values()) for each in finished.written[: finished.outputs])
        unknown = max(0, progress.offered(metrics.REJECTED) - at_sink)
        if unknown:
            reasons[metrics.OTHER] = reasons.get(metrics.OTHER, 0) + unknown
        offered = progress.offered(metrics.PRODUCED) + progress.offered(metrics.REJECTED)
        produced = max(produced, offered - at_sink - unknown)
    return Totals(progress.consumed, progress.size, produced, reasons)


@dataclass(frozen=True)
class LagSeen:
    """The lag of a pipeline at one moment."""

    at: float
    positions: TopicPartitions
    ends: TopicPartitions
    nothing: TopicPartitions = field(default_factory=dict)  # ends before which nothing can be read
    oldest: float | None = None  # when the oldest unread record was written, in seconds since 1970
    tops: TopicPartitions = field(default_factory=dict)  # high watermarks, if the ends are read_committed
    held: Mapping[tuple[str, int], float] = field(default_factory=dict)  # since when an open transaction holds an end

    def of(self, place: tuple[str, int]) -> int:
        """Count the lag of one topic partition."""
        end = self.ends.get(place, 0)
        if self.nothing.get(place) == end:
            return 0
        return max(0, end - self.positions.get(place, end))

    def beyond(self, place: tuple[str, int]) -> int:
        """Count the offsets of one topic partition that an open transaction holds back."""
        end = self.ends.get(place, 0)
        return max(0, self.tops.get(place, end) - end)

    @property
    def unstable(self) -> int:
        """Count the offsets of all topic partitions that open transactions hold back."""
        return sum(map(self.beyond, self.positions))

    @property
    def unstable_seconds(self) -> float:
        """Return the seconds for which open transactions have held an end, at most."""
        return max((self.at - since for since in self.held.values()), default=0.0)

    def after(self, before: LagSeen | None) -> LagSeen:
        """Carry over the times since when open transactions hold ends that have not moved."""
        held = {}
        for place in filter(self.beyond, self.positions):
            still = before is not None and before.ends.get(place) == self.ends.get(place)
            held[place] = before.held.get(place, self.at) if still and before is not None else self.at
        return replace(self, held=held)

    @property
    def records(self) -> int:
        """Count the lag of all topic partitions."""
        return sum(map(self.of, self.positions))

    @property
    def seconds(self) -> float:
        """Return the age of the oldest unread record."""
        return max(0.0, self.at - self.oldest) if self.oldest is not None and self.records else 0.0
