"""A run of tests with a limit, by a small run of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support import deadline

_CONFTEST = """
from support import deadline

def pytest_configure(config):
    config.pluginmanager.register(deadline.Deadline(deadline.until()))
    config.pluginmanager.register(deadline.Telling(config))
"""
_TESTS = """
import os

def test_of_a_wrong_sum():
    assert 1 + 1 == 3

def test_that_ends_the_run():
    os._exit(3)
"""


def run(folder: Path, end: float | None) -> subprocess.CompletedProcess[str]:
    """Run two tests, of which the second ends the process."""
    (folder / "conftest.py").write_text(_CONFTEST, encoding="utf-8")
    (folder / "test_two.py").write_text(_TESTS, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(Path(deadline.__file__).parents[1])}
    env.pop(deadline.UNTIL, None)
    if end is not None:
        env[deadline.UNTIL] = str(int(end))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "-c", os.devnull, "--rootdir", "."]
    return subprocess.run([*command, "test_two.py"], cwd=folder, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("end", [None, time.time() + 86_400], ids=["no limit", "time is left"])
def test_failure_is_told_although_the_run_is_ended_before_its_summary(tmp_path: Path, end: float | None) -> None:
    """Show the failed test with its values by the time that the process is gone."""
    ended = run(tmp_path, end)
    assert ended.returncode == 3
    assert "test_two.py::test_of_a_wrong_sum (call)" in ended.stdout
    assert "assert 1 + 1 == 3" in ended.stdout


def test_no_test_begins_after_the_limit(tmp_path: Path) -> None:
    """Count what was left as not run, and end well."""
    ended = run(tmp_path, time.time() - 60)
    assert ended.returncode == 0, ended.stdout
    assert "2 skipped" in ended.stdout
    assert "NOT run: the time of this run is over" in ended.stdout


def item(file: str, name: str) -> Any:
    """Return what is needed of a test: its file."""
    return SimpleNamespace(path=Path(file), name=name)


@pytest.mark.parametrize(
    ("by", "first"), [(0, ["a1", "a2", "b1", "c1"]), (1, ["b1", "c1", "a1", "a2"]), (5, ["c1", "a1", "a2", "b1"])]
)
def test_runs_with_a_limit_begin_with_another_file_each(by: int, first: list[str]) -> None:
    """Turn the files, and keep the tests of each together and in order."""
    tests = [item("a.py", "a1"), item("a.py", "a2"), item("b.py", "b1"), item("c.py", "c1")]
    assert [each.name for each in deadline.turned(tests, by)] == first


def test_short_tests_come_last_only_in_a_run_without_a_limit() -> None:
    """With a limit, the same ones would be left each time."""
    tests = [item("a.py", "short"), item("b.py", "long")]
    assert [each.name for each in deadline.in_order(tests, None, lambda it: len(it.name))] == ["short", "long"]
    assert [each.name for each in deadline.in_order(tests, None, lambda it: -len(it.name))] == ["long", "short"]
    assert [each.name for each in deadline.in_order(tests, 0, lambda it: -len(it.name))] == ["short", "long"]


def test_run_of_no_tests_has_nothing_to_turn() -> None:
    """Return an empty selection as it is."""
    assert deadline.turned([], 7) == []
