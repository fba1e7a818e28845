"""What the packages declare: what they import, what they bring along, and what they say about themselves."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import ExtraMissing, all_errors

ROOT = Path(__file__).parents[3]
PACKAGES = {"pipeline": "tailrace", "operators": "tailrace_operator"}
# Modules that only a user of an extra imports, and the extra.
OF_EXTRAS = {
    "cli/cluster.py": "operator",
    "progress/zookeeper.py": "zookeeper",
    "stages/formats/avro.py": "avro",
    "stages/formats/avro_resolution.py": "avro",
    "stages/formats/avro_schema.py": "avro",
    "stages/formats/avro_writer.py": "avro",
    "admin/avro_lines.py": "avro",
    "stages/formats/registry.py": "avro",
    "testing/fixtures.py": "testing",
}
COMES_WITH = {"py4j": "pyspark", "pydantic-core": "pydantic", "urllib3": "kubernetes"}  # pinned by those
KNOWN = packages_distributions()


def project(folder: str) -> dict[str, Any]:
    """Return the metadata of a package."""
    found: dict[str, Any] = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def name(requirement: str) -> str:
    """Return a requirement's bare name."""
    return normal(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0])


def normal(distribution: str) -> str:
    """Spell a distribution's name as PyPI compares names."""
    return distribution.lower().replace("_", "-")


def imported(path: Path) -> Iterator[str]:
    """Yield the distributions that a module imports, wherever it does; type checkers' imports too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        modules = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
        for module in modules:
            top = module.partition(".")[0]
            if top not in sys.stdlib_module_names and top != "tailrace_operator":
                yield normal(KNOWN[top][0])


@pytest.mark.parametrize("folder", PACKAGES)
def test_each_import_is_declared(folder: str) -> None:
    """A package that only another dependency brings along disappears with it."""
    declared = project(folder)
    core = {name(each) for each in declared["dependencies"]} | {"tailrace"}
    extras = {key: {name(each) for each in needed} for key, needed in declared.get("optional-dependencies", {}).items()}
    source = ROOT / folder / "src" / PACKAGES[folder]
    wrong = []
    for path in source.rglob("*.py"):
        place = path.relative_to(source).as_posix()
        allowed = core | extras.get(OF_EXTRAS.get(place, ""), set())
        found = {COMES_WITH.get(each, each) for each in imported(path)}
        wrong += [f"{place} imports {each}" for each in sorted(found - allowed)]
    assert wrong == []


def test_each_extra_is_explained() -> None:
    """`tailrace explain TR-512` and the package's page list them all."""
    extras = project("pipeline")["optional-dependencies"]
    text = (ROOT / "pipeline" / "README.md").read_text(encoding="utf-8")
    assert [each for each in extras if f"`{each}`" not in (ExtraMissing.__doc__ or "")] == []
    assert [each for each in extras if f"`tailrace[{each}]`" not in text] == []


@pytest.mark.parametrize("folder", PACKAGES)
def test_package_contains_the_license(folder: str) -> None:
    """Setuptools finds it next to pyproject.toml."""
    assert (ROOT / folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


# Read by people who have the repository: what a driver's page says without `metrics.runbooks`.
OF_THE_REPOSITORY = {"status.py", "running.py"}


def test_no_message_names_a_file_that_the_package_does_not_have() -> None:
    """Somebody who installed the wheel has commands, but neither docs nor charts."""
    wrong = [
        f"{kind.code}: {text}"
        for kind in all_errors()
        for text in re.findall(r"\S*docs/\S+", inspect.getdoc(kind) or "")
    ]
    for path in (ROOT / "pipeline" / "src").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        wrong += [
            f"{path.name}:{node.lineno}: {node.value}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation
            and re.search(r"\bdocs/|CONTRIBUTING|\bmake (setup|run|test)\b", node.value)
            and path.name not in OF_THE_REPOSITORY
        ]  # fmt: skip
    assert wrong == []
