"""JSON with a Spark schema, one record at a time in Python, with the verdict that Spark's parser would give.

The rules are those of `json_schema`: one JSON value and nothing else, each field of its type, NOT NULL honoured, no
number beyond its type, no text that UTF-8 cannot hold. Some odd timestamps that Spark accepts are rejected here as a
wrong type: years that do not have four digits or come before 1, times without a date (Spark adds today's), regions as
time zones (`Europe/Paris`). JSON nested too deeply for Python is rejected.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StructType,
)

from tailrace.stages.formats.arrow import NOT_UTF8, Decoder, Misfit
from tailrace.stages.formats.json_model import NOT_JSON
from tailrace.stages.formats.json_schema import INFINITY, MISSING, OUT_OF_RANGE, WRONG_TYPE
from tailrace.stages.formats.json_values import (
    Repeated,
    WrongType,
    converter,
    leaves,
    misfit_of,
    struct_converter,
    zone_of,
)

# Whether a value that is not null breaks a rule.
Broken = Callable[[Any], bool]

LONGEST_NUMBER = 1000  # characters, and
DEEPEST = 999  # levels, in Spark's parser
# A surrogate that is escaped without its other half is group 1.
_SURROGATE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_INFINITY = re.compile(INFINITY)
# What Spark takes for one JSON value: quotes of both kinds, control characters in text.
_TOKEN = re.compile(
    r"""[ \t\n\r]*(?:
    (?P<open>[\[{])|(?P<close>[\]}])|(?P<mark>[,:])
    |(?P<text>"(?:[^"\\]|\\(?:["'\\/bfnrt]|u[0-9a-fA-F]{4}))*"|'(?:[^'\\]|\\(?:["'\\/bfnrt]|u[0-9a-fA-F]{4}))*')
    |(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(?![0-9A-Za-z.+-])
    |(?P<word>true|false|null)(?![0-9A-Za-z_])
    )""",
    re.VERBOSE,
)
_LONG_NUMBER = re.compile(rf"[0-9.]{{{LONGEST_NUMBER}}}")


def decoder(schema: StructType, zone: str = "UTC") -> Decoder:
    """Return the function that decodes one record; timestamps without a time zone are of `zone`."""
    exact = any(isinstance(kind, DecimalType | FloatType) for kind in leaves(schema))
    parse = json.JSONDecoder(
        object_pairs_hook=_object, parse_constant=_refused, parse_float=_number if exact else None
    ).decode
    convert = struct_converter(schema, zone_of(zone))
    faults = list(_faults(schema))

    def decode(record: bytes) -> dict[str, Any]:
        try:
            text = record.decode()
        except UnicodeDecodeError:
            raise Misfit(NOT_UTF8, "the value has bytes that are not UTF-8") from None
        if len(text) > LONGEST_NUMBER and suspect(text) and not is_whole(text):
            raise Misfit(NOT_JSON, "the value is not one JSON value and nothing else")
        try:
            found = parse(text)
        except (ValueError, RecursionError):
            if is_whole(text):
                raise Misfit(WRONG_TYPE, _told(schema, None, text)) from None
            raise Misfit(NOT_JSON, "the value is not one JSON value and nothing else") from None
        try:
            row: dict[str, Any] = convert(found)
        except WrongType:
            raise Misfit(WRONG_TYPE, _told(schema, found, text)) from None
        if lone_surrogate(text):
            raise Misfit(NOT_UTF8, "half a surrogate pair is escaped")
        for reason, path, broken in faults:
            if broken(row) and not (reason == OUT_OF_RANGE and _INFINITY.search(text)):
                raise Misfit(reason, path)
        return row

    return decode


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    repeated = Repeated(found)
    repeated.pairs = pairs
    return repeated


def _refused(name: str) -> Any:
    raise ValueError(name)


def _number(text: str) -> Decimal | float:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent that no machine can hold
        return float(text)


def lone_surrogate(text: str) -> bool:
    """Return whether half a surrogate pair is escaped."""
    return ("\\ud" in text or "\\uD" in text) and any(each[1] for each in _SURROGATE.finditer(text))


def suspect(text: str) -> bool:
    """Return whether the text may contain a number too long, or nesting too deep, for Spark's parser."""
    return text.count("[") + text.count("{") > DEEPEST or _LONG_NUMBER.search(text) is not None


def is_whole(text: str) -> bool:
    """Return whether the text is exactly one value to `get_json_object`, which is more lenient than JSON."""
    at, depth, end = 0, [], len(text.rstrip(" \t\n\r"))
    state = "value"  # what may come next: value, first (a value or the end of an array), name, more, colon, after
    while at < end:
        token = _TOKEN.match(text, at)
        if token is None:
            return False
        at = token.end()
        kind, word = token.lastgroup, token[token.lastgroup or 0]
        if kind == "open" and state in {"value", "first"}:
            depth.append(word)
            state = "first" if word == "[" else "name"
        elif kind == "close":
            closes = depth and depth.pop() == ("[" if word == "]" else "{")
            if not closes or state not in {"after", "first" if word == "]" else "name"}:
                return False
            state = "after"
        elif kind == "mark" and word == ":" and state == "colon":
            state = "value"
        elif kind == "mark" and word == "," and state == "after" and depth:
            state = "value" if depth[-1] == "[" else "more"
        elif kind == "text" and state in {"name", "more"}:
            state = "colon"
        elif kind in {"text", "number", "word"} and state in {"value", "first"}:
            if kind == "number" and word.lstrip("-").isdecimal() and len(word.lstrip("-")) > LONGEST_NUMBER:
                return False
            state = "after"
        else:
            return False
        if len(depth) > DEEPEST:
            return False
    return state == "after" and not depth


def _faults(kind: DataType, path: str = "") -> Iterator[tuple[str, str, Broken]]:
    """Yield what can be wrong within a value of the right type, in the order in which Spark looks."""
    match kind:
        case StructType():
            for field in kind:
                below = f"{path}.{field.name}".lstrip(".")
                if not field.nullable:
                    yield MISSING, below, _lacks(field.name)
                for reason, where, broken in _faults(field.dataType, below):
                    yield reason, where, _within(field.name, broken)
        case ArrayType():
            if not kind.containsNull:
                yield MISSING, f"{path}.element", lambda values: None in values
            for reason, where, broken in _faults(kind.elementType, f"{path}.element"):
                yield reason, where, _any(broken)
        case MapType():
            if not kind.valueContainsNull:
                yield MISSING, f"{path}.value", lambda pairs: any(each is None for _, each in pairs)
            for reason, where, broken in _faults(kind.valueType, f"{path}.value"):
                yield reason, where, _any_value(broken)
        case FloatType() | DoubleType():
            yield OUT_OF_RANGE, path, math.isinf


def _lacks(name: str) -> Broken:
    return lambda row: row[name] is None


def _within(name: str, broken: Broken) -> Broken:
    return lambda row: row[name] is not None and broken(row[name])


def _any(broken: Broken) -> Broken:
    return lambda values: any(each is not None and broken(each) for each in values)


def _any_value(broken: Broken) -> Broken:
    return lambda pairs: any(each is not None and broken(each) for _, each in pairs)


def _told(schema: StructType, found: Any, text: str) -> str:
    """Name the field of the wrong type, as far as it can be determined."""
    if not text.lstrip(" ").startswith("{"):
        return "the value is not a JSON object"
    suspects = _suspects(schema, found, "") if isinstance(found, dict) else iter(())
    return next(suspects, "the value, or something within a field of it, is not what the schema says")


def _suspects(schema: StructType, found: dict[str, Any], path: str) -> Iterator[str]:
    for field in schema:
        value, below = found.get(field.name), f"{path}.{field.name}".lstrip(".")
        if isinstance(field.dataType, StructType):
            if isinstance(value, dict):
                yield from _suspects(field.dataType, value, below)
        elif value is not None:
            try:
                converter(field.dataType)(value)
            except WrongType:
                yield misfit_of(below, field.dataType, value)
