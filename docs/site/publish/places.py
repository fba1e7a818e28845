"""Where a file of the repository is on the site, and the links between pages rewritten to those places.

The pages link to each other, to the pages at the top of the repository, and to code, by paths that work in the
repository. On the site, a page outside docs/ has a place of its own, and a file that is no page gets a page that
shows it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

DOCS: Final = "docs/"
DECISIONS: Final = "docs/decisions"
SOURCE: Final = "source/"
# Pages outside docs/, and their names on the site.
PAGES: Final = {
    "README.md": "quick-start.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "charts/tailrace/README.md": "chart.md",
}
ASSETS: Final = (".svg", ".png", ".json", ".jsonl")

_TARGET = re.compile(r"(?<=\])\(([^)\s]+)\)")
_FENCE = re.compile(r"^ *(`{3,}|~{3,})")
_SECTION = re.compile(r"^## (.+)$")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+\.md)\)")


def place(path: str) -> str:
    """Return the place on the site of a file or folder of the repository."""
    if path in PAGES:
        return PAGES[path]
    if path == DECISIONS:
        return "decisions/index.md"
    if path.startswith(DOCS) and path.endswith((".md", *ASSETS)):
        return path.removeprefix(DOCS)
    return f"{SOURCE}{path}.md"


def is_decision(path: str) -> bool:
    """Return whether the file is the page of a decision."""
    return posixpath.dirname(path) == DECISIONS


def outside_fences(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each line, and whether it is prose: neither in a fenced block nor its first or last line."""
    fence = ""
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if found and not fence:
            fence = found[1]
            yield line, False
        elif found and found[1].startswith(fence) and line.strip() == found[1]:
            fence = ""
            yield line, False
        else:
            yield line, not fence


def _is_relative(target: str) -> bool:
    return "://" not in target and not target.startswith(("#", "mailto:"))


def _resolved(target: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target.partition("#")[0]))


def targets(text: str, path: str) -> set[str]:
    """Return the files and folders of the repository that the page at `path` links to."""
    prose = "\n".join(line for line, is_prose in outside_fences(text) if is_prose)
    return {_resolved(target, path) for target in _TARGET.findall(prose) if _is_relative(target)}


def rewritten(text: str, path: str, at: str = "") -> str:
    """Return the page at `path` with links that work from its place on the site, or from the place `at`."""
    folder = posixpath.dirname(at or place(path))

    def link(match: re.Match[str]) -> str:
        target = match[1]
        if not _is_relative(target):
            return match[0]
        _, hash_, anchor = target.partition("#")
        return f"({posixpath.relpath(place(_resolved(target, path)), folder)}{hash_}{anchor})"

    return "\n".join(_TARGET.sub(link, line) if prose else line for line, prose in outside_fences(text))


def navigation(index: str, titles: Mapping[str, str]) -> list[dict[str, object]]:
    """Return the navigation: the sections of the index, and under each the pages that it links to, once.

    A page is named by its link, or, if the link is only a number, by its title.
    """
    first = "index.md"
    sections: dict[str, list[dict[str, str]]] = {}
    seen = {first}
    section = ""
    for line, prose in outside_fences(index):
        heading = _SECTION.match(line) if prose else None
        if heading:
            section = heading[1]
            sections[section] = []
        for words, target in _LINK.findall(line) if prose and section else ():
            at = place(_resolved(target, DOCS + first))
            if at not in seen and not at.startswith(SOURCE):
                seen.add(at)
                sections[section].append({titles[at] if words.isdigit() else words.replace("`", ""): at})
    if DECISIONS in targets(index, DOCS + first):
        sections["Decisions"].insert(0, {"All decisions": place(DECISIONS)})
    found: list[dict[str, object]] = [{name: pages} for name, pages in sections.items() if pages]
    return [{"Overview": first}, *found]


def linked_sources(pages: Mapping[str, str]) -> Iterable[str]:
    """Return the files and folders, linked from pages by their paths, that need a page that shows them."""
    found = {target for path, text in pages.items() for target in targets(text, path)}
    return sorted(target for target in found if place(target).startswith(SOURCE))
