"""The versions of the site: a folder for each, a list for the menu, and a first page that leads to the newest.

docs/decisions/0036-a-folder-for-each-version-of-the-site.md says why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import NamedTuple

_HEADING = re.compile(r"^## (\d+\.\d+\.\d+)(?:, (.+))?$", re.MULTILINE)
_VERSION = re.compile(r"\d+\.\d+\.\d+")


class Version(NamedTuple):
    """A version that the documentation describes: its folder, and what the menu calls it."""

    number: str
    title: str


def described(changelog: str) -> Version:
    """Return the version at the top of the changelog: it is the one that the pages describe."""
    found = _HEADING.search(changelog)
    if found is None:
        raise ValueError("CHANGELOG.md has no heading such as '## 0.2.0' or '## 0.2.0, unreleased'")
    number, state = found.groups()
    return Version(number, f"{number} ({state})" if state and state == "unreleased" else number)


def newest_first(folders: Iterable[str]) -> list[str]:
    """Return the names that are versions, the newest first."""
    names = [name for name in folders if _VERSION.fullmatch(name)]
    return sorted(names, key=lambda name: [int(part) for part in name.split(".")], reverse=True)


def menu(folders: Iterable[str], current: Version) -> str:
    """Return versions.json, from which the menu in the header is made."""
    versions = newest_first(folders)
    entries = [
        {"version": each, "title": current.title if each == current.number else each, "aliases": []}
        for each in versions
    ]
    return json.dumps(entries, indent=2) + "\n"


def first_page(folders: Iterable[str]) -> str:
    """Return the page at the root of the site, which leads to the newest version."""
    newest = newest_first(folders)[0]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Tailrace</title>'
        f'<meta http-equiv="refresh" content="0; url={newest}/"><a href="{newest}/">Tailrace {newest}</a></html>\n'
    )
