"""The values of the declared metrics, and their exposition to Prometheus.

This store replaces prometheus_client's own counters: values counted elsewhere (librdkafka, the JVM, the cache) come in
as totals, labels are bounded here, and a gauge can be removed together with its subject. The text served is
prometheus_client's.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from tailrace.errors import InvariantBroken
from tailrace.telemetry import metrics
from tailrace.telemetry.metrics import Kind, Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# Labels whose values come from outside, with the maximum number of values that get series of their own.
_BOUNDED: Final = {
    "pipeline": metrics.PIPELINES,
    "reason": metrics.REASONS,
    "rule": metrics.REASONS,
    "observation": metrics.REASONS,
    "counter": metrics.REASONS,
    "operator": metrics.REASONS,
    "broker": 1000,
}

Labels = tuple[str, ...]


@dataclass
class Spread:
    """The observations of a histogram."""

    counts: list[int]
    total: float = 0.0

    def add(self, place: int, value: float, times: int = 1) -> None:
        """Add `times` observations of the value to the bucket with this index."""
        self.counts[place] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """Return the number of observations."""
        return sum(self.counts)


@dataclass
class _Kept:
    values: dict[Labels, float] = field(default_factory=dict)
    spreads: dict[Labels, Spread] = field(default_factory=dict)
    totals: dict[Labels, float] = field(default_factory=dict)  # last values of totals that are counted elsewhere


class Measures:
    """The metrics of one process; used by many threads."""

    def __init__(self, declared: Iterable[Metric]) -> None:
        self._kept = {metric: _Kept() for metric in declared}
        self._known: dict[str, set[str]] = {}
        self._lock = threading.RLock()
        self._looks: list[Callable[[], None]] = []
        self._registry = CollectorRegistry()
        self._registry.register(self)

    # -- counting ----------------------------------------------------------------------------------

    def add(self, metric: Metric, *labels: object, by: float = 1) -> None:
        """Increment a counter."""
        kept, key = self._place(metric, Kind.COUNTER, labels)
        with self._lock:
            kept.values[key] = kept.values.get(key, 0.0) + by

    def total(self, metric: Metric, *labels: object, value: float) -> None:
        """Record a total that is counted elsewhere; if it has decreased, its source has restarted from 0."""
        kept, key = self._place(metric, Kind.COUNTER, labels)
        with self._lock:
            before = kept.totals.get(key, 0.0)
            kept.values[key] = kept.values.get(key, 0.0) + (value - before if value >= before else value)
            kept.totals[key] = value

    def set(self, metric: Metric, *labels: object, value: float) -> None:
        """Set a gauge."""
        kept, key = self._place(metric, Kind.GAUGE, labels)
        with self._lock:
            kept.values[key] = float(value)

    def replace(self, metric: Metric, values: Mapping[Any, float]) -> None:
        """Replace all values of a gauge, by their labels; series not among them are removed."""
        found: dict[Labels, float] = {}
        for labels, value in values.items():
            _, key = self._place(metric, Kind.GAUGE, labels)
            found[key] = found.get(key, 0.0) + value
        with self._lock:
            self._kept[metric].values = found

    def observe(self, metric: Metric, *labels: object, value: float, times: int = 1) -> None:
        """Add an observation to a histogram."""
        kept, key = self._place(metric, Kind.HISTOGRAM, labels)
        with self._lock:
            spread = kept.spreads.get(key)
            if spread is None:
                spread = kept.spreads[key] = Spread([0] * (len(metric.buckets) + 1))
            spread.add(bisect.bisect_left(metric.buckets, value), value, times)

    def begin(self, metric: Metric, *labels: object) -> None:
        """Create a series at 0, so that a rate sees its first increment."""
        kept, key = self._place(metric, metric.kind, labels)
        with self._lock:
            if metric.kind is Kind.HISTOGRAM:
                kept.spreads.setdefault(key, Spread([0] * (len(metric.buckets) + 1)))
            else:
                kept.values.setdefault(key, 0.0)

    def begin_all(self, pipeline: str) -> None:
        """Create every series whose only label is the pipeline's at 0; a gauge appears when its value is known."""
        for metric in self._kept:
            if metric.labels == ("pipeline",) and metric.kind is not Kind.GAUGE:
                self.begin(metric, pipeline)

    def _place(self, metric: Metric, kind: Kind, labels: Sequence[object]) -> tuple[_Kept, Labels]:
        kept = self._kept.get(metric)
        if kept is None or metric.kind is not kind or len(labels) != len(metric.labels):
            raise InvariantBroken(f"{metric.name} is a {metric.kind} with {metric.labels}, not a {kind} with {labels}")
        return kept, tuple(self._bounded(name, str(value)) for name, value in zip(metric.labels, labels, strict=True))

    def _bounded(self, name: str, value: str) -> str:
        most = _BOUNDED.get(name)
        if most is None:
            return value
        with self._lock:
            known = self._known.setdefault(name, set())
            if value not in known:
                if len(known) >= most:
                    return metrics.OTHER
                known.add(value)
        return value

    # -- looking -----------------------------------------------------------------------------------

    def before(self, look: Callable[[], None]) -> None:
        """Call `look` before each scrape, to set values that are only measured then."""
        self._looks.append(look)

    def value(self, metric: Metric, *labels: object) -> float:
        """Return the value of a counter or a gauge; 0 if there is none."""
        with self._lock:
            return self._kept[metric].values.get(tuple(map(str, labels)), 0.0)

    def values(self, metric: Metric) -> dict[Labels, float]:
        """Return all values of a counter or a gauge."""
        with self._lock:
            return dict(self._kept[metric].values)

    def spread(self, metric: Metric, *labels: object) -> Spread | None:
        """Return the observations of a histogram."""
        with self._lock:
            return self._kept[metric].spreads.get(tuple(map(str, labels)))

    def spreads(self, metric: Metric) -> dict[Labels, Spread]:
        """Return all observations of a histogram, by their labels."""
        with self._lock:
            return dict(self._kept[metric].spreads)

    def text(self) -> bytes:
        """Return the text that Prometheus scrapes."""
        for look in self._looks:
            look()
        return generate_latest(self._registry)  # type: ignore[no-any-return, unused-ignore]

    def collect(self) -> Iterable[Any]:
        """Return the metric families, as prometheus_client's registry asks for them."""
        with self._lock:
            return [_family(metric, kept) for metric, kept in self._kept.items() if kept.values or kept.spreads]

    def describe(self) -> Iterable[Any]:
        """Return nothing: names are declared in one place, so the registry need not compare them."""
        return ()


def _family(metric: Metric, kept: _Kept) -> Any:
    if metric.kind is Kind.HISTOGRAM:
        family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        bounds = [*(f"{bound:g}" for bound in metric.buckets), "+Inf"]
        for labels, spread in sorted(kept.spreads.items()):
            added = list(itertools.accumulate(spread.counts))
            family.add_metric(labels, list(zip(bounds, added, strict=True)), spread.total)
        return family
    kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    single = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in sorted(kept.values.items()):
        single.add_metric(labels, value)
    return single
