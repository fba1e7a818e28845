"""A writer's schema, as records are read with it: with the checks that fastavro leaves out.

fastavro takes some negative times of day for other times. And it follows a schema that contains itself as deep as a
record goes, until the process has no stack left, which nothing can catch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import fastavro
import fastavro.read
from fastavro._read_py import schemaless_reader as slow_reader

DEPTH = 8_000  # bytes of a record that can be followed without a limit: a level takes one at least
_OWN = "tailrace-"
DAY = {"time-millis": ("int", 86_400_000), "time-micros": ("long", 86_400_000_000)}  # the type, and its units of a day
_RECORDS = frozenset({"record", "error"})
_PARTS = {"array": "items", "map": "values"}


@dataclass(frozen=True)
class Writer:
    """A parsed schema."""

    parsed: Any
    recursive: bool  # whether a type contains itself

    def read(self, stream: Any, size: int, reader: Any) -> Any:
        """Read a record of this size as the reader's schema says; raise RecursionError if it is nested too deeply."""
        read: Callable[..., Any] = fastavro.schemaless_reader
        if self.recursive and size > DEPTH:
            read = slow_reader  # in Python, whose recursion has a limit
        return read(stream, self.parsed, reader)


def writer(text: str, known: dict[str, Any]) -> Writer:
    """Parse a schema; `known` are the named types that it may refer to, and gets those that it defines."""
    parsed: Any = fastavro.parse_schema(_with_own_times(json.loads(text)), named_schemas=known)
    return Writer(parsed, _recursive(parsed, known, frozenset(), set()))


def _with_own_times(node: Any) -> Any:
    if isinstance(node, list):
        return [_with_own_times(each) for each in node]
    if not isinstance(node, dict):
        return node
    made = {name: value if name == "default" else _with_own_times(value) for name, value in node.items()}
    if made.get("logicalType") in DAY:
        made["logicalType"] = _OWN + made["logicalType"]
    return made


def _recursive(node: Any, known: dict[str, Any], inside: frozenset[str], done: set[str]) -> bool:
    if isinstance(node, str):
        return node in inside or (node in known and node not in done and _recursive(known[node], known, inside, done))
    if isinstance(node, list):
        return any(_recursive(each, known, inside, done) for each in node)
    kind = node["type"]
    if not isinstance(kind, str):
        return _recursive(kind, known, inside, done)
    if kind in _PARTS:
        return _recursive(node[_PARTS[kind]], known, inside, done)
    if kind not in _RECORDS:
        return False
    found = any(_recursive(each["type"], known, inside | {node["name"]}, done) for each in node["fields"])
    done.add(node["name"])
    return found


def _within_a_day(name: str, kind: str, units: int) -> None:
    plain = fastavro.read.LOGICAL_READERS[f"{kind}-{name}"]

    def read(value: int, *schemas: Any) -> Any:
        if not 0 <= value < units:
            raise ValueError(f"{value} is no time of day")
        return plain(value, *schemas)

    fastavro.read.LOGICAL_READERS[f"{kind}-{_OWN}{name}"] = read


for _name, (_kind, _units) in DAY.items():
    _within_a_day(_name, _kind, _units)
