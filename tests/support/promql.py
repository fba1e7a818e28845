"""The names in a PromQL expression: enough of a parser to check dashboards and rules against the declared metrics."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tailrace.telemetry import metrics
from tailrace.telemetry.metrics import Kind, Metric

DECLARED = {each.name: each for each in metrics.DRIVER + metrics.EXECUTOR + metrics.BOTH}
# The series that Prometheus adds to a scrape, and the labels that the scrape sets.
OF_THE_SCRAPE = {
    "up": frozenset({"job", "instance", "namespace"}),
    # kube-state-metrics
    "kube_pod_container_resource_requests": frozenset({"namespace", "pod", "container", "resource"}),
    "kube_pod_status_ready": frozenset({"namespace", "pod", "condition"}),
    "kube_pod_status_phase": frozenset({"namespace", "pod", "phase"}),
    "kube_deployment_spec_replicas": frozenset({"namespace", "deployment"}),
    # Tailrace's operator
    "tailrace_operator_pipeline": frozenset({"pipeline_namespace", "pipeline", "phase"}),
}
SCRAPED = frozenset({"job", "instance", "namespace"})
MADE = frozenset({"sign", "pipeline"})  # by label_replace

_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_SELECTOR = re.compile(r"([a-zA-Z_:]\w*)\s*\{([^}]*)\}")
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_RANGE = re.compile(r"\[[^\]]*\]")
_CALL = re.compile(r"[a-z_0-9]+\s*(?=\()")
_WORDS = frozenset({"and", "or", "unless", "bool", "offset", "sum", "max", "min", "avg", "count", "topk", "by", "on"})


@dataclass(frozen=True)
class Named:
    """What an expression names."""

    metrics: dict[str, frozenset[str]]  # with the labels that are matched
    grouped: frozenset[str]  # labels by which it groups or matches


def named(expression: str) -> Named:
    """Parse an expression."""
    text = _TEXT.sub("", expression)
    found: dict[str, frozenset[str]] = {}
    for name, inner in _SELECTOR.findall(text):
        found[name] = found.get(name, frozenset()) | set(re.findall(r"(\w+)\s*(?:=|!)", inner))
    text = _SELECTOR.sub(" ", text)
    grouped = frozenset(label.strip() for inner in _GROUPING.findall(text) for label in inner.split(",") if label)
    text = _RANGE.sub(" ", _GROUPING.sub(" ", text))
    text = _CALL.sub(" ", text)
    for name in re.findall(r"[a-zA-Z_]\w*", text):
        if name not in _WORDS:
            found.setdefault(name, frozenset())
    return Named(found, grouped)


def declared(name: str) -> Metric | None:
    """Return the metric that a series belongs to, if it is declared."""
    if name in DECLARED:
        metric = DECLARED[name]
        return None if metric.kind is Kind.HISTOGRAM else metric
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    metric = DECLARED.get(base, metrics.BATCH)
    return metric if base in DECLARED and metric.kind is Kind.HISTOGRAM else None


def faults(expression: str) -> list[str]:
    """List what the expression names that does not exist."""
    found = named(expression)
    wrong = [] if found.metrics else [f"no metric in {expression}"]
    known = set(SCRAPED | MADE)
    for name, labels in found.metrics.items():
        if name in OF_THE_SCRAPE:
            allowed = OF_THE_SCRAPE[name]
        else:
            metric = declared(name)
            if metric is None:
                wrong.append(f"no metric {name}")
                continue
            allowed = SCRAPED | set(metric.labels) | ({"le"} if name.endswith("_bucket") else set())
        known |= allowed
        wrong += [f"{name} has no label {label}" for label in sorted(labels - allowed)]
    return wrong + [f"none of its metrics has the label {label}" for label in sorted(found.grouped - known)]
