"""The campaign's report: what counts as a success, what is written where, and which scenarios exist."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from faults.bytest import rows
from faults.campaign import Findings
from faults.report import BEGIN, END, as_data, from_data, text, write
from faults.scenario import Expect, Result, every
from faults.scenarios.b_crashes import NAMES
from faults.scenarios.e_change import EXPIRED, KEPT, REFUSED
from tailrace.crash_points import Point

GOOD = Result("a fault", runs=3, records=3000, group="Group")


@pytest.mark.parametrize("what", ["lost", "duplicated", "reordered", "torn", "lingering", "ids"])
def test_one_wrong_record_fails_the_campaign(what: str) -> None:
    """Any kind of wrong record fails it."""
    assert Findings(1, True, [GOOD]).good
    assert not Findings(1, True, [GOOD, GOOD.plus(**{what: 1})]).good


@pytest.mark.parametrize(
    ("result", "good"),
    [
        (replace(GOOD, runs=0), False),  # it never struck
        (replace(GOOD, expect=Expect.REFUSED), False),  # it continued
        (replace(GOOD, expect=Expect.REFUSED, refused=3), True),
        (replace(GOOD, expect=Expect.FAULT), False),  # a control that shows nothing
        (replace(GOOD, expect=Expect.FAULT, duplicated=1), True),
        (replace(GOOD, expect=Expect.ANYTHING, duplicated=1, native=True), True),
    ],
)
def test_the_expectation_decides_about_success(result: Result, good: bool) -> None:
    """A control run must show its fault, a refusal must have happened, and a fault that never struck does not count."""
    assert Findings(1, True, [result]).good is good


def test_a_campaign_without_results_or_with_a_broken_scenario_has_failed() -> None:
    """The other scenarios make no difference."""
    assert not Findings(1, True).good
    assert not Findings(1, True, [GOOD], {"name": "it broke"}).good


def test_totals_count_each_record_once_and_exclude_sparks_sink() -> None:
    """Two faults may have struck the same batch."""
    found = Findings(1, True, [GOOD, replace(GOOD, again=1000), replace(GOOD, native=True)])
    assert (found.runs, found.records) == (6, 5000)


def test_the_table_replaces_only_what_is_between_its_markers(tmp_path: Path) -> None:
    """The file has every number."""
    page, file = tmp_path / "page.md", tmp_path / "folder" / "faults.json"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    native = replace(GOOD, native=True, duplicated=77, expect=Expect.ANYTHING)
    findings = Findings(7, False, [GOOD, native], seconds=60.0)
    write(findings, page, file)
    written = page.read_text()
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert "old" not in written
    assert "| a fault | 3 | 3,000 | 0 | 0 | 0 | 0 |" in written
    assert "| a fault | 3 | 3,000 | 0 | 77 | 0 | 3 | 3,000 | 0 | 0 | 0 |" in written
    data = json.loads(file.read_text())
    assert (data["seed"], data["runs"], data["results"][1]["duplicated"]) == (7, 3, 77)
    write(findings, page, file)
    assert page.read_text() == written


def test_a_page_without_the_markers_is_refused(tmp_path: Path) -> None:
    """It is not overwritten."""
    (tmp_path / "page.md").write_text("text")
    with pytest.raises(ValueError, match="has no place"):
        write(Findings(1, True, [GOOD]), tmp_path / "page.md", tmp_path / "f.json")


def test_a_failure_is_marked_in_its_row() -> None:
    """The exit code alone would not be enough."""
    assert "NOT AS EXPECTED" in text(Findings(1, True, [GOOD.plus(lost=1)]))
    assert "NOT AS EXPECTED" not in text(Findings(1, True, [GOOD]))


def test_the_scenarios_are_found_and_every_crash_point_has_a_name() -> None:
    """A new point that no scenario strikes is noticed here."""
    names = {each.name for each in every()}
    assert {"task-points", "driver-points", "kills", "native-kills"} <= names
    assert set(NAMES) == set(Point)


REPORT = """<testsuites><testsuite>
<testcase classname="tests.x.test_y" name="test_a[1]"><properties><property name="records" value="5"/></properties>
</testcase>
<testcase classname="tests.x.test_y" name="test_a[2]"/>
<testcase classname="tests.x.test_y" name="test_b"><skipped/></testcase>
</testsuite></testsuites>"""


def test_results_of_tests_become_rows() -> None:
    """Parameters add up; a skipped or missing test is a broken scenario."""
    nodes = {"tests/x/test_y.py::test_a": "a"}
    [row] = rows(REPORT, nodes, Expect.REFUSED)
    assert (row.runs, row.records, row.refused, row.as_expected) == (2, 5, 2, True)
    for missing in ("test_b", "test_c"):
        with pytest.raises(RuntimeError, match="no test reported: b"):
            rows(REPORT, nodes | {f"tests/x/test_y.py::{missing}": "b"}, Expect.EXACT)


def test_resumed_campaign_skips_finished_scenarios() -> None:
    """A broken scenario runs again and its result is replaced; earlier results stay, and the sittings are counted."""
    first, last = replace(GOOD, scenario="one"), replace(GOOD, scenario="three")
    stored = from_data(as_data(Findings(1, False, [first, last], {"two": "it broke"}, 60.0)))
    assert not stored.good
    again = Findings(1, False, [replace(GOOD, scenario="two", runs=7)], seconds=30.0)
    combined = stored.without(["two"]).and_then(again, ["one", "two", "three"])
    assert [each.scenario for each in combined.results] == ["one", "two", "three"]
    assert combined.good
    assert "13 fault runs over 9,000 records" in text(combined)
    assert "in 2 sittings" in text(combined)
    assert "sittings" not in text(stored)


@pytest.mark.parametrize("node", [*REFUSED, *EXPIRED, *KEPT])
def test_fault_shown_by_a_test_names_an_existing_test(node: str) -> None:
    """A full campaign is the wrong place to find out that a test was renamed."""
    file, _, name = node.partition("::")
    assert f"def {name}(" in (Path(__file__).parents[3] / file).read_text(encoding="utf-8")
