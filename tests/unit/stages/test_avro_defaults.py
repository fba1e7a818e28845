"""Defaults of Avro fields: read where the writer lacks the field, written where the column is missing."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import fastavro
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from support.registry import SchemaRegistry, schema_registry
from support.spark import in_order, records
from tailrace.admin import avro_lines
from tailrace.config import Registry, Sink, Source
from tailrace.errors import SchemaInvalid
from tailrace.stages.decode import decode
from tailrace.stages.encode import encode
from tailrace.stages.formats import avro
from tailrace.stages.formats.arrow import decode_values
from tailrace.stages.formats.avro_schema import read_avro, spark_schema
from tailrace.stages.formats.avro_writer import writer

OLDER: dict[str, Any] = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}
FIXED = {"type": "fixed", "name": "Two", "size": 2}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
LONG_PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10}
SHORT_PRICE = {"type": "fixed", "name": "Price", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 2}
IDENTITY = {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"}
INNER = {
    "type": "record",
    "name": "Inner",
    "fields": [
        {"name": "q", "type": "int"},
        {"name": "z", "type": "string", "default": "zz"},
        {"name": "b", "type": "bytes", "default": "ÿ"},
        {"name": "n", "type": ["null", "int"]},
    ],
}
LONG_DIGITS = Decimal("1234567890123456789012345678.9012345678")
LONG_TEXT = int(str(LONG_DIGITS).replace(".", "")).to_bytes(16, "big").decode("latin-1")

DEFAULTS: list[tuple[Any, Any, Any]] = [  # the type, its default in the schema, the value of both the column and Avro
    ("bytes", "ÿ\0A", b"\xff\0A"),
    ("bytes", "", b""),
    (["bytes", "null"], "ÿ", b"\xff"),
    (["null", "bytes"], None, None),
    (FIXED, "\x01þ", b"\x01\xfe"),
    ([FIXED, "null"], "\x01þ", b"\x01\xfe"),
    (PRICE, "\x01ô", Decimal("5.00")),
    (PRICE, "ÿ", Decimal("-0.01")),
    ([PRICE, "null"], "\0", Decimal("0.00")),
    (LONG_PRICE, LONG_TEXT, LONG_DIGITS),
    (SHORT_PRICE, "\0\x01", Decimal("0.01")),
    (IDENTITY, "\0" * 15 + "ÿ", str(UUID(int=255))),
    ({"type": "array", "items": "bytes"}, ["ÿ", ""], [b"\xff", b""]),
    ({"type": "array", "items": INNER}, [{"q": 1}], [{"q": 1, "z": "zz", "b": b"\xff", "n": None}]),
    ({"type": "map", "values": PRICE}, {"a": "\x01ô"}, [("a", Decimal("5.00"))]),
    (INNER, {"q": 3}, {"q": 3, "z": "zz", "b": b"\xff", "n": None}),
    (INNER, {"q": 3, "z": "own", "b": "\x80", "n": 1}, {"q": 3, "z": "own", "b": b"\x80", "n": 1}),
    ([INNER, "null"], {"q": 3}, {"q": 3, "z": "zz", "b": b"\xff", "n": None}),
    ("string", "ÿ", "ÿ"),
    ("float", 1, 1.0),
    ({"type": "enum", "name": "Side", "symbols": ["A", "B"]}, "B", "B"),
    ({"type": "int", "logicalType": "date"}, 10, date(1970, 1, 11)),
    ({"type": "long", "logicalType": "timestamp-millis"}, 1000, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
    ({"type": "long", "logicalType": "timestamp-micros"}, 1_000_000, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
    ({"type": "int", "logicalType": "time-millis"}, 10, 10),
    ({"type": "string", "logicalType": "uuid"}, str(UUID(int=7)), str(UUID(int=7))),
]


def newer(kind: Any, default: Any) -> dict[str, Any]:
    """Return the schema of OLDER with a field `v` more."""
    return OLDER | {"fields": [*OLDER["fields"], {"name": "v", "type": kind, "default": default}]}


def written(schema: dict[str, Any], row: dict[str, Any], schema_id: int) -> bytes:
    """Encode a record as a producer with a registry does."""
    stream = io.BytesIO(struct.pack(">bI", 0, schema_id))
    stream.seek(5)
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return stream.getvalue()


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    """Run a schema registry."""
    with schema_registry() as found:
        yield found


@pytest.mark.parametrize(("kind", "default", "expected"), DEFAULTS)
def test_default_is_read_for_a_field_that_the_writer_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, default: Any, expected: Any
) -> None:
    """fastavro passes on a default as the JSON of the schema has it: bytes and decimals as text, records in part."""
    (tmp_path / "s.avsc").write_text(json.dumps(newer(kind, default)), encoding="utf-8")
    schema, older = read_avro("s.avsc", tmp_path), writer(json.dumps(OLDER), {})
    monkeypatch.setattr(avro, "registry", lambda settings: SimpleNamespace(writer=lambda number: older))
    decoder = avro.decoder(schema, Registry.model_validate({"url": "http://registry"}))
    wanted = to_arrow_schema(spark_schema(schema.expanded), timezone="UTC")
    columns, verdicts = decode_values([written(OLDER, {"x": x}, 1) for x in (1, 2)], wanted, decoder, "no fit")
    assert verdicts.reasons == [None, None], verdicts.details
    assert [each.to_pylist() for each in columns] == [[1, 2], [expected, expected]]


@pytest.mark.parametrize(("kind", "default", "expected"), DEFAULTS)
def test_default_is_written_for_a_missing_column(tmp_path: Path, kind: Any, default: Any, expected: Any) -> None:
    """The start accepts such a row, and what is written is read as the default."""
    (tmp_path / "s.avsc").write_text(json.dumps(newer(kind, default)), encoding="utf-8")
    schema = read_avro("s.avsc", tmp_path)
    wanted = to_arrow_schema(spark_schema(schema.expanded), timezone="UTC")
    value = avro.encoder(schema, None)({"x": 1})
    columns, verdicts = decode_values([value], wanted, avro.decoder(schema, None), "no fit")
    assert verdicts.reasons == [None], verdicts.details
    assert [each.to_pylist() for each in columns] == [[1], [expected]]


def test_default_of_a_type_that_is_defined_elsewhere_is_its_bytes(tmp_path: Path) -> None:
    """A field may name a type of another field, and a record within may lack a column too."""
    fields = [
        {"name": "a", "type": {"type": "record", "name": "Inner", "fields": [{"name": "f", "type": FIXED}]}},
        {"name": "b", "type": "Two", "default": "ÿþ"},
        {"name": "c", "type": "Inner", "default": {"f": "\x01\x02"}},
        {"name": "d", "type": {"type": "record", "name": "Other", "fields": [
            {"name": "x", "type": "int"}, {"name": "g", "type": "Two", "default": "\x80\x81"},
        ]}},
    ]  # fmt: skip
    (tmp_path / "s.avsc").write_text(json.dumps({"type": "record", "name": "R", "fields": fields}), encoding="utf-8")
    schema = read_avro("s.avsc", tmp_path)
    value = avro.encoder(schema, None)({"a": {"f": b"ab"}, "d": {"x": 1}})
    assert avro.decoder(schema, None)(value) == {
        "a": {"f": b"ab"}, "b": b"\xff\xfe", "c": {"f": b"\x01\x02"}, "d": {"x": 1, "g": b"\x80\x81"},
    }  # fmt: skip


def test_registry_keeps_the_schema_as_its_file_has_it(
    spark: SparkSession, tmp_path: Path, registry: SchemaRegistry
) -> None:
    """Defaults are decoded for reading and writing only; records of an older writer and a missing column show both."""
    schema = newer(PRICE, "\x01ô")
    (tmp_path / "s.avsc").write_text(json.dumps(schema), encoding="utf-8")
    settings = {"format": "avro", "schema": "s.avsc", "registry": {"url": registry.url}}
    value = written(OLDER, {"x": 1}, registry.add(OLDER))
    source = Source.model_validate({"topics": ["in"]} | settings)
    [row] = in_order(decode(records(spark, [value]), source, tmp_path))
    assert (row["x"], row["v"], row["_reason"]) == (1, Decimal("5.00"), None)
    [out] = encode(spark.sql("SELECT 2 AS x"), Sink.model_validate({"topic": "out"} | settings), tmp_path).collect()
    assert (out["reason"], out["value"]) == (None, written(schema, {"x": 2, "v": Decimal("5.00")}, 2))
    assert json.loads(registry.schemas[2]) == schema


def test_line_of_json_takes_the_default_of_the_registrys_schema(registry: SchemaRegistry) -> None:
    """A line that lacks bytes is written with their default."""
    registry.add(newer("bytes", "ÿ"))
    encoder = avro_lines.encoder(None, Registry.model_validate({"url": registry.url}), "in")
    assert encoder(b'{"x":1}') == written(newer("bytes", ""), {"x": 1, "v": b"\xff"}, 1)


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("bytes", "Ā"),
        (FIXED, "abc"),
        (PRICE, "\x7f\xff\xff"),
        (INNER, {"z": "without q"}),
        ({"type": "array", "items": "bytes"}, [5]),
        ({"type": "map", "values": {"type": "array", "items": "bytes"}}, {"a": "text"}),
    ],
)
def test_default_that_its_type_cannot_hold_is_refused(tmp_path: Path, kind: Any, default: Any) -> None:
    """It would be read as something else, or reject every row that needs it."""
    (tmp_path / "s.avsc").write_text(json.dumps(newer(kind, default)), encoding="utf-8")
    with pytest.raises(SchemaInvalid, match=r"the default of R\.v "):
        read_avro("s.avsc", tmp_path)
