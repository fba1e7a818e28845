"""JSON nested at any depth: a record with it is read or rejected, whatever its schema, and stops no batch."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from tailrace.stages.formats import json_arrow
from tailrace.stages.formats.ddl import struct_of
from tailrace.stages.formats.json_text import jackson_text
from unit.stages.test_json_arrow import compared

DEPTHS = (100, 300, 450, 600, 800, 990, 999, 1000, 5000)
READ = 800  # levels that Python certainly reads: its stack has 1,000, of which the callers need some
SCHEMAS = (
    "x string", "x int", "x date", "x decimal(5,2)", "x struct<y:string>", "x struct<y:date>", "x array<string>",
    "x map<string,string>", "x map<string,int>", "x array<date>", "z string",
)  # fmt: skip


def nested(depth: int, kind: str) -> bytes:
    """Return arrays or objects at this depth."""
    return b"[" * depth + b"]" * depth if kind == "arrays" else b'{"k":' * depth + b"1" + b"}" * depth


def deep_records(depth: int) -> list[bytes | None]:
    """Return records that have the depth in a field itself, or in an object or array within it."""
    values = (nested(depth, "arrays"), nested(depth, "objects"))
    return [
        record
        for value in values
        for record in (b'{"x":%b}' % value, b'{"x":{"y":%b}}' % value, b'{"x":[%b]}' % value, b'{"x":1,"x":%b}' % value)
    ]


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_deep_record_is_read_or_rejected(schema: str, depth: int) -> None:
    """Its neighbour is read."""
    fields = struct_of(schema)
    assert fields is not None
    read = json_arrow.reader(fields, to_arrow_schema(fields, timezone="UTC"))
    records = deep_records(depth)
    _, verdicts = read(pa.array([*records, b"{}"], pa.binary()))
    *reasons, fine = verdicts.reasons
    assert fine is None
    assert set(reasons) <= {None, "wrong type", "not json"}
    if depth >= 1000:
        assert set(reasons) == {"not json"}
    elif schema in ("x string", "z string") and depth <= READ:
        assert set(reasons) == {None}


@pytest.mark.parametrize("schema", ["x string", "x int", "x struct<y:string>"])
def test_deep_record_gets_sparks_verdict(spark: SparkSession, schema: str) -> None:
    """The text of a string field is Spark's, too."""
    compared(spark, schema, [each for depth in DEPTHS if not READ < depth < 1000 for each in deep_records(depth)])


@pytest.mark.parametrize("kind", ["arrays", "objects"])
def test_text_of_a_nested_value_needs_no_stack(kind: str) -> None:
    """It is written as it was read."""
    text = nested(READ, kind).decode()
    assert jackson_text(json.loads(text)) == text
    value: object = [] if kind == "arrays" else 1
    for _ in range(100_000 - (kind == "arrays")):
        value = [value] if kind == "arrays" else {"k": value}
    assert jackson_text(value) == nested(100_000, kind).decode()
