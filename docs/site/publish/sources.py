"""Pages that show what other pages link to and that is no page itself: a test, an example, a folder.

Without them, a link that works in the repository would lead nowhere on the site. The search leaves them out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from publish.places import outside_fences, place, rewritten

_HEADER: Final = "---\nsearch:\n  exclude: true\nhide:\n  - toc\n---\n\n"
_LANGUAGES: Final = {
    "avsc": "json", "json": "json", "lua": "lua", "py": "python", "sh": "sh", "toml": "toml", "yaml": "yaml",
}  # fmt: skip


def _code(name: str, text: str) -> str:
    fence = "`" * max(4, 1 + max((len(each) for each in re.findall("`+", text)), default=0))
    return f"{fence}{_LANGUAGES.get(name.rpartition('.')[2], 'text')}\n{text.rstrip()}\n{fence}\n"


def file_page(path: str, text: str) -> str:
    """Return the page that shows one file."""
    return f"{_HEADER}# {path}\n\n{_code(path, text)}"


def folder_page(path: str, files: Mapping[str, str]) -> str:
    """Return the page of a folder: its README, then each other file, by their paths in the folder."""
    parts = [f"{_HEADER}# {path}\n"]
    for name, text in sorted(files.items(), key=lambda each: (each[0].count("/"), each[0] != "README.md", each[0])):
        if name.endswith("README.md"):
            lines = outside_fences(rewritten(text, f"{path}/{name}", place(path)))
            parts.append("\n".join(f"#{line}" if prose and line.startswith("#") else line for line, prose in lines))
        else:
            parts.append(f"## {name}\n\n{_code(name, text)}")
    return "\n".join(parts)


def decisions_page(titles: Mapping[str, str]) -> str:
    """Return the list of decisions: the place of each in their folder, and its title."""
    lines = [f"- [{words}]({name})" for name, words in sorted(titles.items())]
    return "# Decisions\n\nEach has its context, the decision, its consequences and the alternatives.\n\n" + "\n".join(
        lines
    )
