"""The files of a user's Python module: the module, and what it imports from its own folder or package.

A batch that was delivered in part may be replayed only with the same code. Importing a module to find its imports would
run it, so the imports are read from its text, transitively. An import by a computed name is not found.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class _Home:
    """Where a module's own imports are looked up: `root` holds its package, or its file and the files next to it."""

    root: Path
    package: str = ""  # only modules of this package are the user's own; empty: everything under `root`

    def files(self, name: str) -> Iterator[Path]:
        """Yield the files of a module: those of the packages above it, and its own."""
        if self.package and name.partition(".")[0] != self.package:
            return
        place = self.root
        for part in name.split("."):
            place = place / part
            for file in (place / "__init__.py", place.with_suffix(".py")):
                if file.is_file():
                    yield file
                    break


def sources(reference: str, folder: Path, path: Sequence[str] | None = None) -> tuple[Path, ...]:
    """Find the files behind `file.py:name` or `package.module:name`, sorted; none if there is no such module.

    Relative files start from `folder`, which is also searched first for packages; then `path` is searched, by default
    sys.path.
    """
    where = reference.rpartition(":")[0]
    if where.endswith(".py"):
        file = (folder / where).resolve()
        found = [file] if file.is_file() else []
        home = _Home(file.parent)
    else:
        homes = _located(where, [str(folder.resolve()), *(sys.path if path is None else path)])
        if path is None and not any(_has(each, where) for each in homes):
            homes = [*_imported(where), *homes]
        if not homes:
            return ()
        # The parts of a package without an __init__.py may lie in several places.
        located = next((each for each in homes if _has(each, where)), homes[0])
        home = located if located.root != folder.resolve() else _Home(located.root)
        found = list(home.files(where))
    known: set[Path] = set()
    while found:
        file = found.pop()
        if file not in known:
            known.add(file)
            found += [each for name in _imports(file, home.root) for each in home.files(name)]
    return tuple(sorted(known))


def _has(home: _Home, where: str) -> bool:
    """Return whether the module itself lies there."""
    own = {where.rpartition(".")[2], "__init__"}
    return any(each.stem in own for each in list(home.files(where))[-1:])


def _located(where: str, path: Sequence[str]) -> list[_Home]:
    """Return where a module's package lies, as Python finds it on a path."""
    top = where.partition(".")[0]
    try:
        return _homes(importlib.machinery.PathFinder.find_spec(top, list(path)), top)
    except (ImportError, ValueError):
        return []


def _imported(where: str) -> list[_Home]:
    """Return where a module's package lies that no path leads to: `pip install --editable` adds a finder of its own."""
    top = where.partition(".")[0]
    try:
        return _homes(importlib.util.find_spec(top), top)
    except Exception:  # such a finder is not ours, and the import itself says what is wrong
        return []


def _homes(spec: importlib.machinery.ModuleSpec | None, top: str) -> list[_Home]:
    if spec is None:
        return []
    places = list(spec.submodule_search_locations or ())
    if not places and spec.origin is not None and spec.origin.endswith(".py"):
        return [_Home(Path(spec.origin).resolve().parent, top)]
    return [_Home(Path(each).resolve().parent, top) for each in places]


def _imports(file: Path, root: Path) -> Iterator[str]:
    """Yield the full names of the modules that a file may import; `from a import b` may import a module a.b."""
    try:
        module = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # the text itself is still part of the digest
    parts = file.relative_to(root).with_suffix("").parts
    package = parts[:-1]  # an __init__.py belongs to the package that it defines
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *([node.module] if node.module else [])))
            yield from ([base] if base else [])
            yield from (".".join(filter(None, (base, each.name))) for each in node.names if each.name != "*")
