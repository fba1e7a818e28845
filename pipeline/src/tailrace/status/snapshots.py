"""What was seen of a pipeline, as values: a batch that was finished, Spark's progress, the lag."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from tailrace.gateway import Written
from tailrace.kafka.clients import TopicPartitions
from tailrace.telemetry import metrics


@dataclass(frozen=True)
class Finished:
    """A batch that the runner has finished."""

    batch: int
    records: int  # offsets that it spans
    written: tuple[Written, ...]
    phases: Mapping[str, float]  # seconds
    replay: bool
    at: float  # when, in seconds since 1970
    limit: int = 0  # records that the next one may have
    seconds: float = 0.0  # of the whole batch, where the driver has planned it
    observed: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by the function
    outputs: int | None = None  # sink partitions of outputs, where those of rejected records follow; None: all are

    @property
    def out(self) -> int:
        """Records that were delivered to the sink topics."""
        return sum(each.out for each in self.written)

    @property
    def rejected(self) -> int:
        """Records that were delivered to the rejected topic."""
        return sum(each.rejected for each in self.written)

    @property
    def skipped(self) -> int:
        """Sink partitions that were delivered before."""
        return sum(each.skipped for each in self.written)

    @property
    def reasons(self) -> dict[str, int]:
        """Why records were rejected."""
        found: dict[str, int] = {}
        for each in self.written:
            for reason, number in each.reasons.items():
                found[reason] = found.get(reason, 0) + number
        return found


@dataclass(frozen=True)
class Operator:
    """A stateful operator after a batch."""

    name: str
    rows: int
    size: int
    dropped: int


@dataclass(frozen=True)
class Progress:
    """What Spark says of a batch."""

    batch: int
    input_rate: float
    processed_rate: float
    durations: Mapping[str, float]  # seconds
    watermark: float | None
    operators: tuple[Operator, ...]
    observed: Mapping[str, Mapping[str, float]]  # numbers only

    @property
    def idle(self) -> bool:
        """Whether there was no batch to do."""
        return "addBatch" not in self.durations

    @property
    def consumed(self) -> int:
        """Records that were read."""
        return int(self.observed.get(metrics.READ, {}).get(metrics.CONSUMED, 0))

    @property
    def size(self) -> int:
        """Their bytes."""
        return int(self.observed.get(metrics.READ, {}).get(metrics.SIZE, 0))

    def offered(self, name: str) -> int:
        """Rows that came to the sink: PRODUCED or REJECTED."""
        return int(self.observed.get(metrics.WRITTEN, {}).get(name, 0))

    @property
    def own(self) -> dict[str, Mapping[str, float]]:
        """What the pipeline's function observes."""
        return {name: row for name, row in self.observed.items() if name not in {metrics.READ, metrics.WRITTEN}}

    @classmethod
    def read(cls, text: str) -> Progress:
        """As Spark's JSON has it."""
        told = json.loads(text)
        observed = {name: _numbers(row) for name, row in (told.get("observedMetrics") or {}).items()}
        rows = int(told.get("numInputRows") or 0)
        consumed = observed.get(metrics.READ, {}).get(metrics.CONSUMED)
        # Where good and rejected records part, Spark reads the source twice, and counts it so.
        part = consumed / rows if consumed is not None and rows else 1.0
        return cls(
            batch=int(told["batchId"]),
            input_rate=float(told.get("inputRowsPerSecond") or 0.0) * part,
            processed_rate=float(told.get("processedRowsPerSecond") or 0.0) * part,
            durations={name: spent / 1000 for name, spent in (told.get("durationMs") or {}).items()},
            watermark=_time((told.get("eventTime") or {}).get("watermark")),
            operators=tuple(
                Operator(
                    f"{number}-{each.get('operatorName', '')}",
                    int(each.get("numRowsTotal", 0)),
                    int(each.get("memoryUsedBytes", 0)),
                    int(each.get("numRowsDroppedByWatermark", 0)),
                )
                for number, each in enumerate(told.get("stateOperators") or ())
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
    return seconds if seconds > 0 else None  # Spark begins at 1970: none was seen yet


@dataclass(frozen=True)
class Totals:
    """What a batch adds to the counters."""

    consumed: int
    size: int
    produced: int
    reasons: Mapping[str, int]


def totals(progress: Progress, finished: Finished) -> Totals:
    """What a batch has consumed and delivered, each record once.

    A task that was tried again finds its sink partition delivered, and has written nothing then: Spark's own counts of
    what came to the sink say what that was. Only the sink knows which of the rest had no place to go.
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
    """How far the pipeline is behind."""

    at: float
    positions: TopicPartitions
    ends: TopicPartitions
    nothing: TopicPartitions = field(default_factory=dict)  # ends up to which there is nothing that can be read
    oldest: float | None = None  # when the oldest record that was not read was written, in seconds since 1970
    tops: TopicPartitions = field(default_factory=dict)  # high watermarks, where the ends are those of read_committed
    held: Mapping[tuple[str, int], float] = field(default_factory=dict)  # since when an open transaction holds an end

    def of(self, place: tuple[str, int]) -> int:
        """The lag of one topic partition."""
        end = self.ends.get(place, 0)
        if self.nothing.get(place) == end:
            return 0
        return max(0, end - self.positions.get(place, end))

    def beyond(self, place: tuple[str, int]) -> int:
        """Count the offsets of one topic partition that stand behind an open transaction."""
        end = self.ends.get(place, 0)
        return max(0, self.tops.get(place, end) - end)

    @property
    def unstable(self) -> int:
        """Count the offsets of all topic partitions that stand behind open transactions."""
        return sum(map(self.beyond, self.positions))

    @property
    def unstable_seconds(self) -> float:
        """Measure how long the end that has stood still the longest is held by an open transaction."""
        return max((self.at - since for since in self.held.values()), default=0.0)

    def after(self, before: LagSeen | None) -> LagSeen:
        """Carry over since when open transactions have held the ends that have not moved."""
        held = {}
        for place in filter(self.beyond, self.positions):
            still = before is not None and before.ends.get(place) == self.ends.get(place)
            held[place] = before.held.get(place, self.at) if still and before is not None else self.at
        return replace(self, held=held)

    @property
    def records(self) -> int:
        """The lag of all."""
        return sum(map(self.of, self.positions))

    @property
    def seconds(self) -> float:
        """The age of the oldest record that was not read."""
        return max(0.0, self.at - self.oldest) if self.oldest is not None and self.records else 0.0
