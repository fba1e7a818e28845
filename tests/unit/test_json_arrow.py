"""JSON without a JVM: the same verdicts and the same values as Spark's parser gives, record by record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from support.json_forms import BYTES, EDGES, ONLY_SPARK
from support.spark import in_order, records
from tailrace.config import Source
from tailrace.decode import decode
from tailrace.formats.ddl import DdlInvalid, struct_of
from tailrace.formats.json_arrow import reader
from unit.test_decode_json import ACCEPTED, REJECTED, SCHEMA

EVERYTHING = f"{SCHEMA}, n timestamp_ntz"


def source(schema: str) -> Source:
    """A JSON source with this schema."""
    return Source.model_validate({"topics": ["in"], "format": "json", "schema": schema})


def by_spark(spark: SparkSession, schema: str, values: Sequence[bytes | None]) -> list[tuple[Any, ...]]:
    """Reason, detail and fields of each value, as Spark's parser gives them."""
    rows = in_order(decode(records(spark, values), source(schema), Path()))
    fields = StructType.fromDDL(schema)
    assert isinstance(fields, StructType)
    names = fields.names
    return [
        (row["_reason"], row["_detail"], shown({name: row[name] for name in names}) if row["_reason"] is None else None)
        for row in rows
    ]


def by_arrow(schema: str, values: Sequence[bytes | None]) -> list[tuple[Any, ...]]:
    """Reason, detail and fields of each value, without a JVM."""
    fields = struct_of(schema)
    assert fields is not None
    wanted = to_arrow_schema(fields, timezone="UTC")
    arrays, verdicts = reader(fields, wanted)(pa.array(values, pa.binary()))
    assert [array.type for array in arrays] == [field.type for field in wanted]
    columns = [array.to_pylist() for array in arrays]
    rows = [dict(zip(fields.names, row, strict=True)) for row in zip(*columns, strict=True)]
    return [
        (reason, detail, shown(row) if reason is None else None)
        for row, reason, detail in zip(rows, verdicts.reasons, verdicts.details, strict=True)
    ]


def shown(value: Any) -> Any:
    """A value of Spark or of Arrow in a form in which both are equal."""
    if hasattr(value, "asDict"):
        value = value.asDict()
    if isinstance(value, Mapping):
        return {name: shown(each) for name, each in value.items()}
    if isinstance(value, list):
        pairs = value and all(isinstance(each, tuple) for each in value)
        return {name: shown(each) for name, each in value} if pairs else [shown(each) for each in value]
    if hasattr(value, "tzinfo"):
        return value.replace(tzinfo=None)
    return repr(value) if isinstance(value, float) else bytes(value) if isinstance(value, bytearray) else value


def compared(spark: SparkSession, schema: str, values: Sequence[bytes | None]) -> None:
    """Both ways give each value the same verdict and the same fields."""
    ours, theirs = by_arrow(schema, values), by_spark(spark, schema, values)
    differing = {
        repr(value)[:80]: ((mine[0], mine[2]), (spark_[0], spark_[2]))
        for value, mine, spark_ in zip(values, ours, theirs, strict=True)
        if (mine[0], mine[2] or {}) != (spark_[0], spark_[2] or {}) and not only_maps_differ(mine, spark_)
    }
    assert differing == {}


def only_maps_differ(mine: tuple[Any, ...], theirs: tuple[Any, ...]) -> bool:
    """An empty map and an empty list look alike once they left Arrow."""
    return json.dumps(mine[2], default=str).replace("{}", "[]") == json.dumps(theirs[2], default=str).replace(
        "{}", "[]"
    )


@pytest.mark.parametrize(
    "ddl",
    [
        SCHEMA, "a int", "a: int", "`a b` string, `c``d` long",
        "A INT NOT NULL, b STRING COMMENT 'it\\'s \\u00fc', c array<map<string, struct<>>>",
        "d decimal, e dec(3), f numeric(38, 38), g real, h short, i integer, j byte, k tinyint, l bigint",
        "s struct<a int, b: string NOT NULL COMMENT \"x\">", "a boolean,b\n binary -- why\n, c /* no */ date",
        "date date, struct struct<map:map<string,int>>", "struct<a:int,b:string>", "1a int",
        "timestamp timestamp_ltz, double double, _a void",
    ],
)  # fmt: skip
def test_ddl_is_read_as_spark_reads_it(spark: SparkSession, ddl: str) -> None:
    """Types, names, NOT NULL and comments are the same."""
    assert struct_of(ddl) == StructType.fromDDL(ddl)


@pytest.mark.parametrize(
    "ddl",
    [
        "id lnog", "a int,", ", a int", "a", "a int int", "a array<int", "a map<string>", "a decimal(39,1)",
        "a decimal(1,2)", "a int NOT", "a int COMMENT x", "a `int`", "12 int", "a int NOT NULL NOT NULL", "a-b int",
        "", "a struct<b>", "a decimal(x)", "a.b int", "a int; b int", "a char(3)", "a interval", "a int DEFAULT 1",
    ],
)  # fmt: skip
def test_what_is_not_ddl_is_refused(ddl: str) -> None:
    """The message says where the text goes wrong."""
    with pytest.raises(DdlInvalid, match=r"unexpected|too early|not a decimal"):
        struct_of(ddl)


def test_the_ddl_of_a_bare_type_has_no_fields() -> None:
    """`long` is DDL, and no schema of records."""
    assert struct_of("long") is None
    assert struct_of("decimal(3,1)") is None


def test_forms_that_only_spark_takes_are_rejected(spark: SparkSession) -> None:
    """They are of a wrong type here; Spark would accept them."""
    values = [text.encode() for text in ONLY_SPARK]
    assert [reason for reason, _, _ in by_arrow(EVERYTHING, values)] == ["wrong type"] * len(values)


def test_both_ways_give_the_same_verdicts_and_values(spark: SparkSession) -> None:
    """Good records, bad records and odd ones are judged alike, one batch each."""
    values = [*REJECTED, *ACCEPTED, *(text.encode() for text in EDGES), *BYTES]
    compared(spark, EVERYTHING, values)
