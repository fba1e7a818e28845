"""What the churn experiment writes: a page whose table and plots say what was measured."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.churn_report import NAMES, reading, table, write
from bench.svg import chart

SVG = "{http://www.w3.org/2000/svg}"


@dataclass
class Ridden:
    """Of one way, as churn.py has it."""

    way: str
    grows: float
    seconds: list[float] = field(default_factory=lambda: [9.0, 9.0, 9.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0])
    took: float = 60.0

    @property
    def looks(self) -> list[dict[str, float]]:
        """Three, at batches 3, 6 and 9."""
        still = {
            "ids": 0.0, "gc_ms": 7.0, "broker_rss": 300 * 2**20, "client_threads": 80.0, "client_rss": 900 * 2**20,
            "heap_before": 50.0 * 2**20,
        }  # fmt: skip
        return [
            still
            | {
                "batch": batch,
                "producers": self.grows * batch,
                "made": self.grows * batch + 5,
                "client_beans": 2 * self.grows * batch,
                "heap": (50 + self.grows * batch / 64) * 2**20,
            }
            for batch in (3.0, 6.0, 9.0)
        ]


def test_the_table_has_a_line_for_each_way() -> None:
    """With what its last look has seen, and without the batches that warm up."""
    lines = table([Ridden("per-partition", 64), Ridden("tailrace-exactly-once", 0)]).splitlines()
    assert len(lines) == 4
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells == [
        NAMES["per-partition"], "576", "581", "1,152", "0", "50 → 59", "7", "300", "80", "900", "2000", "3000",
    ]  # fmt: skip
    assert len({line.count("|") for line in lines}) == 1


def test_what_grows_is_told_from_what_does_not() -> None:
    """By the second half, when everything is warm."""
    grows, still = reading([Ridden("per-partition", 64), Ridden("tailrace-exactly-once", 0)]).splitlines()
    assert "64.0 producers and 128.0 beans with each batch, and +1024 kB" in grows
    assert "0.0 producers and 0.0 beans with each batch, and +0 kB" in still


def test_the_page_shows_its_plots(tmp_path: Path) -> None:
    """Each picture that it names is there and is well-formed, with one line for each way."""
    write(tmp_path, [Ridden(way, 1) for way in NAMES], 9)
    page = (tmp_path / "churn.md").read_text(encoding="utf-8")
    assert "{" not in page
    named = re.findall(r"!\[.+\]\((.+)\)", page)
    assert len(named) == 4
    for name in named:
        drawn = ElementTree.fromstring((tmp_path / name).read_text(encoding="utf-8"))
        assert len(drawn.findall(f"{SVG}polyline")) == len(NAMES)


@pytest.mark.parametrize("logarithmic", [True, False])
@pytest.mark.parametrize("most", [0.0, 0.3, 7.0, 64_000.0])
def test_lines_stay_inside_their_chart(most: float, logarithmic: bool) -> None:
    """Whatever the values are."""
    drawn = ElementTree.fromstring(chart("A & B", "batch", {"a": [(1, 0), (2, most)]}, logarithmic=logarithmic))
    [line] = drawn.findall(f"{SVG}polyline")
    for point in line.attrib["points"].split():
        x, y = map(float, point.split(","))
        assert 70 <= x <= 570.1
        assert 39.9 <= y <= 294.1
