"""librdkafka's statistics, aggregated over the producers of a gateway.

Each producer reports every `metrics.statistics` seconds, as JSON. Counters keep their totals when a producer is closed;
its gauges go with it. Brokers are labelled by number, topics not at all: a row may name any topic.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tailrace.telemetry import metrics
from tailrace.telemetry.measure import Measures

_COUNTED: Final = {
    "tx": metrics.REQUESTS,
    "txbytes": metrics.REQUEST_BYTES,
    "txretries": metrics.RETRIES,
    "req_timeouts": metrics.TIMEOUTS,
    "txerrs": metrics.REQUEST_ERRORS,
    "connects": metrics.CONNECTS,
    "disconnects": metrics.DISCONNECTS,
}
_QUANTILES: Final = {"0.5": "p50", "0.99": "p99", "1": "max"}
# Connections to a broker whose number is unknown: the first one, and that to the transaction coordinator.
BOOTSTRAP: Final = "bootstrap"
COORDINATOR: Final = "coordinator"


@dataclass(frozen=True)
class Window:
    """librdkafka's measurements since its last report: their number and their quantiles."""

    count: int
    quantiles: Mapping[str, float]

    @classmethod
    def of(cls, found: Mapping[str, Any], unit: float = 1.0) -> Window:
        """Read a window of librdkafka's JSON."""
        return cls(int(found.get("cnt", 0)), {name: found.get(field, 0) * unit for name, field in _QUANTILES.items()})


@dataclass(frozen=True)
class Broker:
    """A producer's connection to one broker."""

    counts: Mapping[str, int]
    in_flight: int
    latency: Window
    throttle: Window


@dataclass(frozen=True)
class Report:
    """The last report of one producer."""

    brokers: Mapping[str, list[Broker]] = field(default_factory=dict)
    batch_bytes: tuple[Window, ...] = ()
    batch_records: tuple[Window, ...] = ()
    queued: int = 0
    idempotence: str = ""
    transaction: str = ""
    epochs: int = 0


def read(text: str) -> Report:
    """Extract the statistics used here from librdkafka's JSON."""
    found = json.loads(text)
    brokers: dict[str, list[Broker]] = {}
    for each in found.get("brokers", {}).values():
        brokers.setdefault(_named(each), []).append(
            Broker(
                counts={name: int(each.get(name, 0)) for name in _COUNTED},
                in_flight=int(each.get("waitresp_cnt", 0)),
                latency=Window.of(each.get("rtt", {}), 1e-6),
                throttle=Window.of(each.get("throttle", {}), 1e-3),
            )
        )
    topics = found.get("topics", {}).values()
    eos = found.get("eos", {})
    return Report(
        brokers=brokers,
        batch_bytes=tuple(Window.of(each.get("batchsize", {})) for each in topics),
        batch_records=tuple(Window.of(each.get("batchcnt", {})) for each in topics),
        queued=int(found.get("msg_size", 0)),
        idempotence=str(eos.get("idemp_state", "")),
        transaction=str(eos.get("txn_state", "")),
        epochs=int(eos.get("epoch_cnt", 0)),
    )


def _named(broker: Mapping[str, Any]) -> str:
    if broker.get("source") == "logical":
        return COORDINATOR
    number = int(broker.get("nodeid", -1))
    return str(number) if number >= 0 else BOOTSTRAP


def together(windows: Iterable[Window]) -> dict[str, float]:
    """Combine the quantiles of many windows: the maximum of the high ones, the weighted mean of the median."""
    full = [each for each in windows if each.count]
    if not full:
        return {}
    everything = sum(each.count for each in full)
    middle = sum(each.quantiles["0.5"] * each.count for each in full) / everything
    return {"0.5": middle} | {name: max(each.quantiles[name] for each in full) for name in ("0.99", "1")}


