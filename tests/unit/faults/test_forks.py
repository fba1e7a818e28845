"""A forked driver is to its world what a new process would be."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from faults.worlds.forks import ForkedDriver
from tailrace import crash_points
from tailrace.crash_points import Point
from tailrace.demo.driver import Driver

_LIMIT = 60.0
_PROGRAM = """
import json, os, sys
from tailrace import crash_points
print(json.dumps({
    "event": "told", "arguments": sys.argv[1:], "folder": os.getcwd(), "word": os.environ.get("WORD"),
    "home": "HOME" in os.environ, "leads": os.getsid(0) == os.getpid(),
}))
sys.stderr.write("a word for the log\\n")
sys.stdout.flush()
crash_points.at(crash_points.Point.PLAN_WRITTEN, 4)
sys.exit(3)
"""

pytestmark = pytest.mark.parametrize("kind", [Driver, ForkedDriver])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a program that tells what it sees, and ends with 3."""
    (tmp_path / "program.py").write_text(_PROGRAM)
    return tmp_path


def test_process_has_its_arguments_environment_folder_session_and_log(kind: type[Driver], folder: Path) -> None:
    """What a driver is given reaches it, and so do its output and exit code reach the world."""
    driver = kind(["-m", "program", "one", "two"], {"WORD": "given"}, folder)
    assert _ended(driver) == 3
    (heard,) = driver.rest()
    assert heard.event == {
        "event": "told", "arguments": ["one", "two"], "folder": str(folder), "word": "given", "home": True,
        "leads": True,
    }  # fmt: skip
    assert driver.last_lines().strip() == "a word for the log"


def test_process_dies_at_its_own_crash_point(kind: type[Driver], folder: Path) -> None:
    """A crash that its environment plans happens, once, and is seen as a kill."""
    planned = crash_points.crashes(folder / "marks", crash_points.Crash(Point.PLAN_WRITTEN, 4))
    codes = [_ended(kind(["-m", "program"], planned, folder)) for _ in range(2)]
    assert codes == [-signal.SIGKILL, 3]


def test_process_is_killed_and_seen_to_be(kind: type[Driver], folder: Path) -> None:
    """A driver that has not ended has no exit code; after a kill it has that of the signal."""
    (folder / "waiting.py").write_text("import time\nprint('{}', flush=True)\ntime.sleep(600)\n")
    driver = kind(["-m", "waiting"], {}, folder)
    assert driver.next(_LIMIT) is not None
    assert driver.code is None
    assert driver.wait(0.01) is None
    assert driver.kill() == 1
    assert _ended(driver) == -signal.SIGKILL


def _ended(driver: Driver) -> int | None:
    code = driver.wait(_LIMIT)
    driver.end(0.0)
    return code
