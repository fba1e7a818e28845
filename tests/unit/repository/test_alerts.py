"""The alerts: each has a runbook and tests, uses existing metrics, and passes promtool's checks and tests."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.packages import program
from support.promql import faults

ROOT = Path(__file__).parents[3]
RULES = sorted((ROOT / "charts" / "tailrace" / "rules").glob("*.yaml"))
RUNBOOKS = ROOT / "docs" / "runbooks"
TESTS = ROOT / "tests" / "rules"
QUERY = re.compile(r'printf "((?:[^"\\]|\\.)*)"[^|]*\| query')


def rule(file: Path) -> dict[str, Any]:
    """Return the only alert of a file."""
    [group] = yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
    [found] = group["rules"]
    assert group["name"] == f"tailrace-{file.stem}"
    return dict(found)


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    """Run promtool."""
    command = [program("promtool", "prometheus"), *words]
    return subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=60, check=False)


def test_each_alert_has_its_runbook_and_its_tests() -> None:
    """The three folders have files of the same names, and no others."""
    names = {file.stem for file in RULES}
    assert len(names) == 11
    assert {file.stem for file in RUNBOOKS.glob("*.md")} == names
    assert {file.stem for file in TESTS.glob("*.yaml")} == names
    alerts = [rule(file)["alert"] for file in RULES]
    assert len(set(alerts)) == len(alerts)


@pytest.mark.parametrize("file", RULES, ids=lambda file: file.stem)
def test_an_alert_has_what_the_person_on_call_needs(file: Path) -> None:
    """It has its severity, the pipeline, the values, and the page to open."""
    found = rule(file)
    assert found["for"]
    assert found["labels"]["severity"] in {"critical", "warning"}
    notes = found["annotations"]
    assert "{{ $labels.pipeline }}" in notes["summary"]
    assert "$value" in notes["summary"] or "query" in notes["description"]
    assert notes["description"]
    page = ROOT / notes["runbook_url"]
    assert page == RUNBOOKS / f"{file.stem}.md"
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {found['alert']}\n\n**{found['labels']['severity'].capitalize()}.**")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["What it means", "What is safe", "What to look at", "What to do"]


@pytest.mark.parametrize("file", RULES, ids=lambda file: file.stem)
def test_an_alert_names_only_what_is_exported(file: Path) -> None:
    """This covers its expression and the queries of its annotations."""
    found = rule(file)
    assert faults(found["expr"]) == []
    asked = QUERY.findall(found["annotations"]["description"])
    assert len(asked) == found["annotations"]["description"].count("| query")
    assert [fault for each in asked for fault in faults(each.replace("'%s'", '"x"'))] == []


def test_the_page_of_alerts_lists_them() -> None:
    """Each has its severity and a link to the runbook."""
    page = (ROOT / "docs" / "how-to" / "alert-on-what-matters.md").read_text(encoding="utf-8")
    for file in RULES:
        found = rule(file)
        row = f"| [{found['alert']}](../runbooks/{file.stem}.md) | {found['labels']['severity']} |"
        assert row in page


def test_promtool_accepts_the_rules() -> None:
    """It checks the syntax of the files, the expressions and the templates."""
    done = promtool("check", "rules", *map(str, RULES))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SUCCESS: 1 rules found") == len(RULES)


def test_each_alert_fires_when_it_should_and_only_then() -> None:
    """promtool runs tests/rules; each file has cases in which its alert fires, and cases in which it does not."""
    for file in sorted(TESTS.glob("*.yaml")):
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        alert = rule(ROOT / "charts" / "tailrace" / "rules" / file.name)["alert"]
        cases = [case for each in content["tests"] for case in each["alert_rule_test"]]
        assert {case["alertname"] for case in cases} == {alert}
        assert {bool(case.get("exp_alerts")) for case in cases} == {True, False}, file.name
    done = promtool("test", "rules", *sorted(each.name for each in TESTS.glob("*.yaml")))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SUCCESS") == len(RULES)
