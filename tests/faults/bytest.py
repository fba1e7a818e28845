"""Fault scenarios made of pytest tests: pytest runs in its own process, and each fault becomes a row of the table.

A test may report counts with pytest's `record_property`: records, runs, lost, duplicated, reordered, torn, refused,
note. If a test fails, its scenario broke.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from faults.scenario import Context, Expect, Result, Scenario

ROOT = Path(__file__).parents[2]
LIMIT = 1800.0
_NUMBERS = ("records", "runs", "lost", "duplicated", "reordered", "torn", "lingering", "ids", "refused")


def by_test(
    name: str,
    group: str,
    promise: str,
    faults: Mapping[str, str],
    *,
    quick: bool = False,
    expect: Expect = Expect.EXACT,
) -> Scenario:
    """Make a scenario of tests; `faults` maps each pytest node to its fault's name in the table."""

    def act(context: Context) -> Sequence[Result]:
        return run(context, faults, expect)

    return Scenario(name, group, promise, act, quick=quick)


def run(context: Context, faults: Mapping[str, str], expect: Expect) -> list[Result]:
    """Run the tests and read their report."""
    report = context.folder / "tests.xml"
    # Only this family of reports holds the properties of `record_property`.
    command = [sys.executable, "-m", "pytest", "-q", "-o", "junit_family=xunit1", f"--junitxml={report}", *faults]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (context.folder / "tests.log").open("wb") as log:
        ended = subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=log, timeout=LIMIT, check=False)
    if ended.returncode:
        text = (context.folder / "tests.log").read_text(errors="replace")
        raise RuntimeError(f"pytest ended with {ended.returncode}:\n{text[-3000:]}")
    return rows(report.read_text(encoding="utf-8"), faults, expect)


def rows(report: str, faults: Mapping[str, str], expect: Expect) -> list[Result]:
    """Return a result for each fault, adding up the runs of a parametrized test; a skipped test counts as no run."""
    found: dict[str, Result] = {}
    for case in ET.fromstring(report).iter("testcase"):
        node = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name', '').partition('[')[0]}"
        fault = next((fault for each, fault in faults.items() if each.partition("[")[0] == node), None)
        if fault is None or case.find("skipped") is not None:
            continue
        reported = {each.get("name", ""): each.get("value", "") for each in case.iter("property")}
        result = found.get(fault, Result(fault, runs=0, records=0, expect=expect))
        counts = {each: int(reported[each]) for each in _NUMBERS if each in reported}
        counts.setdefault("runs", 1)
        if expect is Expect.REFUSED:
            counts.setdefault("refused", counts["runs"])  # the test passes only if it was refused
        found[fault] = replace(result.plus(**counts), note=reported.get("note", result.note))
    missing = sorted(set(faults.values()) - set(found))
    if missing:
        raise RuntimeError(f"no test reported: {', '.join(missing)}")
    return list(found.values())
