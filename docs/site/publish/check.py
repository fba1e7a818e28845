"""Check the built pages as a browser and a reader use them.

A resource from another host, a link or an anchor that leads nowhere, and a page that is more than two clicks away from
the first one are problems. MkDocs itself checks only the links that the pages write, not what the theme adds.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

FIRST: Final = "index.html"
CLICKS: Final = 2
_NOT_A_PAGE: Final = "404.html"  # what a server shows for an address without a page
# Attributes whose address a browser requests by itself.
_LOADED: Final = {
    "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src", "embed": "src",
    "object": "data", "use": "href", "image": "href",
}  # fmt: skip
_LOADED_LINKS: Final = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "manifest", "preconnect"}
_IN_STYLE: Final = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


def in_style(text: str) -> set[str]:
    """Return the addresses that a style sheet loads."""
    return {either or other for either, other in _IN_STYLE.findall(text)}


class Page(HTMLParser):
    """What a page links to, what it loads, and the anchors that others can link to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.resources: set[str] = set()
        self.anchors: set[str] = set()
        self.guarded = False  # whether a policy keeps the browser from asking other hosts
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the addresses and the names of an element."""
        found = {name: value for name, value in attrs if value is not None}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag in ("a", "area") and "href" in found:
            self.links.add(found["href"])
        if tag == "meta" and found.get("http-equiv") == "Content-Security-Policy":
            self.guarded = "default-src 'self'" in found.get("content", "")
        if tag == "link" and _LOADED_LINKS & set(found.get("rel", "").split()):
            self.resources.add(found.get("href", ""))
        if _LOADED.get(tag) in found:
            self.resources.add(found[_LOADED[tag]])
        self.resources |= {each.split()[0] for each in found.get("srcset", "").split(",") if each.strip()}
        self.resources |= in_style(found.get("style", ""))


def is_elsewhere(address: str) -> bool:
    """Return whether a browser leaves the site for this address."""
    parts = urlsplit(address)
    return bool(parts.scheme not in ("", "data") or parts.netloc)


def target(address: str, place: str) -> tuple[str, str]:
    """Return the file of the site, and the anchor in it, that an address on the page at `place` names."""
    parts = urlsplit(address)
    if not parts.path:
        return place, unquote(parts.fragment)
    path = posixpath.normpath(posixpath.join(posixpath.dirname(place), unquote(parts.path)))
    if parts.path.endswith("/") or posixpath.basename(parts.path) in (".", ".."):
        path = posixpath.normpath(posixpath.join(path, FIRST))
    return path, unquote(parts.fragment)


def from_elsewhere(loaded: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Yield a problem for each resource, of a page or style sheet, that another host would be asked for."""
    for place, addresses in loaded.items():
        yield from (f"{place} loads {each} from another host" for each in sorted(addresses) if is_elsewhere(each))


def broken(pages: Mapping[str, Page], files: Iterable[str]) -> Iterator[str]:
    """Yield a problem for each link and resource that names no file of the site, or no anchor in its page."""
    there = set(files)
    for place, page in pages.items():
        for address in sorted(page.links | page.resources):
            if is_elsewhere(address) or address.startswith("data:"):
                continue
            path, anchor = target(address, place)
            if path not in there:
                yield f"{place} links to {address}, and there is no {path}"
            elif anchor and path in pages and anchor not in pages[path].anchors:
                yield f"{place} links to {address}, and {path} has no anchor {anchor}"


def unguarded(pages: Mapping[str, Page]) -> Iterator[str]:
    """Yield a problem for each page that lets scripts load from other hosts: only a browser knows what they ask for."""
    yield from (f"{place} has no Content-Security-Policy" for place, page in pages.items() if not page.guarded)


def far(pages: Mapping[str, Page], clicks: int = CLICKS) -> Iterator[str]:
    """Yield a problem for each page that this number of clicks, from the first page, does not reach."""
    reached = {FIRST}
    for _ in range(clicks):
        links = ((address, place) for place in sorted(reached) for address in pages[place].links)
        found = {target(address, place)[0] for address, place in links if not is_elsewhere(address)}
        reached |= found & pages.keys()
    yield from (f"{place} is more than {clicks} clicks from the first page" for place in sorted(pages.keys() - reached))


def check(folder: Path) -> tuple[list[str], str]:
    """Return the problems of the site in the folder, and a summary."""
    files = {str(file.relative_to(folder)): file for file in sorted(folder.rglob("*")) if file.is_file()}
    texts = {name: file.read_text(encoding="utf-8") for name, file in files.items() if name.endswith((".html", ".css"))}
    pages = {name: Page(text) for name, text in texts.items() if name.endswith(".html") and name != _NOT_A_PAGE}
    loaded = {name: in_style(text) for name, text in texts.items() if name.endswith(".css")}
    loaded |= {name: page.resources for name, page in pages.items()}
    problems = [*from_elsewhere(loaded), *unguarded(pages), *broken(pages, files), *far(pages)]
    links = sum(len(page.links) for page in pages.values())
    return problems, f"{len(pages)} pages, {links} links: {len(problems)} problems"
