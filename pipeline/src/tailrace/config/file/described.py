"""Every key of the configuration with its type, default and meaning, for people: `tailrace explain` and the reference.

A person who installed the package has no pages of the reference; both are made from the schema, here.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from tailrace.config import Pipeline
from tailrace.config.file.places import ALLOWED_OPTIONS, dotted

EVERYTHING = "configuration"

Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Described:
    """A key, or a section with keys of its own."""

    place: str  # the section that it is in; empty at the top
    name: str
    type: str
    default: str
    meaning: str
    section: Schema | None = None
    options: tuple[str, ...] = ()  # the names that a map of Kafka options may have

    @property
    def path(self) -> str:
        """The key with its sections, as messages write it."""
        return f"{self.place}.{self.name}" if self.place else self.name


def find(path: str) -> list[Described]:
    """Return a key, or a section followed by all keys inside it; nothing if there is no such key."""
    if path == EVERYTHING:
        return list(_all())
    return [each for each in _all() if each.path == path or each.path.startswith(f"{path}.")]


def near(word: str) -> list[str]:
    """Return up to three keys that are similar to a word, or end with it."""
    paths = [each.path for each in _all()]
    ending = [path for path in paths if path.endswith(f".{word}")]
    return (ending or difflib.get_close_matches(word, [EVERYTHING, *paths], n=3, cutoff=0.7))[:3]


@cache
def _all() -> tuple[Described, ...]:
    schema, definitions = root()
    return tuple(_below(schema, definitions, ""))


def root() -> tuple[Schema, Mapping[str, Schema]]:
    """Return the schema, and the definitions that it refers to."""
    schema = Pipeline.model_json_schema(by_alias=True)
    return schema, schema.get("$defs", {})


def _below(schema: Schema, definitions: Mapping[str, Schema], place: str) -> Iterator[Described]:
    for each in fields(schema, definitions, place):
        yield each
        if each.section is not None:
            below = f"{each.path}.NAME" if each.type != "section" else each.path
            yield from _below(each.section, definitions, below)


def fields(schema: Schema, definitions: Mapping[str, Schema], place: str) -> Iterator[Described]:
    """Yield the keys of one section, in the order of the file."""
    allowed = {dotted(each): tuple(sorted(names)) for each, names in ALLOWED_OPTIONS.items()}
    for name, field in schema["properties"].items():
        needed = name in schema.get("required", [])
        section = _section(field, definitions)
        if section is not None:
            text = field.get("description") or section.get("description", "")
            yield Described(place, name, "section", "needed" if needed else "optional", text, section)
            continue
        default, text = "needed" if needed else _default(field), field.get("description", "")
        named = _section(field.get("additionalProperties") or {}, definitions)
        options = allowed.get(f"{place}.{name}", ())
        yield Described(place, name, _type(field, definitions), default, text, named, options)


def _default(field: Schema) -> str:
    if field.get("default") is None:
        return "none"
    return f"`{json.dumps(field['default']).strip(chr(34))}`"


def _section(field: Schema, definitions: Mapping[str, Schema]) -> Schema | None:
    if not isinstance(field, Mapping):
        return None
    for each in (field, *field.get("anyOf", [])):
        found = definitions.get(each.get("$ref", "").rsplit("/", 1)[-1], {})
        if "properties" in found:
            return found
    return None


def _type(field: Schema, definitions: Mapping[str, Schema]) -> str:
    if "$ref" in field:
        return _type(definitions[field["$ref"].rsplit("/", 1)[-1]], definitions)
    if "anyOf" in field:
        return " or ".join(_type(each, definitions) for each in field["anyOf"] if each.get("type") != "null")
    if "enum" in field:
        return " or ".join(f"`{each}`" for each in field["enum"])
    if field["type"] == "array":
        return f"list of {_type(field['items'], definitions)}"
    if field["type"] == "object":
        if "properties" in field:
            return "section"
        values = field.get("additionalProperties")
        return f"name → {_type(values, definitions)}" if isinstance(values, Mapping) and values else "name → any value"
    plain = {"string": "text", "integer": "whole number", "number": "number", "boolean": "`true` or `false`"}
    return plain[field["type"]] + _range(field)


def _range(field: Schema) -> str:
    low, high, above = field.get("minimum"), field.get("maximum"), field.get("exclusiveMinimum")
    if above is not None and high is not None:
        return f", more than {above} and at most {high}"
    if low is not None and high is not None:
        return f", {low} to {high}"
    return f", at least {low}" if low is not None else f", at most {high}" if high is not None else ""
