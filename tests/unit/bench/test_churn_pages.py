"""The churn experiment's page: its table and plots show what was measured."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.churn_report import AT_THE_BROKER, AT_THE_CLIENT, NAMES, Ridden, keep, load, main, reading, table, write
from bench.panels import page
from bench.svg import chart
from support.prometheus import Prometheus

DASHBOARDS = sorted((Path(__file__).parents[3] / "charts" / "tailrace" / "dashboards").glob("*.json"))
SVG = "{http://www.w3.org/2000/svg}"


def ridden(way: str, grows: float, others: float = 0.0) -> Ridden:
    """Return a way that was sampled three times."""
    still = {
        "ids": 0.0, "gc_ms": 7.0, "broker_rss": 300 * 2**20, "client_threads": 80.0, "client_rss": 900 * 2**20,
        "heap_before": 50.0 * 2**20,
    }  # fmt: skip
    looks = [
        still
        | {
            "batch": batch,
            "producers": grows * batch,
            "made": grows * batch + 5,
            "client_beans": 2 * grows * batch,
            "heap": (50 + grows * batch / 64) * 2**20,
            "broker_cpu": 1.0 + 0.25 * batch,
            "client_cpu": 20.0 + 0.5 * batch,
        }
        for batch in (3.0, 6.0, 9.0)
    ]
    return Ridden(way, [9.0, 9.0, 9.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0], looks, took=60.0, others=others)


def cells(line: str) -> list[str]:
    """Split a line of a table into its cells."""
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_tables_have_a_line_for_each_way() -> None:
    """Each has the values of its last sample, and CPU per batch without the warm-up batches."""
    ways = [ridden("per-partition", 64), ridden("tailrace-exactly-once", 0)]
    broker, client = table(ways, AT_THE_BROKER).splitlines(), table(ways, AT_THE_CLIENT).splitlines()
    assert len(broker) == len(client) == 4
    name = NAMES["per-partition"]
    assert cells(broker[2]) == [name, "576", "581", "1,152", "0", "50 → 59", "7", "250", "300"]
    assert cells(client[2]) == [name, "80", "900", "500", "2000", "3000"]
    assert len({line.count("|") for line in broker}) == len({line.count("|") for line in client}) == 1


def test_growth_is_distinguished_from_a_plateau() -> None:
    """The second half decides, when everything is warm."""
    grows, still = reading([ridden("per-partition", 64), ridden("tailrace-exactly-once", 0)]).splitlines()
    assert "64.0 producers, 128.0 beans and +1024 kB" in grows
    assert "0.0 producers, 0.0 beans and +0 kB" in still


def test_the_page_shows_its_plots(tmp_path: Path) -> None:
    """Each picture that the page names exists and is well-formed, with one line for each way."""
    ways = [ridden(way, 1) for way in NAMES]
    write(tmp_path, ways, 9)
    page = (tmp_path / "churn.md").read_text(encoding="utf-8")
    assert "{" not in page
    named = re.findall(r"!\[.+\]\((.+)\)", page)
    assert len(named) == 4
    for name in named:
        drawn = ElementTree.fromstring((tmp_path / name).read_text(encoding="utf-8"))
        assert len(drawn.findall(f"{SVG}polyline")) == len(NAMES)
    keep(tmp_path, ways, 9)
    (tmp_path / "churn.md").unlink()
    main(tmp_path)
    assert (tmp_path / "churn.md").read_text(encoding="utf-8") == page


def test_the_page_warns_if_other_programs_kept_the_machine_busy() -> None:
    """The times say little in that case."""
    assert load([ridden("pool", 1, 0.02)]) == "No other program was busy."
    assert "used 0.0 to 1.3 cores" in load([ridden("pool", 1, 0.02), ridden("spark", 1, 1.32)])


@pytest.mark.parametrize("logarithmic", [True, False])
@pytest.mark.parametrize("most", [0.0, 0.3, 7.0, 64_000.0])
def test_lines_stay_inside_their_chart(most: float, logarithmic: bool) -> None:
    """This holds whatever the values are."""
    drawn = ElementTree.fromstring(chart("A & B", "batch", {"a": [(1, 0), (2, most)]}, logarithmic=logarithmic))
    [line] = drawn.findall(f"{SVG}polyline")
    for point in line.attrib["points"].split():
        x, y = map(float, point.split(","))
        assert 70 <= x <= 570.1
        assert 39.9 <= y <= 294.1


class Answering(Prometheus):
    """Returns one series for each query, or none; its value is NaN, like a share of nothing."""

    def __init__(self, empty: bool = False) -> None:
        super().__init__("http://nowhere")
        object.__setattr__(self, "empty", empty)

    def ask(self, path: str, **parameters: str) -> Any:
        """Answer as Prometheus would."""
        assert "$" not in parameters["query"]
        values = [[100.0, "1.5"], [110.0, "NaN"], [120.0, "1500"]]
        one = {"metric": {"pipeline": "a&b", "process": "gateway"}, "value": [120.0, "0.25"], "values": values}
        return {"result": [] if getattr(self, "empty", False) else [one]}


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_every_panel_is_drawn(file: Path) -> None:
    """A panel is drawn at its place, with the results of its queries or a note that there were none."""
    dashboard = json.loads(file.read_text(encoding="utf-8"))
    panels = [each for each in dashboard["panels"] if each["type"] != "row"]
    text, height = page(dashboard, Answering(), 100.0, 220.0)
    assert text.count("<section") == len(panels)
    assert all(f"<h3>{escape(each['title'])}</h3>" in text for each in panels)
    assert text.count("<svg") == sum(each["type"] == "timeseries" for each in panels)
    assert "a&amp;b" in text
    assert "{{" not in text
    assert "No data" not in text
    assert "nan" not in text
    assert height > 200
    nothing, _ = page(dashboard, Answering(empty=True), 100.0, 220.0)
    assert nothing.count("No data") == sum(each["type"] != "table" for each in panels)
