"""The end-to-end modules that run at the same time: which of them run, and what a failure ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from e2e import together

PASSES, FAILS = "def test_one(): pass", "def test_one(): assert False"
WAITS = "import time\ndef test_one(): time.sleep(100)"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a folder for the modules; one runs alone, then two at the same time."""
    monkeypatch.setattr(together, "HERE", tmp_path)
    monkeypatch.setattr(together, "ROUNDS", (("test_a.py",), ("test_b.py", "test_c.py")))
    return tmp_path


def run(modules: Path, texts: dict[str, str], *arguments: str) -> int:
    """Run modules with these texts."""
    for name, text in texts.items():
        (modules / f"test_{name}.py").write_text(text)
    return together.together(["-q", "-p", "no:tailrace", *arguments], os.environ)


def test_every_module_runs_and_names_its_lines(modules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that fails is told by the exit code, and ends nothing else."""
    assert run(modules, {"a": FAILS, "b": PASSES, "c": PASSES}) == 1
    printed = capsys.readouterr().out
    assert all(each in printed for each in ("a: 1 failed", "b: 1 passed", "c: 1 passed"))


def test_first_failure_ends_the_other_modules_if_asked_to(modules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What failed is printed before a limit ends everything."""
    assert run(modules, {"a": PASSES, "b": FAILS, "c": WAITS}, "--exitfirst") == 1
    assert "c: no tests ran" in capsys.readouterr().out
    assert run(modules, {"a": FAILS, "b": PASSES, "c": PASSES}, "--exitfirst") == 1
    assert "b: " not in capsys.readouterr().out
