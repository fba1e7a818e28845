"""What a world can run of the engine, as a digest: a world counts until that changes.

A driver without Spark imports a part of the engine. Code outside that part cannot change what such a world has shown;
in any other place, all of the engine may take part.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from faults.worlds.mutants import SOURCE
from faults.worlds.world import Place

# What decides whether a record is lost: everything that a pipeline runs, but how it is told and shown.
ROOMS = ("config", "driver", "gateway", "kafka", "progress", "spark_stream", "stages", "startup")

_TESTS = Path(__file__).resolve().parents[2]
# What such a world runs of the engine, in processes of its own.
WITHOUT_SPARK = ("faults.worlds.thread_driver", "tailrace.admin.offsets", "tailrace.admin.replay")
_COMMANDS = "admin"  # the room of commands, of which worlds run three: offsets set, a backfill and a replay


def engine(place: Place | None = None, source: Path = SOURCE) -> str:
    """Return a digest of the code that a world in this place can run, or one in any place.

    Comments, docstrings and layout do not change it.
    """
    ran = modules_of(WITHOUT_SPARK, (source.parent, _TESTS))
    every = {file for room in (*ROOMS, _COMMANDS) for file in (source / room).rglob("*.py")} & ran
    if place is not Place.THREADS:
        every |= {file for room in ROOMS for file in (source / room).rglob("*.py")}
    found = hashlib.sha256()
    for file in sorted(every):
        found.update(f"{file.relative_to(source)}\n{ast.dump(_code(file, file.stat().st_mtime_ns))}\n".encode())
    return found.hexdigest()[:16]


def modules_of(names: Iterable[str], roots: tuple[Path, ...]) -> frozenset[Path]:
    """Return the files of modules and of all that they import from these folders, there or later in a function."""
    found: set[Path] = set()
    left = list(names)
    while left:
        module = left.pop()
        file = _file(module, roots)
        if file is None or file in found:
            continue
        found.add(file)
        left += _imports(file, file.stat().st_mtime_ns)
        left += [module.rpartition(".")[0]] * ("." in module)
    return frozenset(found)


def _file(module: str, roots: tuple[Path, ...]) -> Path | None:
    place = Path(*module.split("."))
    for root in roots:
        for file in (root / place.with_suffix(".py"), root / place / "__init__.py"):
            if file.exists():
                return file
    return None


@cache  # a campaign asks after each world, and parsing takes a second
def _code(file: Path, changed: int) -> ast.Module:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return tree


@cache
def _imports(file: Path, changed: int) -> tuple[str, ...]:
    return tuple(_imported(_code(file, changed)))


def _imported(node: ast.AST) -> Iterator[str]:
    """Name what is imported; a relative import would be left out, and the project has none."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return  # never run
    if isinstance(node, ast.Import):
        yield from (each.name for each in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        yield node.module
        yield from (f"{node.module}.{each.name}" for each in node.names)
    for child in ast.iter_child_nodes(node):
        yield from _imported(child)
