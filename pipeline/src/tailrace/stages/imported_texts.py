"""The texts of the user's files, as of when this process imported their modules.

Python imports a module once per process. If its file is edited later, a pipeline that is started again in the process
would use the earlier code, and the digest of its code would be that of the new text. Such a start is refused, and so is
one whose modules were imported from another folder.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from weakref import ref

AGAIN = "start a new process; in a notebook, restart the kernel"


@dataclass
class ImportedTexts:
    """Digests of texts by files; files that cannot be read have none."""

    reloads: bool  # whether a module that was imported again counts with its new text
    _known: dict[Path, tuple[ref[ModuleType], str]] = field(default_factory=dict)

    def edited(self, files: Iterable[Path]) -> str:
        """Describe which modules of these files were edited after their import; return nothing if none was."""
        names = []
        for name, module, file in _imported(files):
            known = self._known.get(file)
            if known is not None and (known[0]() is module or not self.reloads) and known[1] != _digest(file):
                names.append(name)
        return f"{', '.join(sorted(names))} was edited after this process had imported it" if names else ""

    def remember(self, files: Iterable[Path]) -> None:
        """Note the texts of those files whose modules have been imported since the last call."""
        for _, module, file in _imported(files):
            known = self._known.get(file)
            if known is None or (known[0]() is not module and self.reloads):
                self._known[file] = ref(module), _digest(file)


def elsewhere(where: str, files: Iterable[Path]) -> str:
    """Describe which part of the package of the module `where` was imported from another text than that of `files`.

    Return nothing if none was. A package may be installed, and lie next to the pipeline too.
    """
    own = {each.resolve() for each in files}
    top = where.partition(".")[0]
    for name, module in sorted(sys.modules.items()):
        origin = getattr(module, "__file__", None) if name.partition(".")[0] == top else None
        file = Path(origin).resolve() if origin and origin.endswith(".py") else None
        if file is None or file in own:
            continue
        parts = tuple(name.split("."))
        ends = (*parts[:-1], f"{parts[-1]}.py"), (*parts, "__init__.py")
        others = [each for each in own if any(each.parts[-len(end) :] == end for end in ends)]
        if others and _digest(file) not in {_digest(each) for each in others}:
            return f"this process has imported another {name} before, from {file}"
    return ""


def _imported(files: Iterable[Path]) -> Iterator[tuple[str, ModuleType, Path]]:
    """Yield the imported modules of these files; a model that Tailrace runs from its text has no spec, and is none."""
    wanted = {each.resolve() for each in files}
    names = {each.name for each in wanted}
    for name, module in list(sys.modules.items()):
        spec = vars(module).get("__spec__") if isinstance(module, ModuleType) else None
        origin = getattr(spec, "origin", None)
        # `__main__` has the spec of another name, or none, and is imported under that name again.
        if origin is None or getattr(spec, "name", None) != name or Path(origin).name not in names:
            continue
        file = Path(origin).resolve()
        if file in wanted:
            yield name, module, file


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""
