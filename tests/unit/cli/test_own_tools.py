"""Commands and errors from outside the package, which its entry points name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

OWN = Path(__file__).parents[2] / "support" / "own"


def tailrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line where the user's package is installed."""
    environment = os.environ | {"PYTHONPATH": str(OWN)}
    return subprocess.run(
        [sys.executable, "-m", "tailrace.cli.main", *arguments],
        capture_output=True, text=True, check=False, timeout=60, env=environment,
    )  # fmt: skip


def test_own_command_is_listed_and_runs() -> None:
    """The list names the package, and does not import it."""
    listed = tailrace("--help").stdout
    assert "From the package own-tools." in listed
    done = tailrace("hello", "world")
    assert (done.returncode, done.stdout) == (0, "hello, world\n")
    assert "Whom to greet." in tailrace("hello", "--help").stdout


def test_own_error_ends_the_command_with_its_code_and_is_explained() -> None:
    """It has the exit code of its group, and `explain` knows it."""
    done = tailrace("hello")
    assert done.returncode == 2
    assert done.stderr == (
        "OWN-101 greeting missing: no name was given\n  kept safe: nothing was done\n  next: tailrace hello NAME\n"
        "  more: tailrace explain OWN-101\n"
    )
    assert "There is nobody to greet." in tailrace("explain", "own-101").stdout


@pytest.mark.parametrize("command", [["broken"], ["broken", "--help"]])
def test_own_command_that_cannot_be_loaded_is_named(command: list[str]) -> None:
    """All other commands work."""
    done = tailrace(*command)
    assert done.returncode == 2
    assert "the command broken of the package own-tools cannot be loaded: AttributeError" in done.stderr
    assert tailrace("explain", "TR-101").returncode == 0


def test_own_errors_that_cannot_be_loaded_do_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What explains errors must work when nothing else does."""
    folder = tmp_path / "torn-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.4\nName: torn\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[tailrace.errors]\ntorn = torn_module\n")
    monkeypatch.setattr(sys.modules[__name__], "OWN", tmp_path)
    done = tailrace("explain", "TR-101")
    assert done.returncode == 0
    assert "the errors in torn_module cannot be loaded: ModuleNotFoundError" in done.stderr
    assert done.stdout.startswith("TR-101 ")
