"""The diagrams of the documentation, drawn by a real browser as the site draws them."""

from __future__ import annotations

import re
import shutil
from html import escape
from pathlib import Path

import pytest

from publish import mermaid
from support.chromium import dom

ROOT = Path(__file__).parents[2]
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if DIAGRAM.search(page.read_text(encoding="utf-8"))]


def drawn(folder: Path, diagrams: list[str]) -> str:
    """Return the elements of a page with these diagrams, after Mermaid has drawn them."""
    try:
        script = mermaid.fetched(ROOT / "build" / "mermaid")
    except OSError as error:
        pytest.skip(f"no Mermaid: {error}")
    shutil.copy(script, folder)
    blocks = "".join(f'<pre class="mermaid">{escape(diagram)}</pre>' for diagram in diagrams)
    page = folder / "page.html"
    page.write_text(f'<meta charset="utf-8">{blocks}<script src="{script.name}"></script>', encoding="utf-8")
    return dom(folder, page.as_uri())


def test_every_diagram_is_drawn(tmp_path: Path) -> None:
    """A mistake in one would be shown to the reader as a syntax error."""
    diagrams = [each for page in PAGES for each in DIAGRAM.findall(page.read_text(encoding="utf-8"))]
    assert len(diagrams) >= 5
    elements = drawn(tmp_path, diagrams)
    assert elements.count('<svg id="mermaid-') == len(diagrams)
    assert 'aria-roledescription="error"' not in elements


def test_diagram_with_a_mistake_is_noticed(tmp_path: Path) -> None:
    """Otherwise the test above could not fail."""
    elements = drawn(tmp_path, ["flowchart TB\n  a --> b\n", "flowchart TB\n  a -->> [ \n"])
    assert 'aria-roledescription="error"' in elements or elements.count('<svg id="mermaid-') < 2
