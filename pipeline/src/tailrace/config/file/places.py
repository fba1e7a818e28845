"""What the schema knows about a place in the configuration: its keys, its variable, the kind of its value.

The file, the environment, the messages and the generated reference all use this module, so they agree.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import Any, get_args

from tailrace.config import (
    CONNECTION_OPTIONS,
    REGISTRY_OPTIONS,
    SECRET_OPTION,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    STORE_OPTIONS,
    KafkaOptions,
    Options,
    Pipeline,
    Rule,
    Section,
)
from tailrace.config.rules import Rules

Place = tuple[str | int, ...]

PREFIX = "TAILRACE_"
# Variables that other parts of Tailrace read; they are not configuration keys.
RESERVED = frozenset(
    {
        "TAILRACE_JARS",
        "TAILRACE_HOME",
        "TAILRACE_LOG",
        "TAILRACE_CRASH",
        "TAILRACE_CRASH_ROOT",
        "TAILRACE_WATCHED",
        "TAILRACE_GATEWAY",
    }
)
# The closed lists of Kafka options; other maps of options are open.
ALLOWED_OPTIONS: dict[Place, frozenset[str]] = {
    ("kafka", "options"): CONNECTION_OPTIONS,
    ("source", "options"): SOURCE_OPTIONS,
    ("sink", "options"): SINK_OPTIONS,
    ("offsets", "options"): STORE_OPTIONS,
    ("source", "registry", "options"): REGISTRY_OPTIONS,
    ("sink", "registry", "options"): REGISTRY_OPTIONS,
}


class Kind(Enum):
    """The kind of value that a key takes."""

    SECTION = auto()
    OPTIONS = auto()  # option → text, where the option's name has dots
    TEXTS = auto()  # name → text
    SECTIONS = auto()  # name → a section, or text that stands for one
    FREE = auto()  # name → anything
    TEXT = auto()
    OTHER = auto()


@dataclass(frozen=True)
class Key:
    """A key of a section, as spelled in the file, and the kind of value that it takes."""

    name: str
    field: str
    kind: Kind
    section: type[Section] | None = None

    @property
    def is_map(self) -> bool:
        """Whether the key takes keys of its own."""
        return self.kind in {Kind.SECTION, Kind.OPTIONS, Kind.TEXTS, Kind.SECTIONS, Kind.FREE}


@cache
def keys(section: type[Section]) -> dict[str, Key]:
    """Return the keys of a section, by their names in the file."""
    found = {}
    for field, info in section.model_fields.items():
        kind, inner = _kind(info.annotation)
        name = info.alias or field
        found[name] = Key(name, field, kind, inner)
    return found


def _kind(annotation: Any) -> tuple[Kind, type[Section] | None]:
    if annotation == Rules:
        return Kind.SECTIONS, Rule
    sections = [each for each in (annotation, *get_args(annotation)) if _is_section(each)]
    if sections:
        return Kind.SECTION, sections[0]
    if annotation == Options:
        return Kind.OPTIONS, None
    if annotation == KafkaOptions:
        return Kind.TEXTS, None
    if annotation == dict[str, Any]:
        return Kind.FREE, None
    return (Kind.TEXT if annotation is str or annotation == str | None else Kind.OTHER), None


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def key_of(section: type[Section], name: str) -> Key | None:
    """Return the key called `name`, in the file's spelling or Python's; None if there is no such key."""
    known = keys(section)
    return known.get(name) or next((key for key in known.values() if key.field == name), None)


def section_at(place: Place, root: type[Section] = Pipeline) -> type[Section] | None:
    """Return the section at `place`, if there is one."""
    section, named = root, False
    for part in place:
        if named:  # the name of one of several sections
            named = False
            continue
        key = keys(section).get(str(part))
        if key is None or key.section is None:
            return None
        section, named = key.section, key.kind is Kind.SECTIONS
    return None if named else section


def dotted(place: Place) -> str:
    """Return the place as messages write it: `source.topics[1]`."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def is_secret(place: Place) -> bool:
    """Return whether the value at `place` must not be shown."""
    return any(isinstance(part, str) and SECRET_OPTION.search(part) is not None for part in place)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word closest to `word`, if any is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def variable(*names: str) -> str:
    """Return the environment variable of a place."""
    return PREFIX + "__".join(name.replace(".", "_").upper() for name in names)


def variables(section: type[Section] = Pipeline, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield every environment variable that sets a key; a map's stands for all that add `__` and a name to it."""
    for key in keys(section).values():
        if key.kind is Kind.SECTION and key.section is not None:
            yield from variables(key.section, (*above, key.name))
        else:
            yield variable(*above, key.name)
