"""Write the pages of the site, as Markdown, to a folder from which a generator of sites builds it.

The generator needs no hooks and knows nothing of the repository's layout, so another one can take its place.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from publish import markdown, places, sources

CONFIGURATION: Final = "mkdocs.yml"
_BASE: Final = "base.yml"
_PAGES: Final = "pages"
_NOT_SHOWN: Final = (".", "__pycache__")


def _pages(root: Path) -> dict[str, str]:
    """Return the text of every page, by its path in the repository."""
    inside = (str(file.relative_to(root)) for file in sorted((root / "docs").rglob("*.md")))
    return {path: (root / path).read_text(encoding="utf-8") for path in (*inside, *places.PAGES)}


def _source_page(root: Path, path: str) -> str:
    """Return the page that shows a file, or the files of a folder."""
    found = root / path
    if found.is_file():
        return sources.file_page(path, found.read_text(encoding="utf-8"))
    names = (each.relative_to(found) for each in found.rglob("*") if each.is_file())
    shown = [name for name in names if not any(part.startswith(_NOT_SHOWN) for part in name.parts)]
    return sources.folder_page(path, {str(name): (found / name).read_text(encoding="utf-8") for name in shown})


def _staged(root: Path, pages: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each page of the site."""
    for path, text in pages.items():
        yield places.place(path), markdown.for_python_markdown(places.rewritten(text, path))
    decisions = {Path(path).name: markdown.title(text) for path, text in pages.items() if places.is_decision(path)}
    yield places.place(places.DECISIONS), sources.decisions_page(decisions)
    for path in places.linked_sources(pages):
        yield places.place(path), markdown.for_python_markdown(_source_page(root, path))


def stage(root: Path, folder: Path, mermaid: Path | None) -> Path:
    """Write the pages, their pictures and data, and the configuration to a new folder; return the configuration.

    Without the script of Mermaid, the diagrams are shown as text.
    """
    shutil.rmtree(folder, ignore_errors=True)
    pages = _pages(root)
    for place, text in _staged(root, pages):
        file = folder / _PAGES / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    for asset in (root / "docs").rglob("*"):
        if asset.suffix in places.ASSETS:
            copy = folder / _PAGES / places.place(str(asset.relative_to(root)))
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(asset, copy)
    shutil.copytree(root / "docs" / "site" / "theme", folder / "theme")
    if mermaid is not None:
        shutil.copy(mermaid, folder / "theme" / "assets" / mermaid.name)
    titles = {places.place(path): markdown.title(text) for path, text in pages.items()}
    navigation = places.navigation(pages["docs/index.md"], titles)
    shutil.copy(root / "docs" / "site" / CONFIGURATION, folder / _BASE)
    added = {"INHERIT": _BASE, "nav": navigation, "extra": {"diagrams": mermaid is not None}}
    configuration = folder / CONFIGURATION
    configuration.write_text(json.dumps(added, indent=2) + "\n", encoding="utf-8")  # JSON is YAML, too
    return configuration
