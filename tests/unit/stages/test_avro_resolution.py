"""The differences between two Avro schemas in words, and whether their verdict is what fastavro then does."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.stages.formats.avro_resolution import Effect, Schema, differences, worst

Field = tuple[str, Any, dict[str, Any]]
NONE, DOUBT, SOME, ALL = Effect
COLOURS = {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}


def record(*fields: Field, name: str = "Order", **more: Any) -> dict[str, Any]:
    """Return the schema of a record with these fields: name, type, and the rest of each."""
    made = [{"name": field, "type": kind} | rest for field, kind, rest in fields]
    return {"type": "record", "name": name, "namespace": "shop", "fields": made} | more


def a(kind: Any, **rest: Any) -> dict[str, Any]:
    """Return the schema of a record with the field `a` of a type."""
    return record(("a", kind, rest))


def compared(writer: Any, reader: Any) -> list[tuple[Effect, str]]:
    """Return the effects and the words, with the names v1 of the writer's schema and v2 of the reader's."""
    found = differences(Schema.of(json.dumps(writer)), Schema.of(json.dumps(reader)))
    return [(each.effect, each.text("v1", "v2")) for each in found]


def decimal(precision: int, scale: int) -> dict[str, Any]:
    """Return the type of a decimal."""
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


INNER = record(("x", "int", {}), name="Inner")
GROWN = record(("x", "int", {}), ("y", "int", {}), name="Inner")
ADDED = "is in v2 without a default, and missing in v1"


@pytest.mark.parametrize(
    ("writer", "reader", "expected"),
    [
        (a("int"), a("int"), []),
        (a("int"), record(("a", "int", {}), ("b", "int", {})), [(ALL, f"`b` {ADDED}")]),
        (
            a("int"),
            record(("a", "int", {}), ("b", {"type": "map", "values": "int"}, {"default": {}})),
            [(NONE, "`b` is missing in v1; v2 has the default {}")],
        ),
        (record(("a", "int", {}), ("b", "int", {})), a("int"), [(NONE, "`b` is in v1, and v2 ignores it")]),
        (a("int"), a("string"), [(ALL, "`a` is int in v1 and string in v2")]),
        (a("int"), a("long"), [(NONE, "`a` is int in v1 and long in v2")]),
        (a("long"), a("int"), [(ALL, "`a` is long in v1 and int in v2")]),
        (a("float"), a("double"), [(NONE, "`a` is float in v1 and double in v2")]),
        (a("string"), a("bytes"), [(NONE, "`a` is string in v1 and bytes in v2")]),
        (a(["null", "int"]), a("int"), [(SOME, "`a` may be null in v1, and is int in v2")]),
        (a(["null", "int"]), a("string"), [(ALL, "`a` is null or int in v1 and string in v2")]),
        (a("int"), a(["null", "int"]), []),
        (a("int"), a(["null", "string"]), [(ALL, "`a` is int in v1 and null or string in v2")]),
        (a(["int", "string"]), a(["null", "int"]), [(SOME, "`a` may be string in v1, and is null or int in v2")]),
        (a(COLOURS), a(COLOURS | {"symbols": ["BLUE"]}), [(SOME, "`a` has the symbol RED in v1, which v2 lacks")]),
        (a(COLOURS), a(COLOURS | {"symbols": ["X"]}), [(ALL, "`a` has the symbols RED, BLUE in v1, which v2 lacks")]),
        (
            a(COLOURS),
            a(COLOURS | {"symbols": ["BLUE"], "default": "BLUE"}),
            [(NONE, "`a` has the symbol RED in v1, which v2 reads as BLUE")],
        ),
        (a(COLOURS | {"symbols": ["BLUE"]}), a(COLOURS), []),
        (
            a({"type": "fixed", "name": "Hash", "size": 4}),
            a({"type": "fixed", "name": "Hash", "size": 8}),
            [(ALL, "`a` is `Hash` of 4 bytes in v1 and `Hash` of 8 bytes in v2")],
        ),
        (a(INNER), a(GROWN), [(ALL, f"`a.y` {ADDED}")]),
        (a(["null", INNER]), a(["null", GROWN]), [(SOME, f"`a.y` {ADDED}")]),
        (
            a({"type": "array", "items": INNER}),
            a({"type": "array", "items": GROWN}),
            [(SOME, f"`a.element.y` {ADDED}")],
        ),
        (
            a({"type": "map", "values": "int"}),
            a({"type": "map", "values": "string"}),
            [(SOME, "`a.value` is int in v1 and string in v2")],
        ),
        (
            a({"type": "map", "values": "int"}),
            a({"type": "array", "items": "int"}),
            [(ALL, "`a` is map in v1 and array in v2")],
        ),
        (
            record(("old", "int", {})),
            record(("new", "long", {"aliases": ["old"]})),
            [
                (NONE, "`old` of v1 is `new` in v2, by an alias"),
                (NONE, "`new` is int in v1 and long in v2"),
            ],
        ),
        (
            record(name="Purchase"),
            record(),
            [(ALL, "the value is record `Purchase` in v1 and record `Order` in v2, without an alias")],
        ),
        (
            record(name="Purchase"),
            record(aliases=["Purchase"]),
            [(NONE, "the type of the value is called `shop.Purchase` in v1 and `shop.Order` in v2")],
        ),
        (
            record(namespace="old"),
            record(),
            [(NONE, "the type of the value is called `old.Order` in v1 and `shop.Order` in v2")],
        ),
        (a(MILLIS), a(MILLIS | {"logicalType": "timestamp-micros"}), [(NONE, "MILLIS in v1 and MICROS in v2")]),
        (a(MILLIS), a("long"), [(DOUBT, "MILLIS in v1 and long in v2")]),
        (a("long"), a(MILLIS), [(NONE, "`a` is long in v1 and long (timestamp-millis) in v2")]),
        (
            a(decimal(9, 3)),
            a(decimal(9, 2)),
            [
                (
                    DOUBT,
                    "DECIMAL, 3 after the point) in v1 and bytes (decimal of 9 digits, 2 after the point) in v2",
                )
            ],
        ),
        (
            record(("next", ["null", "Order"], {}), ("a", "int", {})),
            record(("next", ["null", "Order"], {}), ("a", "string", {})),
            [(ALL, "`a` is int in v1 and string in v2")],
        ),
        (
            record(("a", COLOURS, {}), ("b", "Colour", {})),
            record(("b", COLOURS | {"symbols": ["RED"]}, {}), ("a", "Colour", {})),
            [
                (SOME, "`a` has the symbol BLUE in v1, which v2 lacks"),
                (SOME, "`b` has the symbol BLUE in v1, which v2 lacks"),
            ],
        ),
    ],
)
def test_difference_is_named_with_its_effect(writer: Any, reader: Any, expected: list[tuple[Effect, str]]) -> None:
    """Each kind of change has its words, and says which records it keeps from being read."""
    full = {"MILLIS": "`a` is long (timestamp-millis)", "MICROS": "long (timestamp-micros)"}
    full["DECIMAL"] = "`a` is bytes (decimal of 9 digits"
    for short, words in full.items():
        expected = [(effect, text.replace(short, words)) for effect, text in expected]
    assert compared(writer, reader) == expected


def test_names_defined_elsewhere_are_compared() -> None:
    """A schema of a registry may refer to types of other subjects."""
    known = {"shop.Inner": Schema.of(json.dumps(INNER)).top}
    writer = Schema.of(json.dumps(a("shop.Inner")), known)
    (found,) = differences(writer, Schema.of(json.dumps(a(GROWN))))
    assert found.text("v1", "v2") == f"`a.y` {ADDED}"


LEAVES = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string"])


@st.composite
def types(draw: st.DrawFn, names: tuple[str, ...] = (), depth: int = 2) -> Any:
    """Draw a type, named after its kind and place: fastavro would read a fixed as an enum of the same name."""
    kind = draw(st.sampled_from(["leaf"] * 3 + (["enum", "fixed", "record", "array", "map", "union"] if depth else [])))
    name = kind.title() + "".join(names)
    match kind:
        case "enum":
            symbols = draw(st.lists(st.sampled_from("ABCD"), min_size=1, max_size=3, unique=True))
            default = {"default": symbols[0]} if draw(st.booleans()) else {}
            return {"type": "enum", "name": name, "symbols": symbols} | default
        case "fixed":
            return {"type": "fixed", "name": name, "size": draw(st.integers(1, 2))}
        case "record":
            return draw(records(names, depth - 1))
        case "array":
            return {"type": "array", "items": draw(types((*names, "E"), depth - 1))}
        case "map":
            return {"type": "map", "values": draw(types((*names, "V"), depth - 1))}
        case "union":
            other = draw(types((*names, "U"), depth - 1).filter(lambda each: each != "null" and type(each) is not list))
            return ["null", other] if draw(st.booleans()) else [other, "null"]
    return draw(LEAVES)


@st.composite
def records(draw: st.DrawFn, names: tuple[str, ...] = (), depth: int = 2) -> dict[str, Any]:
    """Draw a record; some of its fields have a default, and some an alias."""
    fields = []
    for field in draw(st.lists(st.sampled_from("xyz"), max_size=3, unique=True)):
        kind = draw(types((*names, field), depth))
        rest: dict[str, Any] = {"aliases": ["w"]} if field == "z" and draw(st.booleans()) else {}
        if kind in ("int", "long") and draw(st.booleans()):
            rest["default"] = 0
        name = "w" if field == "z" and not rest and draw(st.booleans()) else field
        fields.append({"name": name, "type": kind} | rest)
    name = "R" + "".join(names) + ("" if draw(st.integers(0, 9)) else "other")
    return {"type": "record", "name": name, "fields": fields}


@st.composite
def rows(draw: st.DrawFn, kind: Any) -> Any:
    """Draw a row of a record."""
    return value(draw, kind)


def value(draw: st.DrawFn, kind: Any) -> Any:
    """Draw a value of a type."""
    if isinstance(kind, list):
        return value(draw, draw(st.sampled_from(kind)))
    match kind if isinstance(kind, str) else kind["type"]:
        case "null":
            return None
        case "boolean":
            return draw(st.booleans())
        case "int" | "long" | "float" | "double":
            return draw(st.integers(-3, 3))
        case "bytes":
            return draw(st.sampled_from([b"", b"ab"]))  # as a string they must be UTF-8
        case "string":
            return draw(st.sampled_from(["", "ü"]))
        case "enum":
            return draw(st.sampled_from(kind["symbols"]))
        case "fixed":
            return b"f" * kind["size"]
        case "array":
            return [value(draw, kind["items"]) for _ in range(draw(st.integers(0, 2)))]
        case "map":
            return {"k": value(draw, kind["values"])} if draw(st.booleans()) else {}
    return {each["name"]: value(draw, each["type"]) for each in kind["fields"]}


def reads(writer: Any, reader: Any, row: Any) -> bool:
    """Return whether fastavro reads with one schema what it wrote with the other."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(writer), row)
    stream.seek(0)
    try:
        fastavro.schemaless_reader(stream, fastavro.parse_schema(writer), fastavro.parse_schema(reader))
    except Exception:
        return False
    return True


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(st.data())
def test_verdict_is_what_fastavro_does(data: st.DataObject) -> None:
    """Without a breaking difference each record is read; with one that concerns all records, none is."""
    writer, reader = data.draw(records()), data.draw(records())
    effect = worst(differences(Schema.of(json.dumps(writer)), Schema.of(json.dumps(reader))))
    for _ in range(3):
        row = data.draw(rows(writer))
        read = reads(writer, reader, row)
        assert read or effect >= Effect.SOME
        assert not read or effect <= Effect.SOME
