"""Images leave out what their containers never run; what they name must exist, and nothing that stays may need it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "pipeline" / "src" / "tailrace"


def removed(image: str) -> list[str]:
    """Return the parts of the package that an image's Dockerfile removes."""
    text = (ROOT / "images" / image / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    [words] = re.findall(r"site-packages/tailrace\s*&& rm -rf ([^&]+?)\s*&&", text)
    return [word for word in words.split() if not word.startswith("/")]


def excused(tree: ast.AST) -> set[ast.AST]:
    """Return the nodes of imports that may fail: for the types alone, or where the module says what is missing."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        types = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        said = isinstance(node, ast.Try) and any(
            isinstance(each.type, ast.Name) and each.type.id == "ImportError" for each in node.handlers
        )
        if types or said:
            found |= {each for line in node.body for each in ast.walk(line)}  # type: ignore[attr-defined]
    return found


def imported(path: Path) -> set[str]:
    """Return the modules that a module needs, wherever it imports them."""
    found = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left = excused(tree)
    for node in ast.walk(tree):
        if node in left:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found


@pytest.mark.parametrize("image", ["driver", "executor"])
def test_image_removes_parts_of_the_package_that_exist(image: str) -> None:
    """A room that was renamed would otherwise stay in the image unnoticed."""
    assert removed(image)
    assert [part for part in removed(image) if not (PACKAGE / part).exists()] == []


@pytest.mark.parametrize("image", ["driver", "executor"])
def test_nothing_that_stays_in_an_image_imports_what_is_removed(image: str) -> None:
    """Lazy imports count too; the package's own front door may lead to what a driver alone needs."""
    gone = {f"tailrace.{part.removesuffix('.py').replace('/', '.')}" for part in removed(image)}
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        name = f"tailrace.{'.'.join(path.relative_to(PACKAGE).with_suffix('').parts)}"
        if path == PACKAGE / "__init__.py" or any(name == each or name.startswith(f"{each}.") for each in gone):
            continue
        needed = {each for each in imported(path) for part in gone if each == part or each.startswith(f"{part}.")}
        wrong += [f"{name} imports {each}" for each in sorted(needed)]
    assert wrong == []
