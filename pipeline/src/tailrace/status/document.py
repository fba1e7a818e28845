"""Parts of the document at /status: the last batch, the lag by topic partition, the totals since the start."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from tailrace.config import Pipeline
from tailrace.errors import all_errors
from tailrace.status.snapshots import Finished, LagSeen, Progress
from tailrace.telemetry import metrics
from tailrace.telemetry.measure import Measures

_PLACES = 256  # topic partitions listed, those with most lag first
_TOTALS = {
    "consumed": metrics.CONSUMED_RECORDS,
    "produced": metrics.PRODUCED_RECORDS,
    "batches": metrics.BATCHES,
    "skipped": metrics.SKIPPED,
    "fresh": metrics.FRESH,
}


def configured(pipeline: Pipeline) -> dict[str, Any]:
    """Return what the page shows of a pipeline's configuration."""
    return {
        "source": {"topics": list(pipeline.source.topics), "pattern": pipeline.source.pattern},
        "sink": {"topic": pipeline.sink.topic, "delivery": pipeline.sink.delivery.value},
        "rejected_topic": pipeline.rejected_topic,
        "samples": pipeline.metrics.samples,
        "runbooks": pipeline.metrics.runbooks,
    }


def totals_of(measures: Measures, pipeline: Pipeline) -> dict[str, Any]:
    """Return what a pipeline has read and delivered since its driver started."""
    name = pipeline.pipeline
    found: dict[str, Any] = {key: int(measures.value(metric, name)) for key, metric in _TOTALS.items()}
    reasons = {labels[1]: int(value) for labels, value in measures.values(metrics.REJECTED_RECORDS).items()}
    return found | {"rejected": sum(reasons.values()), "reasons": reasons, "rules": _rules(measures, pipeline)}


def _rules(measures: Measures, pipeline: Pipeline) -> list[dict[str, Any]]:
    """Return how many records each rule has checked, and how many broke it, since the driver started."""
    checked, broken = (measures.values(metric) for metric in (metrics.RULE_CHECKED, metrics.RULE_BROKEN))
    found = []
    for name, rule in pipeline.process.validate_.items():
        labels = (pipeline.pipeline, name, rule.severity.value)
        numbers = {"checked": int(checked.get(labels, 0)), "broken": int(broken.get(labels, 0))}
        found.append({"rule": name, "severity": rule.severity.value, **numbers})
    return found


def lag_of(seen: LagSeen) -> dict[str, Any]:
    """Return the lag, with its topic partitions in order; if there are very many, those with most lag."""
    places = sorted(sorted(seen.positions), key=lambda place: (seen.of(place), seen.beyond(place)), reverse=True)
    return {
        "records": seen.records,
        "seconds": round(seen.seconds, 3),
        "checked": seen.at,
        "beyond": seen.unstable,
        "beyond_seconds": round(seen.unstable_seconds, 3),
        "count": len(places),
        "partitions": [
            {
                "topic": topic,
                "partition": number,
                "position": seen.positions[topic, number],
                "end": seen.ends.get((topic, number)),
                "lag": seen.of((topic, number)),
                "beyond": seen.beyond((topic, number)),
            }
            for topic, number in sorted(places[:_PLACES])
        ],
    }


def gateways_of(owners: Mapping[int, tuple[str, str]]) -> list[dict[str, Any]]:
    """Return the gateways, each with the sink partitions that it wrote last."""
    found: dict[str, dict[str, Any]] = {}
    for number, (name, address) in sorted(owners.items()):
        found.setdefault(name, {"name": name, "address": address, "sinks": []})["sinks"].append(number)
    return list(found.values())


def error_of(error: Mapping[str, Any]) -> dict[str, Any]:
    """Return an error with its explanation, if its code is known here."""
    kind = next((kind for kind in all_errors() if kind.code == error["error"]), None)
    parts = {name: value for name, value in error.items() if name != "log"}  # which the document has in full
    return parts | {"explanation": inspect.getdoc(kind) if kind is not None else None}


def batch_of(last: Finished | None, progress: Progress | None, busy: bool, target: float) -> dict[str, Any] | None:
    """Return the last batch, with Spark's times if it planned that batch; None before the first."""
    if last is None:
        return None
    spent = dict(last.phases)
    if progress is not None and progress.batch == last.batch:
        spent |= {name: value for name, value in progress.durations.items() if name != "addBatch"}
    return {
        "number": last.batch,
        "records": last.records,
        "out": last.out,
        "rejected": last.rejected,
        "sinks": len(last.written),
        "finished": last.at,
        "busy": busy,
        "limit": last.limit,
        "target": target,
        "phases": spent,
    }
