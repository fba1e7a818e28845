"""The dashboards as HTML pages without Grafana: the same queries to Prometheus, drawn at the panels' positions.

This does not look like Grafana and is not meant to replace it; it shows which data the panels have without one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from support.prometheus import Prometheus

RATE = "15s"  # for one scrape per second
LINES, STEPS = 12, 150
COLUMN, LINE = 62, 30  # pixels of the dashboards' grid
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17a2b8", "#e377c2", "#8c564b", "#7f7f7f", "#bcbd22")
PAGE = """<!doctype html><meta charset="utf-8"><title>{title}</title><style>
body {{ margin: 0; background: #f4f5f7; font: 13px sans-serif; color: #1f2733; position: relative; height: {height}px }}
section {{ position: absolute; box-sizing: border-box; background: #fff; border: 1px solid #dcdfe4; padding: 6px 10px;
  overflow: hidden; border-radius: 3px }}
h1, h2 {{ position: absolute; margin: 0; left: 12px; font-size: 17px }} h2 {{ font-size: 14px }}
h3 {{ margin: 0 0 4px; font-size: 13px }} p {{ margin: 0; line-height: 1.35; font-size: 11px }}
b.now {{ display: block; text-align: center; font-size: 30px; margin-top: 12px }} svg {{ width: 100%; height: 150px }}
table {{ border-collapse: collapse; width: 100% }} td, th {{ text-align: right; padding: 3px 8px }}
td:first-child, th:first-child {{ text-align: left }} text {{ fill: #667; font-size: 11px }}</style>
{body}"""

Series = dict[str, list[tuple[float, float]]]
_UNITS: Mapping[str, Callable[[float], str]] = {
    "s": lambda value: _scaled(value, ((86400, " d"), (3600, " h"), (60, " min"), (1, " s"), (1e-3, " ms"))),
    "bytes": lambda value: _scaled(value, ((2**30, " GiB"), (2**20, " MiB"), (2**10, " KiB"), (1, " B"))),
    "Bps": lambda value: _scaled(value, ((1e6, " MB/s"), (1e3, " kB/s"), (1, " B/s"))),
    "cps": lambda value: _scaled(value, ((1e6, " M/s"), (1e3, " k/s"), (1, "/s"), (1e-3, "m/s"))),
    "percentunit": lambda value: f"{value * 100:.3g} %",
    "short": lambda value: _scaled(value, ((1e6, " M"), (1e3, " k"), (1, ""))),
    "none": lambda value: f"{value:.4g}",
}


def _scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    size, name = next((each for each in units if abs(value) >= each[0]), units[-1] if value else units[-2])
    return f"{value / size:.3g}{name}"


def _asked(expression: str) -> str:
    expression = expression.replace("$__rate_interval", RATE)
    return expression.replace("$namespace", ".*").replace("$pipeline", ".*")


def _named(legend: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), legend)


def page(dashboard: Mapping[str, Any], seen: Prometheus, start: float, end: float) -> tuple[str, int]:
    """Draw all panels of a dashboard between two times; return the page and its height."""
    parts, height = [f'<h1 style="top:12px">{escape(dashboard["title"])}</h1>'], 0
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        top = 40 + place["y"] * LINE
        if panel["type"] == "row":
            parts.append(f'<h2 style="top:{top + 8}px">{escape(panel["title"])}</h2>')
            continue
        wide, high = place["w"] * COLUMN - 8, place["h"] * LINE - 8
        style = f"left:{8 + place['x'] * COLUMN}px;top:{top}px;width:{wide}px;height:{high}px"
        drawn = {"stat": _stat, "table": _table}.get(panel["type"], _lines)(panel, seen, start, end)
        parts.append(f'<section style="{style}"><h3>{escape(panel["title"])}</h3>{drawn}</section>')
        height = max(height, top + high + 16)
    return PAGE.format(title=escape(dashboard["title"]), height=height, body="\n".join(parts)), height


def _unit(panel: Mapping[str, Any]) -> Callable[[float], str]:
    return _UNITS[panel["fieldConfig"]["defaults"]["unit"]]


def _stat(panel: Mapping[str, Any], seen: Prometheus, start: float, end: float) -> str:
    values = seen.ask("query", query=_asked(panel["targets"][0]["expr"]), time=str(end))["result"]
    return f'<b class="now">{_unit(panel)(float(values[0]["value"][1])) if values else "No data"}</b>'


def _table(panel: Mapping[str, Any], seen: Prometheus, start: float, end: float) -> str:
    lines: dict[str, list[str]] = {}
    for number, target in enumerate(panel["targets"]):
        for each in seen.ask("query", query=_asked(target["expr"]), time=str(end))["result"]:
            line = lines.setdefault(each["metric"].get("pipeline", ""), [""] * len(panel["targets"]))
            line[number] = _UNITS["none"](float(each["value"][1]))
    head = "".join(f"<th>{escape(name)}</th>" for name in ("pipeline", *(t["legendFormat"] for t in panel["targets"])))
    body = "".join(
        f"<tr><td>{escape(name)}</td>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>"
        for name, line in lines.items()
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _lines(panel: Mapping[str, Any], seen: Prometheus, start: float, end: float) -> str:
    series: Series = {}
    step = f"{(end - start) / STEPS:.3f}"
    for target in panel["targets"]:
        asked = {"query": _asked(target["expr"]), "start": str(start), "end": str(end), "step": step}
        for each in seen.ask("query_range", **asked)["result"]:
            points = [(at - start, float(value)) for at, value in each["values"]]
            series[_named(target["legendFormat"], each["metric"])] = [
                point for point in points if math.isfinite(point[1])
            ]
    if not any(series.values()):
        return "<p>No data</p>"
    width = panel["gridPos"]["w"] * COLUMN - 30
    names = " ".join(
        f'<span style="color:{COLOURS[number % len(COLOURS)]}">━</span> {escape(name)}'
        for number, name in enumerate(list(series)[:LINES])
    )
    more = f" and {len(series) - LINES} more" if len(series) > LINES else ""
    return _chart(series, _unit(panel), width, end - start) + f"<p>{names}{more}</p>"


def _chart(series: Series, unit: Callable[[float], str], width: int, seconds: float) -> str:
    left, top, bottom, height = 62, 6, 18, 150
    most = max((y for points in series.values() for _, y in points), default=0.0) * 1.05 or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return left + x / seconds * (width - left - 4), height - bottom - max(y, 0) / most * (height - top - bottom)

    parts = [f'<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none">']
    for share in (0, 0.5, 1):
        _, y = place(0, most * share)
        parts.append(f'<path d="M{left} {y:.1f}H{width}" stroke="#e3e5e9"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{unit(most * share)}</text>')
    for minute in range(int(seconds // 60) + 1):
        x, _ = place(minute * 60, 0)
        parts.append(f'<text x="{x:.1f}" y="{height - 3}">{minute} min</text>')
    for number, points in enumerate(series.values()):
        drawn = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in points)
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    return "".join([*parts, "</svg>"])
