"""A run of tests that has a limit: what fails is told at once, and what has not begun in time is told as not run.

A run that is ended from outside tells nothing: neither which test has failed, nor which ones are left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

UNTIL = "TESTS_UNTIL"  # seconds since the epoch, after which no further test begins


def until() -> int | None:
    """Return the moment after which no test begins, if the run has one."""
    told = os.environ.get(UNTIL)
    return int(told) if told else None


def late(end: int | None, now: float) -> bool:
    """Return whether no further test may begin."""
    return end is not None and now > end


def turned(items: list[pytest.Item], by: int) -> list[pytest.Item]:
    """Begin with the tests of another file, so that the same ones are not always left."""
    files = list(dict.fromkeys(item.path for item in items))
    if not files:
        return items
    first = by % len(files)
    rank = {path: (place - first) % len(files) for place, path in enumerate(files)}
    return sorted(items, key=lambda item: rank[item.path])


def in_order(items: list[pytest.Item], end: int | None, takes: Callable[[pytest.Item], float]) -> list[pytest.Item]:
    """Start with the longest tests, so that no process works alone at the end.

    A run with a limit begins with another file each time instead: with the longest, it would always leave the short.
    """
    return sorted(items, key=takes, reverse=True) if end is None else turned(items, end)


class Deadline:
    """Skips what would begin too late."""

    def __init__(self, end: int | None) -> None:
        self._end = end

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip the test before its fixtures are made."""
        if late(self._end, time.time()):
            pytest.skip("NOT run: the time of this run is over")


class Telling:
    """Prints each failure when it happens."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config  # it has no reporter yet

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print what the summary will repeat, if the run lasts until then."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and reporter is not None:
            reporter.write_line("")
            reporter.write_sep("!", f"{report.nodeid} ({report.when})")
            reporter.write_line(report.longreprtext)
            reporter.flush()
