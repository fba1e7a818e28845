"""`tailrace completion`: the scripts, sourced by the shells themselves as far as they are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TAILRACE = f"{sys.executable} -m tailrace.cli.main"
BASH = """
eval "$(tailrace completion bash)"
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _tailrace "${{COMP_WORDS[0]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """
compdef() {{ : }}; compadd() {{ shift; print -l -- "$@" }}; _files() {{ : }}
eval "$(tailrace completion zsh)"
words=({words}); CURRENT=${{#words}}; _tailrace
"""
FISH = "tailrace completion fish | source; complete -C '{line}'"


@pytest.fixture
def on_path(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which `tailrace` is this one."""
    script = tmp_path / "tailrace"
    script.write_text(f'#!/bin/sh\nexec {TAILRACE} "$@"\n')
    script.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("tailrace off", {"offsets"}),
        ("tailrace rejected sh", {"show"}),
        ("tailrace doctor --o", {"--option", "--output"}),
        ("tailrace doctor --output y", {"yaml"}),
    ],
)
def test_shells_complete_commands_options_and_values(
    shell: str, line: str, found: set[str], on_path: dict[str, str]
) -> None:
    """Commands of commands are completed as well, and options with their values."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = {"bash": BASH, "zsh": ZSH, "fish": FISH}[shell].format(words=line, line=line)
    done = subprocess.run([shell, "-c", script], capture_output=True, text=True, env=on_path, timeout=60, check=False)
    assert set(done.stdout.split()) == found, done.stderr


def test_completion_of_an_unknown_shell_is_refused() -> None:
    """The usage error lists the shells."""
    done = subprocess.run(
        [*TAILRACE.split(), "completion", "csh"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert all(shell in done.stderr for shell in ("bash", "zsh", "fish"))
