"""Dashboard model: its parts, queries built from the metrics' declarations, and rendering to Grafana's JSON.

A metric or a label that is not declared in `tailrace.telemetry.metrics` is refused here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace.telemetry import metrics
from tailrace.telemetry.metrics import Kind, Metric

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# This also matches an empty label: a scrape outside Kubernetes sets no namespace.
CHOSEN = 'namespace=~"$namespace",pipeline=~"$pipeline"'
RANGE = "[$__rate_interval]"
WIDTH, HEIGHT = 24, 8
OF_THE_SCRAPE = ("namespace", "instance")

SECONDS, BYTES, RECORDS, PER_SECOND, SHARE, COUNT = "s", "bytes", "short", "cps", "percentunit", "none"


@dataclass(frozen=True)
class Ask:
    """A query and its legend."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One panel."""

    title: str
    unit: str
    asks: tuple[Ask, ...]
    text: str = ""
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False


@dataclass(frozen=True)
class Row:
    """A heading and the panels below it."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Dashboard:
    """One dashboard, which is one file."""

    name: str
    title: str
    text: str
    rows: tuple[Row, ...]
    having: Metric = field(default=metrics.DRIVER_INFO)  # the metric that lists the pipelines to choose from


# -- queries ---------------------------------------------------------------------------------------


def of(metric: Metric, part: str = "", **labels: str) -> str:
    """Select a metric's series; `part` is a histogram's bucket, sum or count."""
    if bool(part) is not (metric.kind is Kind.HISTOGRAM):
        raise ValueError(f"{metric.name} is a {metric.kind}, and its part is {part!r}")
    _known(metric, labels)
    more = "".join(f',{name}="{value}"' for name, value in labels.items())
    return f"{metric.name}{'_' if part else ''}{part}{{{CHOSEN}{more}}}"


def _known(metric: Metric, labels: Sequence[str] | dict[str, str]) -> None:
    unknown = [name for name in labels if name not in (*metric.labels, *OF_THE_SCRAPE)]
    if unknown:
        raise ValueError(f"{metric.name} has no label {', '.join(unknown)}")


def over(how: str, metric: Metric, by: tuple[str, ...], inner: str) -> str:
    """Aggregate series by labels of the metric."""
    _known(metric, by)
    return f"{how} by ({', '.join(by)}) ({inner})"


def total(metric: Metric, *by: str, **labels: str) -> str:
    """Sum a gauge."""
    return over("sum", metric, ("pipeline", *by), of(metric, **labels))


def most(metric: Metric, *by: str, **labels: str) -> str:
    """Take a gauge's maximum."""
    return over("max", metric, ("pipeline", *by), of(metric, **labels))


def rate(metric: Metric, *by: str, part: str = "", **labels: str) -> str:
    """Take a counter's growth per second."""
    return over("sum", metric, ("pipeline", *by), f"rate({of(metric, part, **labels)}{RANGE})")


def mean(metric: Metric, *by: str) -> str:
    """Take a histogram's mean."""
    return f"{rate(metric, *by, part='sum')} / {rate(metric, *by, part='count')}"


def quantile(share: float, metric: Metric, *by: str) -> str:
    """Take a histogram's quantile."""
    _known(metric, by)
    inner = f"sum by ({', '.join(('pipeline', *by, 'le'))}) (rate({of(metric, 'bucket')}{RANGE}))"
    return f"histogram_quantile({share}, {inner})"


def spread(metric: Metric, *by: str) -> tuple[Ask, ...]:
    """Take a histogram's median and 99th percentile."""
    name = " ".join(f"{{{{{each}}}}}" for each in ("pipeline", *by))
    return tuple(Ask(quantile(share, metric, *by), f"{name} {label}") for share, label in ((0.5, "p50"), (0.99, "p99")))


def since(metric: Metric) -> str:
    """Take the time since a timestamp."""
    return f"time() - {most(metric)}"


def one(expr: str, legend: str = "{{pipeline}}") -> tuple[Ask, ...]:
    """Wrap a single query."""
    return (Ask(expr, legend),)


# -- Grafana's JSON --------------------------------------------------------------------------------


def rendered(dashboard: Dashboard) -> dict[str, Any]:
    """Render the dashboard as JSON."""
    return {
        "uid": f"tailrace-{dashboard.name}",
        "title": dashboard.title,
        "description": dashboard.text,
        "tags": ["tailrace"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "links": [
            {"type": "dashboards", "tags": ["tailrace"], "title": "Tailrace", "asDropdown": True, "includeVars": True,
             "keepTime": True},
        ],
        "templating": {"list": list(_variables(dashboard))},
        "panels": list(_panels(dashboard)),
    }  # fmt: skip


def _variables(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Source", "type": "datasource", "query": "prometheus"}
    chosen = dashboard.having.name
    for name, query in (
        ("namespace", f"label_values({chosen}, namespace)"),
        ("pipeline", f'label_values({chosen}{{namespace=~"$namespace"}}, pipeline)'),
    ):
        yield {
            "name": name,
            "label": name.capitalize(),
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


def _panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    number = top = 0
    for row in dashboard.rows:
        number += 1
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "panels": [],
               "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1}}  # fmt: skip
        top, left, high = top + 1, 0, 0
        for panel in row.panels:
            number += 1
            height = HEIGHT // 2 if panel.kind == "stat" else HEIGHT
            if left + panel.width > WIDTH:
                top, left, high = top + high, 0, 0
            yield _panel(number, panel, {"x": left, "y": top, "w": panel.width, "h": height})
            left, high = left + panel.width, max(high, height)
        top += high


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    table = panel.kind == "table"
    found: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": ask.expr, "legendFormat": ask.legend,
             **({"instant": True, "format": "table"} if table or panel.kind == "stat" else {"range": True})}
            for index, ask in enumerate(panel.asks)
        ],
    }  # fmt: skip
    if panel.kind == "timeseries":
        found["options"] = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    if table:
        names = {f"Value #{chr(ord('A') + index)}": ask.legend for index, ask in enumerate(panel.asks)}
        found["transformations"] = [
            {"id": "merge", "options": {}},
            {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": names}},
        ]
    return found
