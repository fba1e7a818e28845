"""The dashboards: files that Grafana can read, built from exported metrics, and up to date."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import generate
from grafana import of
from support.promql import faults, named
from tailrace.telemetry import metrics

FOLDER = Path(__file__).parents[3] / "charts" / "tailrace" / "dashboards"
FILES = sorted(FOLDER.glob("*.json"))
# Metrics that no panel shows: others show it better, or they only identify something.
NOT_SHOWN: set[str] = set()


def dashboards() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every file with its content."""
    for file in FILES:
        yield file.stem, json.loads(file.read_text(encoding="utf-8"))


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the panels that have queries."""
    return [each for each in dashboard["panels"] if each["type"] != "row"]


def test_the_files_are_up_to_date() -> None:
    """After a change of the metrics or the panels, run `make docs`."""
    assert {file.stem for file in FILES} == {each.name for each in generate.DASHBOARDS}
    stale = [
        each.name
        for each in generate.DASHBOARDS
        if (FOLDER / f"{each.name}.json").read_text(encoding="utf-8") != generate.text(each)
    ]
    assert stale == [], "run: python charts/generate.py"


def test_ids_are_unique() -> None:
    """They are unique for dashboards in a Grafana, and for panels in a dashboard."""
    uids = [content["uid"] for _, content in dashboards()]
    assert len(set(uids)) == len(uids) == 4
    for name, content in dashboards():
        numbers = [panel["id"] for panel in content["panels"]]
        assert len(set(numbers)) == len(numbers), name


def test_every_panel_is_described() -> None:
    """Each has a unit and queries, and each query an expression and a legend."""
    wrong = []
    for name, content in dashboards():
        for panel in panels(content):
            targets = panel["targets"]
            refs = {each["refId"] for each in targets}
            unit = panel["fieldConfig"]["defaults"]["unit"]
            if not (targets and unit and len(refs) == len(targets)):
                wrong.append(f"{name}: {panel['title']}")
            wrong += [f"{name}: {panel['title']}" for each in targets if not (each["expr"] and each["legendFormat"])]
    assert wrong == []


def test_no_two_panels_overlap() -> None:
    """The grid has 24 columns."""
    for name, content in dashboards():
        taken: set[tuple[int, int]] = set()
        for panel in content["panels"]:
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24, f"{name}: {panel['title']}"
            cells = {
                (place["x"] + column, place["y"] + line) for column in range(place["w"]) for line in range(place["h"])
            }
            assert not cells & taken, f"{name}: {panel['title']}"
            taken |= cells


def test_panels_name_only_what_is_exported() -> None:
    """A renamed metric would leave a panel empty forever, and nobody would notice."""
    wrong = [
        f"{name}: {panel['title']}: {fault}"
        for name, content in dashboards()
        for panel in panels(content)
        for target in panel["targets"]
        for fault in faults(target["expr"])
    ]
    assert wrong == []


def test_every_metric_is_shown() -> None:
    """A metric that nobody looks at need not be exported."""
    shown = {
        name
        for _, content in dashboards()
        for panel in panels(content)
        for target in panel["targets"]
        for name in named(target["expr"]).metrics
    }
    missing = {
        each.name
        for each in metrics.DRIVER + metrics.EXECUTOR + metrics.BOTH
        if not shown & {each.name, *(f"{each.name}_{part}" for part in ("bucket", "sum", "count"))}
    }
    assert missing == NOT_SHOWN


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("sum(tailrace_lag_record)", "no metric tailrace_lag_record"),
        ("rate(tailrace_batch_seconds[5m])", "no metric tailrace_batch_seconds"),
        ('tailrace_lag_records{brokers="1"}', "tailrace_lag_records has no label brokers"),
        ("sum by (broker) (tailrace_lag_records)", "none of its metrics has the label broker"),
        ("kube_pod_info == 1", "no metric kube_pod_info"),
        ("vector(1)", "no metric in vector(1)"),
    ],
)
def test_a_missing_metric_or_label_is_found(expression: str, fault: str) -> None:
    """This shows that the tests above can fail."""
    assert faults(expression) == [fault]


def test_an_undeclared_label_is_refused() -> None:
    """It is refused when the dashboards are built."""
    with pytest.raises(ValueError, match="has no label broker"):
        of(metrics.LAG, broker="1")
    with pytest.raises(ValueError, match="histogram"):
        of(metrics.BATCH_SECONDS)
