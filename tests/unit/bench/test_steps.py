"""The steps of a batch, and a page of several runs, in the sink benchmark."""

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
    """The events of one batch."""
    done = {"event": "written", "batch": number, "seconds": seconds, "commit_ms": commit}
    return [(planned, {"event": "planned", "batch": number}), (written, done)]


THREE = [
    *batch(4, 10.0, 10.1, 0.1, 3.0),
    (10.1, {"event": "idle"}),
    *batch(5, 10.125, 10.25, 0.1, 5.0),
    *batch(6, 10.3, 10.5, 0.125, 7.0),
]


def test_steps_of_a_batch_add_up_to_the_time_from_one_end_to_the_next() -> None:
    """Medians of two batches; the first has no end before it to count from."""
    found = steps(THREE)
    assert found == pytest.approx({"whole": 200, "plan": 37.5, "job": 112.5, "commit": 6.0, "rest": 50})
    assert found["whole"] == pytest.approx(found["plan"] + found["job"] + found["rest"])


def test_steps_count_the_batches_of_the_measured_time_alone() -> None:
    """The warm-up and what comes behind are left out; where nothing is left, nothing is said."""
    assert steps(THREE, 10.2, 10.4) == pytest.approx({"whole": 150, "plan": 25, "job": 100, "commit": 5, "rest": 25})
    assert steps(THREE, 11.0, 12.0) == {}


def measured(workload: str, name: str, p50: float) -> Results:
    """A run of one workload, on both sides."""
    found = [
        Measured(workload, NATIVE, 1, {"p50": 1.0, "rate": 1.0}, {}),
        Measured(workload, TAILRACE, 1, {"p50": p50, "rate": 1.0}, {}, steps=steps(THREE)),
    ]
    return Results(QUICK, False, "1g", {"cores": "2"}, found, seconds={name: 60.0})


def test_workload_that_is_measured_anew_replaces_its_own_figures_alone() -> None:
    """And the page says which workloads come from which run."""
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
    """Nor those of another scale."""
    one = measured("raw", "raw", 1.0)
    assert one.alike(measured("latency_1k", "latency", 1.0))
    assert not one.alike(dataclasses.replace(one, machine={"cores": "4"}))
    assert not one.alike(dataclasses.replace(one, tuned=True))


def test_page_has_a_line_of_steps_for_each_workload_of_ours() -> None:
    """Spark's side has no such steps."""
    lines = sink_report.by_step(measured("latency_1k", "latency", 1.0)).splitlines()
    assert len(lines) == 3
    assert lines[2] == "| latency_1k | Tailrace | 200.0 | 37.5 | 112.5 | 6.0 | 50.0 |"
