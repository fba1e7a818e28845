"""The files of a user's Python module: the module, and what it imports from its own folder or package.

A batch that was delivered in part may be replayed only with the same code. Importing a module to find its imports would
run it, so the imports are read from its text, transitively. An import by a computed name is not found.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class _Part:
    """A module or a package: its own file, and the folders in which what it contains is looked up."""

    file: Path | None = None
    places: tuple[Path, ...] = ()


@dataclass(frozen=True)
class _Home:
    """Where a module's own imports are looked up: in its package, or next to its file."""

    top: _Part
    package: str = ""  # only modules of this package are the user's own; empty: everything in the places of `top`
    asks: bool = False  # whether Python's other finders know more

    def files(self, name: str) -> list[tuple[str, Path]]:
        """Return the files of a module, with the names that it gives them: those of the packages above, and its own."""
        return [(each, part.file) for each, part in self._parts(name) if part.file is not None]

    def _parts(self, name: str) -> Iterator[tuple[str, _Part]]:
        part, names = self.top, name.split(".")
        for number in range(1, len(names) + 1):
            known = ".".join(names[:number])
            if number == 1 and self.package:
                found = self.top if known == self.package else None
            else:
                found = self._below(part, known)
            if found is None:
                return
            yield known, found
            part = found

    def _below(self, part: _Part, name: str) -> _Part | None:
        last = name.rpartition(".")[2]
        for place in part.places:
            if (package := place / last / "__init__.py").is_file():
                return _Part(package, (place / last,))
            if (module := place / f"{last}.py").is_file():
                return _Part(module)
        folders = tuple(place / last for place in part.places if (place / last).is_dir())
        found = _asked(name, part.places) if self.asks and part.places else None
        return found if found is not None else _Part(None, folders) if folders else None


def sources(reference: str, folder: Path, path: Sequence[str] | None = None) -> tuple[Path, ...]:
    """Find the files behind `file.py:name` or `package.module:name`, sorted; none if there is no such module.

    Relative files start from `folder`, which is also searched first for packages; then `path` is searched, by default
    sys.path, and what other finders know.
    """
    where, folder = reference.rpartition(":")[0], folder.resolve()
    if where.endswith(".py"):
        file = (folder / where).resolve()
        homes, found = [_Home(_Part(None, (file.parent,)))], [(file.stem, file)] if file.is_file() else []
    else:
        homes = _homes(where, folder, path)
        found = homes[0].files(where)
    known: set[Path] = set()
    while found:
        name, file = found.pop()
        if file not in known:
            known.add(file)
            found += [each for imported in _imports(name, file) for each in _files(homes, imported)]
    return tuple(sorted({each.resolve() for each in known}))


def _files(homes: Sequence[_Home], name: str) -> list[tuple[str, Path]]:
    """Return the files of a module from where all of it is found, or else those of the most that is."""
    found = [home.files(name) for home in homes]
    return next((files for files in found if name in dict(files)), max(found, key=len))


def _homes(where: str, folder: Path, path: Sequence[str] | None) -> list[_Home]:
    """Return where a module is found as Python finds it; what lies in the pipeline's folder may import all of it."""
    package, searched = where.partition(".")[0], [str(folder), *(sys.path if path is None else path)]
    try:
        top = _part(importlib.machinery.PathFinder.find_spec(package, searched))
    except (ImportError, ValueError):
        top = None
    known = top is not None
    if top is None:
        top = (_asked(package) if path is None else None) or _Part()
    # A package may extend its path, and other finders may know a package of the same name.
    more = [place for each in searched if (place := Path(each) / package).is_dir() and place not in top.places]
    home = _Home(replace(top, places=(*top.places, *more) if top.places else ()), package, asks=path is None)
    if path is None and known and where not in dict(home.files(where)) and (other := _asked(package)) is not None:
        home = replace(home, top=other)
    own = _Home(_Part(None, (folder,)))
    found = [file for _, file in home.files(where)[-1:]]
    return [own, home] if found and found == [file for _, file in own.files(where)[-1:]] else [home]


def _asked(name: str, places: Sequence[Path] | None = None) -> _Part | None:
    """Ask Python for a package that no folder holds: `pip install --editable` adds a finder of its own.

    Such finders are asked as an import asks them, but nothing is imported.
    """
    found = _part(getattr(sys.modules.get(name), "__spec__", None))
    for finder in sys.meta_path if found is None else ():
        with contextlib.suppress(Exception):  # it is not ours, and the import itself says what is wrong
            found = found or _part(finder.find_spec(name, None if places is None else list(map(str, places))))
    return found


def _part(spec: importlib.machinery.ModuleSpec | None) -> _Part | None:
    if spec is None:
        return None
    file = Path(spec.origin) if spec.origin is not None and spec.origin.endswith(".py") else None
    places = tuple(map(Path, spec.submodule_search_locations or ()))
    return _Part(file, places) if file is not None or places else None


def _imports(name: str, file: Path) -> Iterator[str]:
    """Yield the full names of the modules that a file may import; `from a import b` may import a module a.b."""
    try:
        module = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # the text itself is still part of the digest
    parts = name.split(".")
    package = parts if file.name == "__init__.py" else parts[:-1]
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *([node.module] if node.module else [])))
            yield from ([base] if base else [])
            yield from (".".join(filter(None, (base, each.name))) for each in node.names if each.name != "*")
