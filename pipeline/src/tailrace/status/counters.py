"""The driver's metrics: what the board hears, as counters and gauges for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.config import Pipeline
from tailrace.stages.rules import counts
from tailrace.status.health import Phase
from tailrace.status.snapshots import Finished, LagSeen, Progress, totals
from tailrace.telemetry import metrics
from tailrace.telemetry.measure import Measures
from tailrace.telemetry.metrics import Metric
from tailrace.version import VERSION


class Counters:
    """The metrics of one driver."""

    def __init__(self, pipeline: Pipeline, run: str, started: float) -> None:
        self.measures = Measures(metrics.DRIVER + metrics.BOTH)
        self._name = pipeline.pipeline
        self._counted: float | None = None  # when the last batch that the driver planned was finished
        self.measures.begin_all(self._name)
        self.set(metrics.BATCH, -1)
        self.set(metrics.BATCH_TARGET, pipeline.batch.target)
        self.set(metrics.DRIVER_STARTED, started)
        self.set(metrics.DRIVER_INFO, 1, run, VERSION)
        self._rules = pipeline.process.validate_
        for name, rule in self._rules.items():
            for metric in (metrics.RULE_CHECKED, metrics.RULE_BROKEN):
                self.measures.begin(metric, self._name, name, rule.severity.value)

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        """Set a gauge of the pipeline."""
        self.measures.set(metric, self._name, *labels, value=value)

    def add(self, metric: Metric, by: float, *labels: str) -> None:
        """Add to a counter of the pipeline."""
        self.measures.add(metric, self._name, *labels, by=by)

    def value(self, metric: Metric) -> float:
        """Return the value of a metric of the pipeline."""
        return self.measures.value(metric, self._name)

    def phase(self, phase: Phase, ready: bool) -> None:
        """Set the driver's phase."""
        for each in Phase:
            self.set(metrics.DRIVER_PHASE, float(each is phase), each)
        self.set(metrics.READY, float(ready))

    def finished(self, batch: Finished) -> None:
        """Count a finished batch."""
        self.set(metrics.BATCH, batch.batch)
        self.set(metrics.BATCH_FINISHED, batch.at)
        self.set(metrics.LEDGER_WRITTEN, batch.at)
        self.set(metrics.SINK_PARTITIONS, len(batch.written))
        if batch.limit:
            self.set(metrics.BATCH_LIMIT, batch.limit)
        self.add(metrics.BATCHES, 1)
        self.add(metrics.SKIPPED, batch.skipped)
        self.add(metrics.FRESH, sum(each.fresh for each in batch.written))
        self.add(metrics.DELIVERED_BYTES, sum(each.size for each in batch.written))
        for each in counts(self._rules, batch.judged):
            self.add(metrics.RULE_CHECKED, each.checked, each.name, each.rule.severity.value)
            self.add(metrics.RULE_BROKEN, each.broken, each.name, each.rule.severity.value)
        for name, spent in batch.phases.items():
            self.measures.observe(metrics.PHASE_SECONDS, self._name, name, value=spent)

    def counted(self, batch: Finished) -> None:
        """Count what a batch that the driver planned has read and delivered."""
        read = sum(each.read for each in batch.written)
        self.add(metrics.CONSUMED_RECORDS, read)
        self.add(metrics.CONSUMED_BYTES, sum(each.read_size for each in batch.written))
        self.add(metrics.PRODUCED_RECORDS, batch.out)
        for reason, number in batch.reasons.items():
            self.add(metrics.REJECTED_RECORDS, number, reason)
        self._observe(batch.observed)
        self.set(metrics.BATCH_RECORDS, read)
        if batch.seconds:
            self.measures.observe(metrics.BATCH_SECONDS, self._name, value=batch.seconds)
            # There may be a wait for a trigger between two batches: records that arrived meanwhile count for that time.
            came_in = batch.at - self._counted if self._counted is not None else batch.seconds
            self.rates(read / max(came_in, batch.seconds), read / batch.seconds)
        self._counted = batch.at

    def rates(self, arriving: float, processed: float) -> None:
        """Set the rates of records."""
        self.set(metrics.INPUT_RATE, arriving)
        self.set(metrics.PROCESSED_RATE, processed)

    def progressed(self, progress: Progress, batch: Finished | None) -> None:
        """Count Spark's progress on a batch: consumed and delivered records together."""
        self.rates(progress.input_rate, progress.processed_rate)
        self.set(metrics.BATCH_RECORDS, progress.consumed)
        for name, spent in progress.durations.items():
            if name == "triggerExecution":
                self.measures.observe(metrics.BATCH_SECONDS, self._name, value=spent)
            else:
                self.measures.observe(metrics.PHASE_SECONDS, self._name, name, value=spent)
        if progress.watermark is not None:
            self.set(metrics.WATERMARK, progress.watermark)
        for each in progress.operators:
            self.set(metrics.STATE_ROWS, each.rows, each.name)
            self.set(metrics.STATE_BYTES, each.size, each.name)
            self.add(metrics.STATE_DROPPED, each.dropped, each.name)
        self._observe(progress.own)
        if batch is not None:
            counted = totals(progress, batch)
            self.add(metrics.CONSUMED_RECORDS, counted.consumed)
            self.add(metrics.CONSUMED_BYTES, counted.size)
            self.add(metrics.PRODUCED_RECORDS, counted.produced)
            for reason, number in counted.reasons.items():
                self.add(metrics.REJECTED_RECORDS, number, reason)

    def _observe(self, observed: Mapping[str, Mapping[str, float]]) -> None:
        """Count what the function has observed in a batch."""
        for name, row in observed.items():
            for counter, value in row.items():
                self.set(metrics.OBSERVED, value, name, counter)
                self.add(metrics.OBSERVED_SUM, max(0.0, value), name, counter)

    def lag(self, seen: LagSeen) -> None:
        """Set the lag."""
        name = self._name
        lags = {(name, topic, number): seen.of((topic, number)) for topic, number in seen.positions}
        self.measures.replace(metrics.LAG, lags)
        known = seen.oldest is not None or not seen.records
        self.measures.replace(metrics.LAG_SECONDS, {(name,): seen.seconds} if known else {})
        self.set(metrics.LAG_CHECKED, seen.at)
        beyond = {(name, topic, number): seen.beyond((topic, number)) for topic, number in seen.positions}
        self.measures.replace(metrics.UNSTABLE, beyond)
        self.set(metrics.UNSTABLE_SECONDS, seen.unstable_seconds)

    def executors(self, wanted: int, present: int) -> None:
        """Set the numbers of executors."""
        self.set(metrics.EXECUTORS_WANTED, wanted)
        self.set(metrics.EXECUTORS_PRESENT, present)
