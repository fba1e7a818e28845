"""Whether records written with one Avro schema can be read with another, and how the two differ, in words.

Avro resolves a writer's schema against a reader's for each record; a mismatch shows only once a record arrives. These
functions find it from the schemas alone. They are pure, and follow the rules of fastavro, which reads the records.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import fastavro

from tailrace.stages.formats.avro_schema import Avro, definition, kind, logical

_PROMOTIONS: Mapping[str, frozenset[str]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
_NAMED = frozenset({"record", "error", "enum", "fixed"})
# Values of these are read as the writer's schema says, and fit the reader's column.
_INSTANTS = frozenset({"timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros"})
# Numbers of writers without a logical type are read in the reader's unit.
_NUMBERS = _INSTANTS | {"date"}


class Effect(IntEnum):
    """Which values of the writer a difference keeps from being read; each value includes the ones below it."""

    NONE = 0  # all are read
    DOUBT = 1  # Avro resolves it, but a logical type is lost or gained: values may be rejected or change their meaning
    SOME = 2  # values of some kind cannot be read
    ALL = 3  # no record can be read


@dataclass(frozen=True)
class Difference:
    """One difference between a writer's schema and a reader's."""

    effect: Effect
    words: str  # with {writer} and {reader} in place of the schemas' names

    def text(self, writer: str, reader: str) -> str:
        """Return the difference in words, with these names of the schemas."""
        return self.words.format(writer=writer, reader=reader)


@dataclass(frozen=True)
class Schema:
    """A schema with the definitions of the names that occur in it."""

    top: Avro
    names: Mapping[str, dict[str, Any]]

    @staticmethod
    def add(text: str, known: dict[str, Any]) -> None:
        """Add the definitions of a schema that others refer to."""
        fastavro.parse_schema(json.loads(text), named_schemas=known)

    @classmethod
    def of(cls, text: str, known: Mapping[str, Any] | None = None) -> Schema:
        """Parse a schema; `known` has the definitions of names from elsewhere. fastavro's errors pass through."""
        names = dict(known or {})
        top: Any = fastavro.parse_schema(json.loads(text), named_schemas=names)
        return cls(top, names)


def differences(writer: Schema, reader: Schema) -> tuple[Difference, ...]:
    """Return how two schemas differ for a reader of the writer's records."""
    return tuple(_Comparison(writer.names, reader.names).of(writer.top, reader.top, ""))


def worst(found: tuple[Difference, ...]) -> Effect:
    """Return the effect of all differences together."""
    return max((each.effect for each in found), default=Effect.NONE)


@dataclass
class _Comparison:
    writers: Mapping[str, dict[str, Any]]
    readers: Mapping[str, dict[str, Any]]
    within: set[tuple[str, str]] = field(default_factory=set)  # records whose comparison has begun: they may recur
    equal: set[tuple[str, str]] = field(default_factory=set)

    def of(self, writer: Avro, reader: Avro, path: str) -> Iterator[Difference]:
        written, read = _defined(writer, self.writers), _defined(reader, self.readers)
        if isinstance(written, list):
            yield from self._writers_union(written, read, path)
        elif isinstance(read, list):
            yield from self._readers_union(written, read, path)
        elif not _akin(written, read):
            yield _mismatch(written, read, path)
        else:
            yield from self._akin(written, read, path)

    def _writers_union(self, written: list[Any], read: Avro, path: str) -> Iterator[Difference]:
        branches = [(each, tuple(self.of(each, read, path))) for each in written]
        if all(worst(found) is Effect.ALL for _, found in branches):
            yield _mismatch(written, read, path)
            return
        for branch, found in branches:
            resolved = _defined(branch, self.writers)
            others = read if isinstance(read, list) else [read]
            if not any(_akin(resolved, _defined(each, self.readers)) for each in others):
                yield Difference(
                    Effect.SOME,
                    f"{_subject(path)} may be {_shown(resolved)} in {{writer}}, and is {_shown(read)} in {{reader}}",
                )
                continue
            for each in found:
                yield replace(each, effect=min(each.effect, Effect.SOME))

    def _readers_union(self, written: Avro, read: list[Any], path: str) -> Iterator[Difference]:
        akin = [each for each in read if _akin(written, _defined(each, self.readers))]
        if not akin:
            yield _mismatch(written, read, path)
            return
        yield from min((tuple(self.of(written, each, path)) for each in akin), key=worst)

    def _akin(self, written: Avro, read: Avro, path: str) -> Iterator[Difference]:
        """Compare two types that Avro resolves at least by their kind and name."""
        writer, reader = definition(written), definition(read)
        yield from _renamed(writer, reader, path)
        match kind(written):
            case "record" | "error":
                yield from self._records(writer, reader, path)
            case "enum":
                yield from _enums(writer, reader, path)
            case "array":
                yield from self._within(writer["items"], reader["items"], f"{path}.element".lstrip("."))
            case "map":
                yield from self._within(writer["values"], reader["values"], f"{path}.value".lstrip("."))
            case _:
                yield from _leaves(written, read, path)

    def _within(self, written: Avro, read: Avro, path: str) -> Iterator[Difference]:
        """Compare the elements of a container, which may be empty."""
        for each in self.of(written, read, path):
            yield replace(each, effect=min(each.effect, Effect.SOME))

    def _records(self, writer: dict[str, Any], reader: dict[str, Any], path: str) -> Iterator[Difference]:
        pair = writer["name"], reader["name"]
        if pair in self.within or pair in self.equal:
            return
        self.within.add(pair)
        found = list(self._fields(writer["fields"], reader["fields"], path))
        self.within.discard(pair)
        if not found:
            self.equal.add(pair)
        yield from found

    def _fields(self, written: list[dict[str, Any]], read: list[dict[str, Any]], path: str) -> Iterator[Difference]:
        by_name = {each["name"]: each for each in read}
        by_alias = {alias: each for each in read for alias in each.get("aliases", [])}
        met = set()
        for each in written:
            name = each["name"]
            place = _below(path, name)
            target = by_name.get(name) or by_alias.get(name)
            if target is None:
                yield Difference(Effect.NONE, f"`{place}` is in {{writer}}, and {{reader}} ignores it")
                continue
            met.add(target["name"])
            if target["name"] != name:
                yield Difference(
                    Effect.NONE, f"`{place}` of {{writer}} is `{target['name']}` in {{reader}}, by an alias"
                )
            yield from self.of(each["type"], target["type"], _below(path, target["name"]))
        for name, each in by_name.items():
            if name in met:
                continue
            place = _below(path, name)
            if "default" in each:
                default = _literal(each["default"])
                yield Difference(
                    Effect.NONE, f"`{place}` is missing in {{writer}}; {{reader}} has the default {default}"
                )
            else:
                yield Difference(Effect.ALL, f"`{place}` is in {{reader}} without a default, and missing in {{writer}}")


