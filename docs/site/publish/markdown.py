"""The repository's Markdown made readable for Python-Markdown, which MkDocs uses.

The pages are written in the Markdown that code hosts show. Python-Markdown differs in two points that occur here: what
belongs to an item of a list must be indented by four spaces, and a list needs an empty line before it.
"""

from __future__ import annotations

import re
from typing import Final

from publish.places import outside_fences

INDENT: Final = " " * 4
_ITEM = re.compile(r"^(?:[-*+]|\d+[.)]) +(?=\S)")
_HEADING = re.compile(r"^# +(.+?) *#*$")


def for_python_markdown(text: str) -> str:
    """Indent the contents of each list's items by four spaces, and separate lists from paragraphs."""
    lines: list[str] = []
    width = 0  # of the item's own indentation; 0: in no list
    for line, prose in outside_fences(text):
        item = _ITEM.match(line) if prose else None
        if item:
            if not width and lines and lines[-1].strip():
                lines.append("")
            width = item.end()
        elif width and line.startswith(" " * width):
            line = INDENT + line[width:]
        elif width and line.strip() and (not prose or not lines[-1].strip()):
            width = 0
        lines.append(line)
    return "\n".join(lines)


def title(text: str) -> str:
    """Return the page's first heading, as plain text."""
    for line, prose in outside_fences(text):
        heading = _HEADING.match(line) if prose else None
        if heading:
            return heading[1].replace("`", "")
    return ""
