"""YAML text to data, with the line of each key and value.

PyYAML's loader drops line numbers and silently lets the last of duplicate keys win, so this module walks its nodes
instead. It also passes Kafka options on as written: YAML would read 0123 and 1:30 as other numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from tailrace.config import Section
from tailrace.config.file.places import Key, Kind, Place, key_of
from tailrace.config.file.problems import SHOWN_LENGTH, Fault, shown

NODE_LIMIT = 100_000
DEPTH_LIMIT = 50
NULL, BOOL, TEXT, MERGE = (f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "str", "merge"))
NUMBERS = {f"tag:yaml.org,2002:{name}" for name in ("int", "float")}
# What YAML 1.1 reads as types that no key here takes: dates and the lone equals sign.
TEXT_AFTER_ALL = {f"tag:yaml.org,2002:{name}" for name in ("timestamp", "value")}
# The value of one option, in a map of options.
OPTION = Key("", "", Kind.TEXT)

Substitute = Callable[[str], tuple[str, str | None]]


class SyntaxFault(Exception):
    """The text is not YAML; there is nothing to walk."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


def compose(text: str) -> yaml.Node | None:
    """Return the root node of the text, or None if the text is empty."""
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise SyntaxFault(mark.line + 1 if mark else 1, f"not YAML: {_harmless(error)}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SyntaxFault(line, f"not YAML: the character #x{error.character:04x} is not allowed") from None
    except RecursionError:
        raise SyntaxFault(1, "not a configuration: it is nested too deeply") from None


def _harmless(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "the text ends too early"
    if "undefined alias" in problem:
        return "a value that begins with * must be in quotes"
    # A quoted part may be a piece of a value; single characters and token names are not.
    problem = re.sub(r"'([^']*)'", lambda quoted: quoted[0] if _is_token(quoted[1]) else "…", problem)
    return f"{error.context}, {problem}" if error.context and "'" not in error.context else problem


def _is_token(text: str) -> bool:
    return len(text) <= 2 or text.startswith("<")


@dataclass
class Walk:
    """One walk over the nodes, which collects the data along with lines, texts and faults."""

    substitute: Substitute
    lines: dict[Place, int] = field(default_factory=dict)
    texts: dict[Place, str] = field(default_factory=dict)
    faults: list[tuple[int, Fault]] = field(default_factory=list)
    _open: set[int] = field(default_factory=set)
    _count: int = 0

    def section(self, node: yaml.MappingNode, section: type[Section], place: Place = ()) -> dict[str, Any]:
        """Return the data of a section, its keys named as in the schema."""
        data = {}
        for name, value in self._pairs(node, place, section):
            key = key_of(section, name)
            data[name] = self._value(value, (*place, name), key)
        return data

    def _pairs(
        self, node: yaml.MappingNode, place: Place, section: type[Section] | None = None
    ) -> list[tuple[str, yaml.Node]]:
        pairs: dict[str, yaml.Node] = {}
        for key_node, value in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._fault(line, place, "a key must be text")
                continue
            if key_node.tag == MERGE:
                self._fault(line, place, "the merge key << is not supported; write the keys out")
                continue
            known = key_of(section, key_node.value) if section else None
            name = known.name if known else key_node.value
            if name in pairs:
                first = self.lines[(*place, name)]
                self._fault(line, (*place, name), f"duplicate key; line {first} sets it already")
                continue
            self.lines[(*place, name)] = line
            pairs[name] = value
        return list(pairs.items())

    def _value(self, node: yaml.Node, place: Place, key: Key | None) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(place, line)
        self._count += 1
        if self._count > NODE_LIMIT:
            if self._count == NODE_LIMIT + 1:
                self._fault(line, place, f"more than {NODE_LIMIT} values after aliases are expanded; use fewer")
            return None
        if id(node) in self._open:
            self._fault(line, place, "an alias contains itself")
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, place, key)
        if len(self._open) == DEPTH_LIMIT:
            self._fault(line, place, f"nested in more than {DEPTH_LIMIT} levels")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self._value(each, (*place, index), None) for index, each in enumerate(node.value)]
            if not isinstance(node, yaml.MappingNode):
                self._fault(line, place, "not a value, a list or a mapping")
                return None
            inner = OPTION if key is not None and key.kind in {Kind.OPTIONS, Kind.TEXTS} else None
            if key is not None and key.section is not None:
                if key.kind is Kind.SECTION:
                    return self.section(node, key.section, place)
                inner = replace(key, kind=Kind.SECTION)
            return {name: self._value(each, (*place, name), inner) for name, each in self._pairs(node, place)}
        finally:
            self._open.discard(id(node))

    def _scalar(self, node: yaml.ScalarNode, place: Place, key: Key | None) -> Any:
        line = node.start_mark.line + 1
        if node.tag == TEXT:
            value, missing = self.substitute(node.value)
            if missing:
                self._fault(line, place, missing)
            self.texts[place] = shown(node.value)
            return value
        if node.tag not in {NULL, BOOL} | NUMBERS | TEXT_AFTER_ALL:
            self._fault(line, place, "has a YAML tag (!…); put a value that begins with ! in quotes")
            return None
        self.texts[place] = shown(node.value) if node.tag == BOOL else node.value[:SHOWN_LENGTH]
        if node.tag in TEXT_AFTER_ALL or (key is OPTION and node.tag in NUMBERS):
            return node.value
        try:
            return yaml.SafeLoader("").construct_object(node)
        except (yaml.YAMLError, ValueError):
            self._fault(line, place, "cannot be read; put the value in quotes")
            return None

    def _fault(self, line: int, place: Place, message: str) -> None:
        self.faults.append((line, Fault(place, message)))
