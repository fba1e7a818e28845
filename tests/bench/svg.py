"""Line charts as SVG for the benchmarks' pages: readable on light and dark pages, without external resources."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 760, 340
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 40, 46
GREY = "#888"
# The dashes distinguish the lines for readers who do not see all colours.
LINES = (
    ("#d62728", ""), ("#1f77b4", ""), ("#2ca02c", "6 3"), ("#9467bd", "2 3"), ("#ff7f0e", ""), ("#17a2b8", "8 3 2 3"),
    ("#e377c2", "4 2"),
)  # fmt: skip


def chart(title: str, across: str, series: Mapping[str, Points], *, logarithmic: bool = False) -> str:
    """Draw one chart; on a logarithmic axis, values below 1 are drawn at 1."""
    most_x = max((x for points in series.values() for x, _ in points), default=1) or 1
    most_y = max((y for points in series.values() for _, y in points), default=1) or 1
    ticks = _powers(most_y) if logarithmic else _steps(most_y)
    top = ticks[-1]

    def place(x: float, y: float) -> str:
        share = math.log10(max(y, 1)) / math.log10(top) if logarithmic else y / top
        right = LEFT + x / most_x * (WIDTH - LEFT - RIGHT)
        return f"{right:.1f},{HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM):.1f}"

    head = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12" role="img"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {head}><title>{escape(title)}</title>',
        _text(LEFT, 22, title, size=15),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, across, anchor="middle"),
    ]
    for tick in ticks:
        x, y = place(0, tick).split(",")
        parts.append(f'<path d="M{x} {y}H{WIDTH - RIGHT}" stroke="{GREY}" stroke-opacity=".3"/>')
        parts.append(_text(float(x) - 8, float(y) + 4, f"{tick:,g}", anchor="end"))
    for tick in _steps(most_x):
        if tick <= most_x:
            x, y = place(tick, 0).split(",")
            parts.append(_text(float(x), float(y) + 18, f"{tick:,g}", anchor="middle"))
    for number, (name, points) in enumerate(series.items()):
        colour, dashes = LINES[number % len(LINES)]
        drawn = " ".join(place(x, y) for x, y in points)
        style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"'
        parts.append(f'<polyline points="{drawn}" {style}/>')
        y_name = TOP + 10 + 20 * number
        parts.append(f'<path d="M{WIDTH - RIGHT + 12} {y_name}h22" {style}/>')
        parts.append(_text(WIDTH - RIGHT + 40, y_name + 4, name))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text {place} fill="{GREY}">{escape(text)}</text>'


def _steps(most: float) -> list[float]:
    rough = most / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= rough)
    return [step * number for number in range(math.ceil(most / step) + 1)]


def _powers(most: float) -> list[float]:
    return [10.0**number for number in range(max(1, math.ceil(math.log10(most))) + 1)]
