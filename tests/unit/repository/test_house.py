"""The house rules that no tool enforces: on modules, their contents, and what the repository may name."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace

ROOT = Path(__file__).parents[3]
LONGEST = 350  # maximum number of lines in a module
PUBLIC = ["Pipeline", "exactly_once", "preview", "register", "run"]
# Written so that this line does not match itself.
OF_A_MACHINE = re.compile(r"(?<![\w.$}~-])/(?:ro{2}t|wor[k])(?![\w.-])")

SOURCES = [*(ROOT / "pipeline" / "src").rglob("*.py"), *(ROOT / "operators" / "src").rglob("*.py")]
TESTS = [*(ROOT / "tests").rglob("*.py")]


def parsed(path: Path) -> ast.Module:
    """Return the module's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def shown(path: Path, node: ast.stmt | ast.expr | None = None) -> str:
    """Return a place as a message shows it."""
    return f"{path.relative_to(ROOT)}{f':{node.lineno}' if node else ''}"


def committed() -> list[Path]:
    """Return the files that git tracks, or would add, in the work tree."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if listing.returncode:
        pytest.skip(f"only a git checkout knows its files: {listing.stderr.strip()}")
    return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def calls(tree: ast.Module, name: str) -> Iterator[ast.Call]:
    """Yield the calls of a function by its bare name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            yield node


def test_modules_are_found() -> None:
    """Otherwise a moved package would pass all the other tests."""
    assert {"loop.py", "crd.py", "main.py"} <= {path.name for path in SOURCES}
    assert Path(__file__) in TESTS


def test_each_module_has_a_docstring() -> None:
    """It is the first thing that a reader sees."""
    assert [shown(path) for path in (*SOURCES, *TESTS) if not ast.get_docstring(parsed(path))] == []


def test_no_module_exceeds_the_length_limit() -> None:
    """A longer module should be two."""
    lengths = {shown(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_invariants_raise_instead_of_assert() -> None:
    """`python -O` removes assert statements."""
    found = [shown(path, node) for path in SOURCES for node in ast.walk(parsed(path)) if isinstance(node, ast.Assert)]
    assert found == []


def test_only_the_command_line_prints() -> None:
    """A user cannot redirect what a library prints."""
    outside = [path for path in SOURCES if "cli" not in path.parts]
    assert [shown(path, call) for path in outside for call in calls(parsed(path), "print")] == []


def test_the_public_names_are_fixed() -> None:
    """Adding or removing a name is a decision, and each name can be imported."""
    assert sorted(tailrace.__all__) == PUBLIC
    assert [name for name in PUBLIC if not callable(getattr(tailrace, name))] == []


def test_each_test_has_a_docstring() -> None:
    """It is a sentence that begins with a capital and ends with a full stop."""
    wrong = []
    for path in TESTS:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                text = ast.get_docstring(node) or ""
                if not re.fullmatch(r"\S.*\.", text, re.DOTALL):
                    wrong.append(f"{shown(path, node)} {node.name}")
    assert wrong == []


def test_no_file_names_a_path_of_a_machine() -> None:
    """The repository works wherever it is cloned."""
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
def test_a_path_of_a_machine_is_recognised(text: str, found: bool) -> None:
    """Only absolute paths match, and only in those folders."""
    assert bool(OF_A_MACHINE.search(text)) is found