def _renamed(writer: dict[str, Any], reader: dict[str, Any], path: str) -> Iterator[Difference]:
    if writer.get("name") != reader.get("name"):
        names = f"`{writer['name']}` in {{writer}} and `{reader['name']}` in {{reader}}"
        yield Difference(Effect.NONE, f"the type of {_subject(path)} is called {names}")


def _enums(writer: dict[str, Any], reader: dict[str, Any], path: str) -> Iterator[Difference]:
    lacking = [each for each in writer["symbols"] if each not in reader["symbols"]]
    if not lacking:
        return
    symbols = f"the symbol{'' if len(lacking) == 1 else 's'} {', '.join(lacking)}"
    if reader.get("default"):
        words = f"{_subject(path)} has {symbols} in {{writer}}, which {{reader}} reads as {reader['default']}"
        yield Difference(Effect.NONE, words)
        return
    effect = Effect.ALL if len(lacking) == len(writer["symbols"]) else Effect.SOME
    yield Difference(effect, f"{_subject(path)} has {symbols} in {{writer}}, which {{reader}} lacks")


def _leaves(written: Avro, read: Avro, path: str) -> Iterator[Difference]:
    """Compare two types without parts."""
    names = definition(written).get("logicalType"), definition(read).get("logicalType")
    words = f"{_subject(path)} is {_shown(written)} in {{writer}} and {_shown(read)} in {{reader}}"
    digits = [(definition(each).get("precision"), definition(each).get("scale", 0)) for each in (written, read)]
    alike = names[0] == names[1] or _INSTANTS.issuperset(names) or (names[0] is None and names[1] in _NUMBERS)
    if not alike or (names[0] == "decimal" and digits[0] != digits[1]):
        yield Difference(Effect.DOUBT, words)
    elif logical(written) != logical(read):
        yield Difference(Effect.NONE, words)


def _mismatch(written: Avro, read: Avro, path: str) -> Difference:
    aliased = "" if kind(written) != kind(read) or kind(written) not in _NAMED - {"fixed"} else ", without an alias"
    return Difference(
        Effect.ALL, f"{_subject(path)} is {_shown(written)} in {{writer}} and {_shown(read)} in {{reader}}{aliased}"
    )


def _akin(written: Avro, read: Avro) -> bool:
    """Return whether Avro tries to read values of one type as another: the same kind and name, or a promotion."""
    if kind(written) != kind(read):
        return kind(read) in _PROMOTIONS.get(kind(written), ())
    if kind(written) not in _NAMED:
        return True
    writer, reader = definition(written), definition(read)
    bare = _bare(writer["name"])
    named = bare == _bare(reader["name"]) or not {writer["name"], bare}.isdisjoint(reader.get("aliases", []))
    return named and writer.get("size") == reader.get("size")


def _defined(avro: Avro, names: Mapping[str, dict[str, Any]]) -> Avro:
    """Return the definition of a name, or the type itself."""
    if isinstance(avro, str):
        return names.get(avro, avro)
    if isinstance(avro, dict) and not isinstance(avro["type"], str):
        return _defined(avro["type"], names)
    return avro


def _shown(avro: Avro) -> str:
    if isinstance(avro, list):
        return " or ".join(_shown(each) for each in avro) or "nothing"
    parts = definition(avro)
    match kind(avro):
        case "fixed":
            return f"`{_bare(parts['name'])}` of {parts['size']} bytes"
        case "record" | "error" | "enum":
            return f"{kind(avro)} `{_bare(parts['name'])}`"
    match parts.get("logicalType"):
        case None:
            return _bare(kind(avro))
        case "decimal":
            return f"{kind(avro)} (decimal of {parts.get('precision')} digits, {parts.get('scale', 0)} after the point)"
        case name:
            return f"{kind(avro)} ({name})"


def _literal(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).replace("{", "{{").replace("}", "}}")


def _subject(path: str) -> str:
    return f"`{path}`" if path else "the value"


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _bare(name: str) -> str:
    return name.rpartition(".")[2]
