"""Avro records, plain and in the Confluent wire format: their columns, and the reasons for rejection."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from support.registry import SchemaRegistry, schema_registry
from support.spark import in_order, records
from tailrace.config import Registry, Sink, Source
from tailrace.errors import ConfigInvalid, SchemaInvalid
from tailrace.stages.decode import decode
from tailrace.stages.encode import encode
from tailrace.stages.formats import avro
from tailrace.stages.formats.arrow import Misfit, decode_values
from tailrace.stages.formats.avro_schema import read_avro, spark_schema
from tailrace.stages.formats.avro_writer import writer as writer_of
from tailrace.stages.rows import accepted

TWEET: dict[str, Any] = {
    "type": "record",
    "name": "Tweet",
    "namespace": "t",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "text", "type": ["null", "string"], "default": None},
        {"name": "good", "type": "boolean"},
    ],
}

EVERYTHING: dict[str, Any] = {
    "type": "record",
    "name": "Everything",
    "namespace": "t",
    "fields": [
        {"name": "i", "type": "int"},
        {"name": "l", "type": "long"},
        {"name": "f", "type": "float"},
        {"name": "d", "type": "double"},
        {"name": "b", "type": "boolean"},
        {"name": "s", "type": "string"},
        {"name": "by", "type": "bytes"},
        {"name": "fx", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {"name": "e", "type": {"type": "enum", "name": "Side", "symbols": ["LEFT", "RIGHT"]}},
        {"name": "e2", "type": ["null", "Side"]},
        {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "us", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "dec", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}},
        {"name": "u", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "tms", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "tus", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "a", "type": {"type": "array", "items": ["null", "long"]}},
        {"name": "m", "type": {"type": "map", "values": "string"}},
        {
            "name": "r",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Inner",
                    "fields": [
                        {"name": "x", "type": "int"},
                        {"name": "deep", "type": {"type": "map", "values": {"type": "array", "items": "Side"}}},
                    ],
                },
            ],
        },
        {"name": "rs", "type": {"type": "array", "items": "Inner"}},
    ],
}
COLUMNS = (
    "struct<i:int,l:bigint,f:float,d:double,b:boolean,s:string,by:binary,fx:binary,e:string,e2:string,ms:timestamp,"
    "us:timestamp,local:timestamp_ntz,day:date,dec:decimal(9,3),u:string,tms:int,tus:bigint,a:array<bigint>,"
    "m:map<string,string>,r:struct<x:int,deep:map<string,array<string>>>,"
    "rs:array<struct<x:int,deep:map<string,array<string>>>>>"
)
FULL: dict[str, Any] = {
    "i": -5, "l": 2**40, "f": 0.5, "d": 0.1, "b": True, "s": "ü😀", "by": b"\x00\xff", "fx": b"abcd", "e": "RIGHT",
    "e2": "LEFT", "ms": datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC), "us": None,
    "local": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC).replace(tzinfo=None), "day": date(1969, 12, 31),
    "dec": Decimal("-1234.567"), "u": UUID(int=7), "tms": time(1, 2, 3, 4000), "tus": time(1, 2, 3, 4), "a": [1, None],
    "m": {"k": "v"}, "r": {"x": 1, "deep": {"k": ["LEFT"]}}, "rs": [{"x": 2, "deep": {}}],
}  # fmt: skip


def written(schema: dict[str, Any], row: dict[str, Any], schema_id: int | None = None) -> bytes:
    """Encode a record as a producer does, in the wire format if it has a schema id."""
    stream = io.BytesIO()
    if schema_id is not None:
        stream.write(struct.pack(">bI", 0, schema_id))
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return stream.getvalue()


def source(registry: str | None = None, **options: str) -> Source:
    """Return an Avro source whose schema is in s.avsc."""
    settings: dict[str, Any] = {"topics": ["in"], "format": "avro", "schema": "s.avsc"}
    if registry is not None:
        settings["registry"] = {"url": registry, "options": options}
    return Source.model_validate(settings)


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    """Run a schema registry."""
    with schema_registry() as found:
        yield found


@pytest.fixture
def tweets(tmp_path: Path) -> Path:
    """Return a folder with the schema of a tweet."""
    (tmp_path / "s.avsc").write_text(json.dumps(TWEET))
    return tmp_path


def test_every_supported_type_is_decoded(spark: SparkSession, tmp_path: Path) -> None:
    """Primitive, named, nested and logical types keep their values."""
    (tmp_path / "s.avsc").write_text(json.dumps(EVERYTHING))
    frame = decode(records(spark, [written(EVERYTHING, FULL)], headers=[("h", b"v")]), source(), tmp_path)
    assert frame.drop("kafka", "_value", "_reason", "_detail").schema.simpleString() == COLUMNS
    (row,) = in_order(frame)
    assert (row["_reason"], row["_detail"]) == (None, None)
    found = row.asDict(recursive=True)
    assert {name: found[name] for name in FULL} == FULL | {
        "ms": FULL["ms"].replace(tzinfo=None),
        "u": str(FULL["u"]),
        "tms": 3723004,
        "tus": 3723000004,
    }
    assert [(each["key"], bytes(each["value"])) for each in row["kafka"]["headers"]] == [("h", b"v")]


def test_bytes_that_are_not_exactly_one_record_are_rejected(spark: SparkSession, tweets: Path) -> None:
    """A value that is truncated at any byte, has trailing bytes or is empty is rejected with its original bytes."""
    good = written(TWEET, {"id": 300, "text": "hello", "good": True})
    values = [good, *(good[:length] for length in range(len(good))), good + b"x", good + good, None]
    rows = in_order(decode(records(spark, values), source(), tweets))
    assert [row["_reason"] for row in rows] == [None, *["not avro"] * (len(good) + 2), "no value"]
    assert [row["_value"] for row in rows] == values
    assert "follow the record" in rows[-2]["_detail"]
    assert "ends within" in rows[len(good)]["_detail"]


def test_malformed_bytes_reject_only_their_own_record(spark: SparkSession, tmp_path: Path) -> None:
    """There is text that is not UTF-8, an unknown branch and symbol, and a time and a number out of range."""
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "v", "type": ["null", "string"]},
            {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A"]}},
            {"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "i", "type": "int"},
        ],
    }
    (tmp_path / "s.avsc").write_text(json.dumps(schema))
    far = written({"type": "record", "name": "L", "fields": [{"name": "l", "type": "long"}]}, {"l": 2**62})
    good = b"\x02\x02a" + b"\x00" + b"\x02" + b"\x04"
    values = [
        good,
        b"\x02\x02\xff" + b"\x00" + b"\x02" + b"\x04",
        b"\x08" + b"\x00" + b"\x02" + b"\x04",
        b"\x00" + b"\x08" + b"\x02" + b"\x04",
        b"\x00" + b"\x00" + far + b"\x04",
        b"\x00" + b"\x00" + b"\x02" + far,
        good,
    ]
    rows = in_order(decode(records(spark, values), source(), tmp_path))
    assert [row["_reason"] for row in rows] == [None, *["not avro"] * 5, None]
    assert (rows[6]["v"], rows[6]["e"], rows[6]["i"]) == ("a", "A", 2)


def test_the_wire_format_is_read_with_the_writers_schema(
    spark: SparkSession, tweets: Path, registry: SchemaRegistry
) -> None:
    """Older and newer writers' schemas resolve to the schema of the file."""
    older = TWEET | {"fields": [TWEET["fields"][2], {"name": "id", "type": "int"}]}
    newer = TWEET | {"fields": [*TWEET["fields"], {"name": "extra", "type": {"type": "array", "items": "string"}}]}
    values = [
        written(older, {"id": 1, "good": True}, registry.add(older)),
        written(newer, {"id": 2, "text": "two", "good": False, "extra": ["x"]}, registry.add(newer)),
        written(TWEET, {"id": 3, "text": None, "good": True}, registry.add(TWEET)),
    ]
    rows = in_order(decode(records(spark, values), source(registry.url), tweets))
    assert [(row["id"], row["text"], row["good"], row["_reason"]) for row in rows] == [
        (1, None, True, None),
        (2, "two", False, None),
        (3, None, True, None),
    ]


