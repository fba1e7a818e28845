"""The steps of a batch in the sink benchmark, and a page that combines several runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from bench import sink_report
from bench.figures import Measured
from bench.sink_report import Results
from bench.steps import steps
from bench.workloads import NATIVE, QUICK, TAILRACE


def batch(number: int, planned: float, written: float, seconds: float, commit: float) -> list[tuple[float, Any]]:
    """Return the events of one batch."""
    done = {"event": "written", "batch": number, "seconds": seconds, "commit_ms": commit}
    return [(planned, {"event": "planned", "batch": number}), (written, done)]


THREE = [
    *batch(4, 10.0, 10.1, 0.1, 3.0),
    (10.1, {"event": "idle"}),
    *batch(5, 10.125, 10.25, 0.1, 5.0),
    *batch(6, 10.3, 10.5, 0.125, 7.0),
]


def test_steps_of_a_batch_add_up_to_the_time_since_the_previous_end() -> None:
    """They are medians of two batches; the first batch has no earlier end to count from."""
    found = steps(THREE)
    assert found == pytest.approx({"whole": 200, "plan": 37.5, "job": 112.5, "commit": 6.0, "rest": 50})
    assert found["whole"] == pytest.approx(found["plan"] + found["job"] + found["rest"])


def test_steps_count_only_batches_of_the_measured_time() -> None:
    """Batches of the warm-up and after the end are left out; if none remain, there are no steps."""
    assert steps(THREE, 10.2, 10.4) == pytest.approx({"whole": 150, "plan": 25, "job": 100, "commit": 5, "rest": 25})
    assert steps(THREE, 11.0, 12.0) == {}


def measured(workload: str, name: str, p50: float) -> Results:
    """Return a run of one workload, on both sides."""
    found = [
        Measured(workload, NATIVE, 1, {"p50": 1.0, "rate": 1.0}, {}),
        Measured(workload, TAILRACE, 1, {"p50": p50, "rate": 1.0}, {}, steps=steps(THREE)),
    ]
    return Results(QUICK, False, "1g", {"cores": "2"}, found, seconds={name: 60.0})


def test_remeasured_workload_replaces_only_its_own_figures() -> None:
    """The page says which workloads come from which run."""
    first = dataclasses.replace(
        measured("raw", "raw", 1.0),
        found=[*measured("raw", "raw", 1.0).found, *measured("latency_1k", "latency", 0.9).found],
        seconds={"raw": 60.0, "latency": 120.0},
    )
    assert sink_report.took(first) == "The benchmark took 3 minutes."
    both = measured("latency_1k", "latency", 0.5).onto(first)
    assert [(each.workload, each.values["p50"]) for each in both.found if each.variant == TAILRACE] == [
        ("raw", 1.0),
        ("latency_1k", 0.5),
    ]
    assert both.runs == [["raw"], ["latency"]]
    assert sink_report.took(both) == (
        "The figures are from 2 runs, one after another: raw in 1 minutes; latency in 1 minutes."
    )
    again = measured("raw", "raw", 2.0).onto(both)
    assert again.runs == [["latency"], ["raw"]]


def test_runs_of_different_machines_or_settings_are_not_mixed() -> None:
    """Runs of another scale are refused too."""
    one = measured("raw", "raw", 1.0)
    assert one.alike(measured("latency_1k", "latency", 1.0))
    assert not one.alike(dataclasses.replace(one, machine={"cores": "4"}))
    assert not one.alike(dataclasses.replace(one, tuned=True))


def test_page_has_a_line_of_steps_for_each_workload_of_tailrace() -> None:
    """Spark's side has no such steps."""
    lines = sink_report.by_step(measured("latency_1k", "latency", 1.0)).splitlines()
    assert len(lines) == 3
    assert lines[2] == "| latency_1k | Tailrace | 200.0 | 37.5 | 112.5 | 6.0 | 50.0 |"
