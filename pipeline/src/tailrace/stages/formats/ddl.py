"""Spark DDL parsed in Python: `id long NOT NULL, tags array<string>` as a StructType, without a JVM.

`StructType.fromDDL` calls Spark's own parser, which runs in the JVM. A pipeline whose data stays in Arrow has no JVM,
so this module parses the part of the grammar that applies to JSON. Collations, defaults, generated columns and types
without a JSON form are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_TYPES: dict[str, Callable[[], DataType]] = {
    "boolean": BooleanType, "byte": ByteType, "tinyint": ByteType, "short": ShortType, "smallint": ShortType,
    "int": IntegerType, "integer": IntegerType, "long": LongType, "bigint": LongType, "float": FloatType,
    "real": FloatType, "double": DoubleType, "string": StringType, "binary": BinaryType, "date": DateType,
    "timestamp": TimestampType, "timestamp_ltz": TimestampType, "timestamp_ntz": TimestampNTZType, "void": NullType,
}  # fmt: skip
Found = TypeVar("Found")
_DECIMALS = frozenset({"decimal", "dec", "numeric"})
_DIGITS = 38
_DEFAULT_DIGITS = 10
_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
    |(?P<quoted>`(?:[^`]|``)*`)
    |(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<word>\w+)
    |(?P<mark><>|[<>(),:])""",
    re.VERBOSE | re.DOTALL,
)
_NAME = re.compile(r"(?=\w*[A-Za-z_])[A-Za-z0-9_]+")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|([0-3][0-7]{2})|(.))", re.DOTALL)
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": r"\%", "_": r"\_"}


class DdlInvalid(ValueError):
    """Raised for text that is not DDL, with the position of the error."""


def struct_of(text: str) -> StructType | None:
    """Parse the columns; return None if the text is the DDL of a type without fields, such as `long`."""
    parser = _Parser(text)
    if parser.is_bare_type():
        found = parser.type_()
        parser.end()
        return found if isinstance(found, StructType) else None
    fields = parser.fields(":", closing="")
    parser.end()
    return StructType(fields)


class _Parser:
    """The tokens of one text, read from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._at = 0

    def is_bare_type(self) -> bool:
        """Return whether the text is one type rather than a list of columns."""
        first, second = self._peek(), self._peek(1)
        named = first[0] == "word" and (first[1].lower() in _TYPES or first[1].lower() in _DECIMALS)
        nested = first[0] == "word" and first[1].lower() in {"array", "map", "struct"}
        return (named and second[1] in {"", "("}) or (nested and second[1] in {"<", "<>"})

    def fields(self, colon: str, closing: str) -> list[StructField]:
        """Parse `name type`, separated by commas, up to the closing mark."""
        found: list[StructField] = []
        if self._peek()[1] == closing and closing:
            return found
        while True:
            found.append(self._field(colon))
            if self._peek()[1] != ",":
                return found
            self._take()

    def _field(self, colon: str) -> StructField:
        kind, name = self._take()
        if kind == "quoted":
            name = name[1:-1].replace("``", "`")
        elif kind != "word" or not _NAME.fullmatch(name):
            raise self._unexpected(-1)
        if self._peek()[1] == colon:
            self._take()
        found = self.type_()
        nullable, metadata = True, {}
        seen: set[str] = set()
        while self._peek()[0] == "word":
            word = self._take()[1].lower()
            if word in seen:
                raise self._unexpected(-1)
            seen.add(word)
            if word == "not":
                self._expect("null")
                nullable = False
            elif word == "comment":
                metadata = {"comment": self._string()}
            else:
                raise self._unexpected(-1)
        return StructField(name, found, nullable, metadata)

    def type_(self) -> DataType:
        """Parse one type."""
        kind, word = self._take()
        name = word.lower()
        if kind != "word":
            raise self._unexpected(-1)
        if name in _DECIMALS:
            return self._decimal()
        if name == "array":
            return ArrayType(self._between(self.type_))
        if name == "map":
            return self._between(self._map)
        if name == "struct":
            return self._struct()
        if name not in _TYPES:
            raise self._unexpected(-1)
        return _TYPES[name]()

    def _struct(self) -> StructType:
        if self._peek()[1] == "<>":
            self._take()
            return StructType([])
        return self._between(lambda: StructType(self.fields(":", closing=">")))

    def _map(self) -> MapType:
        key = self.type_()
        self._expect(",")
        return MapType(key, self.type_())

    def _decimal(self) -> DecimalType:
        if self._peek()[1] != "(":
            return DecimalType(_DEFAULT_DIGITS, 0)
        self._take()
        digits, scale = self._number(), 0
        if self._peek()[1] == ",":
            self._take()
            scale = self._number()
        self._expect(")")
        if digits > _DIGITS or scale > digits:
            raise DdlInvalid(
                f"decimal({digits},{scale}) is not a decimal: at most {_DIGITS} digits, the scale included"
            )
        return DecimalType(digits, scale)

    def _number(self) -> int:
        kind, word = self._take()
        if kind != "word" or not word.isdecimal():
            raise self._unexpected(-1)
        return int(word)

    def _string(self) -> str:
        kind, text = self._take()
        if kind != "text":
            raise self._unexpected(-1)
        return _ESCAPE.sub(_unescaped, text[1:-1])

    def _between(self, inner: Callable[[], Found]) -> Found:
        self._expect("<")
        found = inner()
        self._expect(">")
        return found

    def _expect(self, text: str) -> None:
        if self._take()[1].lower() != text:
            raise self._unexpected(-1)

    def end(self) -> None:
        """Raise DdlInvalid unless the text ends here."""
        if self._peek()[0] != "end":
            raise self._unexpected()

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        place = self._at + ahead
        return self._tokens[place][:2] if place < len(self._tokens) else ("end", "")

    def _take(self) -> tuple[str, str]:
        self._at += 1
        return self._peek(-1)

    def _unexpected(self, ahead: int = 0) -> DdlInvalid:
        place = self._at + ahead
        if place >= len(self._tokens):
            return DdlInvalid("it ends too early")
        _, word, position = self._tokens[place]
        return DdlInvalid(f"{word!r} at character {position + 1} is unexpected")


def _tokens(text: str) -> list[tuple[str, str, int]]:
    found: list[tuple[str, str, int]] = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise DdlInvalid(f"{text[at]!r} at character {at + 1} is unexpected")
        if token.lastgroup != "space":
            found.append((token.lastgroup or "", token[0], at))
        at = token.end()
    return found


def _unescaped(found: re.Match[str]) -> str:
    if found[1]:
        return chr(int(found[1], 16))
    if found[2]:
        return chr(int(found[2], 8))
    return _ESCAPED.get(found[3], found[3])