@pytest.mark.parametrize("unit", ["timestamp-millis", "timestamp-micros"])
def test_number_of_a_writer_without_a_logical_type_is_read_in_the_readers_unit(
    spark: SparkSession, tmp_path: Path, registry: SchemaRegistry, unit: str
) -> None:
    """fastavro leaves the number, which would become a moment of another year."""
    moment = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    number = round(moment.timestamp() * 1000) * (1000 if unit == "timestamp-micros" else 1)
    plain = {"type": "record", "name": "R", "fields": [{"name": name, "type": "long"} for name in ("at", "local")]}
    fields = [
        {"name": name, "type": {"type": "long", "logicalType": kind}}
        for name, kind in (("at", unit), ("local", f"local-{unit}"))
    ]
    (tmp_path / "s.avsc").write_text(json.dumps(plain | {"fields": fields}), encoding="utf-8")
    value = written(plain, {"at": number, "local": number}, registry.add(plain))
    [row] = in_order(decode(records(spark, [value]), source(registry.url), tmp_path))
    assert (row["at"], row["local"], row["_reason"]) == (*[moment.replace(tzinfo=None)] * 2, None)


MORNING = time(1, 0, 0, 2000)
SAME = UUID(int=7)
LOGICAL: list[tuple[Any, Any, Any, Any]] = [  # the writer's type, its value, the reader's type, the column's value
    ("int", 3_600_002, ("int", "time-millis"), 3_600_002),
    (("int", "time-millis"), MORNING, ("int", "time-millis"), 3_600_002),
    (("int", "time-millis"), MORNING, ("long", "time-micros"), 3_600_002_000),
    ("long", 3_600_002_000, ("long", "time-micros"), 3_600_002_000),
    ("int", 3_600_002, ("long", "time-micros"), 3_600_002),
    (("long", "time-micros"), MORNING, ("long", "time-micros"), 3_600_002_000),
    (("long", "timestamp-millis"), datetime(2026, 1, 2, tzinfo=UTC), ("long", "time-micros"), None),
    (("int", "date"), date(2026, 1, 2), ("int", "time-millis"), None),
    ("int", 20_455, ("int", "date"), date(2026, 1, 2)),
    (("int", "date"), date(2026, 1, 2), ("int", "date"), date(2026, 1, 2)),
    (("int", "time-millis"), MORNING, ("int", "date"), None),
    ("string", str(SAME), ("string", "uuid"), str(SAME)),
    (("string", "uuid"), SAME, ("string", "uuid"), str(SAME)),
    ("bytes", b"\x04", ("bytes", "decimal"), None),
    (("bytes", "decimal"), Decimal("1.25"), ("bytes", "decimal"), Decimal("1.25")),
]


