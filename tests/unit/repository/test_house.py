"""The house rules that no tool holds: what modules may be, what they may hold, and what the repository may name."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace

ROOT = Path(__file__).parents[3]
LONGEST = 350  # lines of a module
PUBLIC = ["Pipeline", "exactly_once", "register", "run"]
# Spelled so that this line is not one of those that it finds.
OF_A_MACHINE = re.compile(r"(?<![\w.$}~-])/(?:ro{2}t|wor[k])(?![\w.-])")

SOURCES = [*(ROOT / "pipeline" / "src").rglob("*.py"), *(ROOT / "operators" / "src").rglob("*.py")]
TESTS = [*(ROOT / "tests").rglob("*.py")]


def parsed(path: Path) -> ast.Module:
    """The module's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def shown(path: Path, node: ast.stmt | ast.expr | None = None) -> str:
    """A place as a message shows it."""
    return f"{path.relative_to(ROOT)}{f':{node.lineno}' if node else ''}"


def committed() -> list[Path]:
    """What git has, or would take, in the work tree."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if listing.returncode:
        pytest.skip(f"only a git checkout knows its files: {listing.stderr.strip()}")
    return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def calls(tree: ast.Module, name: str) -> Iterator[ast.Call]:
    """Where a function is called by its bare name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            yield node


def test_there_are_modules_to_look_at() -> None:
    """A house that was moved would pass all the rest."""
    assert {"loop.py", "crd.py", "main.py"} <= {path.name for path in SOURCES}
    assert Path(__file__) in TESTS


def test_each_module_says_why_it_exists() -> None:
    """Its docstring is the first that a reader sees."""
    assert [shown(path) for path in (*SOURCES, *TESTS) if not ast.get_docstring(parsed(path))] == []


def test_no_module_is_longer_than_can_be_read_at_once() -> None:
    """Beyond the limit a module is two."""
    lengths = {shown(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_what_must_hold_is_raised() -> None:
    """An assert statement is gone under `python -O`."""
    found = [shown(path, node) for path in SOURCES for node in ast.walk(parsed(path)) if isinstance(node, ast.Assert)]
    assert found == []


def test_only_the_command_line_prints() -> None:
    """What a library prints, its user cannot send elsewhere."""
    outside = [path for path in SOURCES if "cli" not in path.parts]
    assert [shown(path, call) for path in outside for call in calls(parsed(path), "print")] == []


def test_the_public_names_are_these() -> None:
    """A name that is added or taken away is a decision, and each one leads somewhere."""
    assert sorted(tailrace.__all__) == PUBLIC
    assert [name for name in PUBLIC if not callable(getattr(tailrace, name))] == []


def test_each_test_says_what_it_is_about() -> None:
    """In a sentence, which begins with a capital and ends with a full stop."""
    wrong = []
    for path in TESTS:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                text = ast.get_docstring(node) or ""
                if not re.fullmatch(r"\S.*\.", text, re.DOTALL):
                    wrong.append(f"{shown(path, node)} {node.name}")
    assert wrong == []


def test_no_file_names_a_path_of_a_machine() -> None:
    """What is in the repository works where it is cloned."""
    found = []
    for path in committed():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [
            f"{shown(path)}:{number}" for number, line in enumerate(text.splitlines(), 1) if OF_A_MACHINE.search(line)
        ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("cd /wor" + "k/main", True),
        ('"/roo' + 't"', True),
        ("/roo" + "t/.cache", True),
        ("file:///wor" + "k/x", True),
        ("/workspace/x", False),
        ("https://example.org/wor" + "k/x", False),
        ("$HOME/wor" + "k/x", False),
        ("./wor" + "k/x", False),
        ("~/wor" + "k/x", False),
    ],
)
def test_a_path_of_a_machine_is_told_from_others(text: str, found: bool) -> None:
    """Absolute ones only, and only those folders."""
    assert bool(OF_A_MACHINE.search(text)) is found