class Statistics:
    """The statistics of one gateway's producers."""

    def __init__(self, measures: Measures, every: float) -> None:
        self.every = every
        self._measures = measures
        self._lock = threading.Lock()
        self._last: dict[Listener, Report] = {}
        self._pipelines: dict[str, None] = {}

    def listener(self, pipeline: str) -> Listener:
        """Return a listener for one producer."""
        return Listener(self, pipeline)

    def heard(self, listener: Listener, report: Report) -> None:
        """Take a producer's report."""
        with self._lock:
            before = self._last.get(listener, Report())
            self._last[listener] = report
            self._pipelines[listener.pipeline] = None
        for broker, ways in report.brokers.items():
            old = before.brokers.get(broker, [])
            for name, metric in _COUNTED.items():
                grown = sum(way.counts[name] for way in ways) - sum(way.counts[name] for way in old)
                self._measures.add(metric, listener.pipeline, broker, by=max(0, grown))
        self._measures.add(metrics.EPOCHS, listener.pipeline, by=max(0, report.epochs - before.epochs))

    def forget(self, listener: Listener) -> None:
        """Forget a producer that was closed."""
        with self._lock:
            self._last.pop(listener, None)

    def look(self) -> None:
        """Set the gauges from the latest reports."""
        with self._lock:
            every, pipelines = list(self._last.items()), list(self._pipelines)
        flying: dict[tuple[str, str], float] = {}
        latency: dict[tuple[str, str, str], float] = {}
        throttle: dict[tuple[str, str, str], float] = {}
        sizes: dict[tuple[str, str], float] = {}
        records: dict[tuple[str, str], float] = {}
        idempotence: Counter[tuple[str, str]] = Counter()
        transactions: Counter[tuple[str, str]] = Counter()
        for pipeline in pipelines:
            reports = [each for listener, each in every if listener.pipeline == pipeline]
            self._measures.set(metrics.QUEUED_BYTES, pipeline, value=sum(each.queued for each in reports))
            idempotence.update((pipeline, each.idempotence) for each in reports if each.idempotence)
            transactions.update((pipeline, each.transaction) for each in reports if each.transaction)
            sizes |= _of(together(window for each in reports for window in each.batch_bytes), pipeline)
            records |= _of(together(window for each in reports for window in each.batch_records), pipeline)
            for broker in {name for each in reports for name in each.brokers}:
                ways = [way for each in reports for way in each.brokers.get(broker, [])]
                flying[pipeline, broker] = sum(way.in_flight for way in ways)
                for name, value in together(way.latency for way in ways).items():
                    latency[pipeline, broker, name] = value
                for name, value in together(way.throttle for way in ways).items():
                    throttle[pipeline, broker, name] = value
        self._measures.replace(metrics.IN_FLIGHT, flying)
        self._measures.replace(metrics.LATENCY, latency)
        self._measures.replace(metrics.THROTTLE, throttle)
        self._measures.replace(metrics.BATCH_BYTES, sizes)
        self._measures.replace(metrics.BATCH_SIZE, records)
        self._measures.replace(metrics.IDEMPOTENCE, dict(idempotence))
        self._measures.replace(metrics.TRANSACTION_STATE, dict(transactions))


def _of(quantiles: Mapping[str, float], pipeline: str) -> dict[tuple[str, str], float]:
    return {(pipeline, name): value for name, value in quantiles.items()}


class Listener:
    """Receives one producer's statistics. It has no reference to the producer, which can then be freed at once."""

    def __init__(self, statistics: Statistics, pipeline: str) -> None:
        self.pipeline = pipeline
        self._statistics = statistics

    @property
    def options(self) -> dict[str, Any]:
        """The options that make a producer report."""
        return {"statistics.interval.ms": int(self._statistics.every * 1000), "stats_cb": self.heard}

    def heard(self, text: str) -> None:
        """Take a report; the producer calls this in the thread that polls it."""
        self._statistics.heard(self, read(text))

    def forget(self) -> None:
        """Forget this producer: it reports no more."""
        self._statistics.forget(self)