def of_one_field(kind: str | tuple[str, str]) -> dict[str, Any]:
    """Return the schema of a record with one field of this type, given with its logical type if it has one."""
    digits = {"precision": 9, "scale": 2} if kind == ("bytes", "decimal") else {}
    avro_type = kind if isinstance(kind, str) else {"type": kind[0], "logicalType": kind[1], **digits}
    return {"type": "record", "name": "R", "fields": [{"name": "x", "type": avro_type}]}


@pytest.mark.parametrize(("writer", "value", "reader", "expected"), LOGICAL)
def test_logical_type_of_the_reader_gives_the_unit_and_the_writers_value_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: Any, value: Any, reader: Any, expected: Any
) -> None:
    """fastavro converts by the writer's logical type alone; values of another kind are rejected."""
    (tmp_path / "s.avsc").write_text(json.dumps(of_one_field(reader)), encoding="utf-8")
    schema, parsed = read_avro("s.avsc", tmp_path), writer_of(json.dumps(of_one_field(writer)), {})
    monkeypatch.setattr(avro, "registry", lambda settings: SimpleNamespace(writer=lambda number: parsed))
    wanted = to_arrow_schema(spark_schema(schema.expanded), timezone="UTC")
    decoder = avro.decoder(schema, Registry.model_validate({"url": "http://registry"}))
    [column], verdicts = decode_values([written(of_one_field(writer), {"x": value}, 1)], wanted, decoder, "no fit")
    assert column.to_pylist() == [expected]
    assert (verdicts.reasons[0] is None) == (expected is not None)


def test_uuid_in_sixteen_bytes_is_the_text_of_a_uuid(tmp_path: Path) -> None:
    """fastavro knows this form of a uuid neither when it reads nor when it writes."""
    fields = [{"name": "x", "type": {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"}}]
    (tmp_path / "s.avsc").write_text(json.dumps({"type": "record", "name": "R", "fields": fields}), encoding="utf-8")
    schema = read_avro("s.avsc", tmp_path)
    assert avro.decoder(schema, None)(SAME.bytes) == {"x": str(SAME)}
    assert avro.encoder(schema, None)({"x": str(SAME)}) == SAME.bytes
    with pytest.raises(Misfit, match="is no uuid"):
        avro.encoder(schema, None)({"x": "nonsense"})


def test_a_schema_that_the_registry_does_not_have_rejects_the_record(
    spark: SparkSession, tweets: Path, registry: SchemaRegistry
) -> None:
    """Unknown ids, missing prefixes and truncated records are rejected; the others go through."""
    number = registry.add(TWEET)
    row = {"id": 1, "text": "t", "good": True}
    good = written(TWEET, row, number)
    values = [good, written(TWEET, row, 77), b"\x00\x00", b"", written(TWEET, row), good[:-1], None]
    rows = in_order(decode(records(spark, values), source(registry.url), tweets))
    assert [row["_reason"] for row in rows] == [
        None, "unknown schema", "not avro", "not avro", "not avro", "not avro", "no value",
    ]  # fmt: skip
    assert "schema id 77" in rows[1]["_detail"]


def test_the_registry_is_asked_once_for_a_schema(tweets: Path, registry: SchemaRegistry) -> None:
    """A thousand records of one schema need one request, and so do those of an unknown one."""
    number = registry.add(TWEET)
    read = avro.decoder(read_avro("s.avsc", tweets), source(registry.url).registry)
    record = written(TWEET, {"id": 1, "text": "t", "good": True}, number)
    unknown = written(TWEET, {"id": 1, "text": "t", "good": True}, 9)
    for _ in range(1000):
        assert read(record)["id"] == 1
        with pytest.raises(Misfit):
            read(unknown)
    assert len(registry.asked) == 2


@pytest.mark.parametrize("fault", ["broken", "gone", "covered"])
def test_a_registry_that_does_not_answer_fails_the_task(
    spark: SparkSession, tweets: Path, registry: SchemaRegistry, fault: str
) -> None:
    """No record gets a verdict while the registry is unreachable, or a proxy answers that it knows no such page."""
    registry.broken, registry.covered = fault == "broken", fault == "covered"
    url = registry.url if fault != "gone" else "http://user:hidden@127.0.0.1:9"
    frame = decode(
        records(spark, [written(TWEET, {"id": 1, "good": True}, 1)]), source(url, **{"max.retries": "0"}), tweets
    )
    with pytest.raises(PythonException) as raised:
        frame.collect()
    assert "TR-207" in str(raised.value)
    assert "hidden" not in str(raised.value)


def test_an_option_that_the_registrys_client_refuses_is_an_error(tweets: Path, registry: SchemaRegistry) -> None:
    """The error quotes the client's own message."""
    bad = {"basic.auth.user.info": "a name without a password"}
    with pytest.raises(ConfigInvalid) as raised:
        avro.decoder(read_avro("s.avsc", tweets), source(registry.url, **bad).registry)
    assert "user.info" in str(raised.value)


def record_of(kind: Any) -> str:
    """Return a schema with one field of this type."""
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("{", "not JSON"),
        ('{"type": "record", "name": "R"}', "fields"),
        (record_of("strnig"), "strnig"),
        ('"string"', "does not define a record"),
        (json.dumps({"type": "record", "name": "R", "fields": []}), "without fields"),
        (record_of(["int", "string"]), "x is a union of int, string"),
        (record_of("null"), "x is null"),
        (record_of(["null", "R"]), "contains itself"),
        (record_of({"type": "bytes", "logicalType": "decimal", "precision": 40}), "40 digits"),
        (record_of("long").replace('"x"', '"kafka"'), "kafka"),
        (record_of("long").replace('"x"', '"_value"'), "_value"),
    ],
)
def test_an_invalid_schema_is_refused(spark: SparkSession, tmp_path: Path, text: str | None, words: str) -> None:
    """The error names the file or the field, before a record is read."""
    if text is not None:
        (tmp_path / "s.avsc").write_text(text)
    with pytest.raises(SchemaInvalid) as raised:
        decode(records(spark, []), source(), tmp_path)
    assert words in str(raised.value)


def surrogate_free() -> st.SearchStrategy[str]:
    """Draw any text that UTF-8 can encode."""
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


INNER = st.fixed_dictionaries(
    {
        "x": st.integers(-(2**31), 2**31 - 1),
        "deep": st.dictionaries(surrogate_free(), st.lists(st.sampled_from(["LEFT", "RIGHT"]), max_size=3), max_size=3),
    }
)
MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))  # noqa: DTZ001 - Hypothesis takes naive ones
ROWS = st.fixed_dictionaries(
    {
        "i": st.integers(-(2**31), 2**31 - 1),
        "l": st.integers(-(2**63), 2**63 - 1),
        "f": st.floats(width=32, allow_nan=False),
        "d": st.floats(allow_nan=False),
        "b": st.booleans(),
        "s": surrogate_free(),
        "by": st.binary(max_size=20),
        "fx": st.binary(min_size=4, max_size=4),
        "e": st.sampled_from(["LEFT", "RIGHT"]),
        "e2": st.none() | st.sampled_from(["LEFT", "RIGHT"]),
        "ms": MOMENTS.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000, tzinfo=UTC)),
        "us": st.none() | MOMENTS.map(lambda at: at.replace(tzinfo=UTC)),
        "local": MOMENTS,
        "day": st.dates(),
        "dec": st.decimals(-999999, 999999, places=3),
        "u": st.uuids(),
        "tms": st.times().map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)),
        "tus": st.times(),
        "a": st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=4),
        "m": st.dictionaries(surrogate_free(), surrogate_free(), max_size=4),
        "r": st.none() | INNER,
        "rs": st.lists(INNER, max_size=3),
    }
)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(rows=st.lists(ROWS, min_size=1, max_size=20))
def test_decoded_values_are_encoded_unchanged(spark: SparkSession, tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    """With Avro in and Avro out, no value of any type changes on the way."""
    (tmp_path / "s.avsc").write_text(json.dumps(EVERYTHING))
    values = [written(EVERYTHING, row) for row in rows]
    good = accepted(decode(records(spark, values), source(), tmp_path)).selectExpr("*", "kafka.key as key")
    sink = Sink.model_validate({"topic": "out", "format": "avro", "schema": "s.avsc"})
    found = {row["key"]: row for row in encode(good, sink, tmp_path).collect()}
    parsed = fastavro.parse_schema(EVERYTHING)
    for number, value in enumerate(values):
        row = found[f"k{number}".encode()]
        assert row["reason"] is None
        again = fastavro.schemaless_reader(io.BytesIO(row["value"]), parsed, None)
        assert again == fastavro.schemaless_reader(io.BytesIO(value), parsed, None)
