"""JSON records, good and bad: the function's input, and the reasons for rejection."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from support.spark import AT, in_order, records
from tailrace.config import Source
from tailrace.errors import SchemaInvalid
from tailrace.stages.decode import decode
from tailrace.stages.formats.json_model import load_model, read_model, schema_of

SCHEMA = (
    "i int, l long, d double, f float, dec decimal(5,2), s string, b boolean, t timestamp, dt date, bin binary, "
    "st struct<x:int,y:struct<z:int>>, a array<int>, m map<string,int>, ast array<struct<q:int>>, sh smallint"
)

NEW_YEAR = datetime(2020, 1, 1, 0, 0, 0, 123456, tzinfo=UTC).replace(tzinfo=None)

REJECTED: dict[bytes | None, str] = {
    None: "no value",
    b"": "not json",
    b"  ": "not json",
    b'{"i":1} x': "not json",
    b'{"i":1}{"i":2}': "not json",
    b'{"i":1},{"i":2}': "not json",
    b'{"i":1}]': "not json",
    b'{"i":1}],[': "not json",
    b'{"i":1,}': "not json",
    b'{"i":1': "not json",
    b'{"d":NaN}': "not json",
    b'{"i":01}': "not json",
    b'// c\n{"i":1}': "not json",
    b'\xef\xbb\xbf{"i":1}': "not json",
    b"{'i':1}": "wrong type",
    b"[1]": "wrong type",
    b'[{"i":1}]': "wrong type",
    b'[{"i":1},{"i":2}]': "wrong type",
    b"5": "wrong type",
    b"null": "wrong type",
    b'{"i":"1"}': "wrong type",
    b'{"i":""}': "wrong type",
    b'{"i":1.5}': "wrong type",
    b'{"i":3000000000}': "wrong type",
    b'{"l":99999999999999999999}': "wrong type",
    b'{"sh":40000}': "wrong type",
    b'{"dec":12345.6}': "wrong type",
    b'{"dec":1.005}': "wrong type",
    b'{"dec":"1.005"}': "wrong type",
    b'{"dec":1.0000000000000000000000000000000000000000000000001}': "wrong type",
    b'{"dec":1e-400}': "wrong type",
    b'{"dec":"1,2.5"}': "wrong type",
    b'{"dec":["\\ud800"]}': "wrong type",
    b'{"dt":"\\ud800"}': "wrong type",
    b'{"dt":"2020-01-31T10:00"}': "wrong type",
    b'{"dt":"2020-01-31 foo"}': "wrong type",
    b'{"dt":"2020"}': "wrong type",
    b'{"b":"true"}': "wrong type",
    b'{"t":"nonsense"}': "wrong type",
    b'{"dt":"2020-01-32"}': "wrong type",
    b'{"bin":"!!!"}': "wrong type",
    b'{"st":{"x":"s"}}': "wrong type",
    b'{"st":{"x":1,"y":{"z":"s"}}}': "wrong type",
    b'{"st":5}': "wrong type",
    b'{"a":[1,"x"]}': "wrong type",
    b'{"m":{"k":"x"}}': "wrong type",
    b'{"ast":[{"q":"x"}]}': "wrong type",
    b'{"s":"\xff"}': "not utf-8",
    b'{"s":"\\ud83d"}': "not utf-8",
    b'{"s":"\\ude00 "}': "not utf-8",
    b'{"f":1e300}': "number out of range",
    b'{"d":1e999}': "number out of range",
}

ACCEPTED: dict[bytes, dict[str, Any]] = {
    b"{}": {},
    b' {"i":1}\n': {"i": 1},
    b'{"i":null}': {},
    b'{"unknown":1}': {},
    b'{"_detail":"x"}': {},
    b'{"i":1,"i":2}': {"i": 2},
    b'{"d":"Infinity"}': {"d": math.inf},
    b'{"dec":1.25}': {"dec": Decimal("1.25")},
    b'{"dec":"12.50"}': {"dec": Decimal("12.50")},
    b'{"dec":1.5000}': {"dec": Decimal("1.50")},
    b'{"dec":1E+2}': {"dec": Decimal("100.00")},
    b'{"dec":0E-8}': {"dec": Decimal("0.00")},
    b'{"dt":"2020-01-31T00:00:00.000Z"}': {"dt": date(2020, 1, 31)},
    b'{"s":{"a":1}}': {"s": '{"a":1}'},
    b'{"s":"\\ud83d\\ude00"}': {"s": "😀"},
    b'{"s":"\\\\ud83d"}': {"s": "\\ud83d"},
    b'{"t":"2020-01-01T00:00:00.123456Z"}': {"t": NEW_YEAR},
    b'{"dt":"2020-01-31"}': {"dt": date(2020, 1, 31)},
    b'{"bin":"AAEC"}': {"bin": b"\x00\x01\x02"},
    b'{"a":[1,null]}': {"a": [1, None]},
}


def source(schema: str) -> Source:
    """Return a JSON source with this schema."""
    return Source.model_validate({"topics": ["in"], "format": "json", "schema": schema})


def judged(spark: SparkSession, schema: str, values: list[bytes | None]) -> list[tuple[str | None, str | None]]:
    """Return the reason and the detail of each value."""
    return [
        (row["_reason"], row["_detail"]) for row in in_order(decode(records(spark, values), source(schema), Path()))
    ]


def test_each_bad_value_is_rejected_with_its_reason(spark: SparkSession) -> None:
    """Only a value that is exactly one object of the schema's types passes."""
    found = judged(spark, SCHEMA, list(REJECTED))
    assert dict(zip(REJECTED, (reason for reason, _ in found), strict=True)) == REJECTED
    assert all(detail for _, detail in found)


def test_a_good_value_keeps_all_its_fields(spark: SparkSession) -> None:
    """An accepted record has each field's value, and null only for a field that is null or absent."""
    rows = in_order(decode(records(spark, list(ACCEPTED)), source(SCHEMA), Path()))
    schema = StructType.fromDDL(SCHEMA)
    assert isinstance(schema, StructType)
    names = schema.names
    for value, row in zip(ACCEPTED, rows, strict=True):
        assert row["_reason"] is None, (value, row["_reason"])
        fields = row.asDict(recursive=True)
        assert {name: fields[name] for name in names if fields[name] is not None} == ACCEPTED[value]


def test_nan_written_as_text_is_a_number(spark: SparkSession) -> None:
    """What Spark's to_json writes for NaN can be read again."""
    (row,) = in_order(decode(records(spark, [b'{"d":"NaN"}']), source("d double"), Path()))
    assert row["_reason"] is None
    assert math.isnan(row["d"])


@pytest.mark.parametrize("more", ["", ", dec decimal(5,2)"], ids=["by Spark's parser", "by Python's"])
def test_the_detail_names_the_field_and_its_value(spark: SparkSession, more: str) -> None:
    """For a wrong type it has the field, its type and the value as JSON writes it, shortened, within structs too."""
    values: dict[bytes | None, str | None] = {
        b'{"i":"one"}': 'i is not int: "one"',
        b'{"i":"3"}': 'i is not int: "3"',
        b'{"i":1.5}': "i is not int: 1.5",
        b'{"i":{"i":1,"i":2},"s":5}': "i is not int: " if more else "the value, or something within a field of it",
        b'{"i":"' + b"x" * 200 + b'"}': 'i is not int: "' + "x" * 78 + "…",
        b'{"st":{"x":"two"}}': 'st.x is not int: "two"',
        b'{"st":{"x":null},"i":"a \\"b\\""}': 'i is not int: "a \\"b\\""',
        b'{"a":[1,"x"]}': 'a is not array<int>: [1,"x"]',
        b"[1]": "the value is not a JSON object",
        b'{"i":1,"st":{"x":1}}': None,
    }
    found = judged(spark, "i int, st struct<x:int>, a array<int>, s string" + more, list(values))
    for (_, detail), (value, wanted) in zip(found, values.items(), strict=True):
        assert (detail is None) == (wanted is None), value
        assert (detail or "").startswith(wanted or ""), value


def test_the_detail_of_an_inexact_value_has_its_digits(spark: SparkSession) -> None:
    """A number that would have to be rounded is shown as the record has it."""
    values: list[bytes | None] = [
        b'{"price":1.005}', b'{"price":"1.005"}', b'{"price":1.0000000000000000000001}', b'{"day":"2020-01-31 foo"}',
    ]  # fmt: skip
    assert judged(spark, "price decimal(10,2), day date", values) == [
        ("wrong type", "price is not decimal(10,2): 1.005"),
        ("wrong type", 'price is not decimal(10,2): "1.005"'),
        ("wrong type", "price is not decimal(10,2): 1.0000000000000000000001"),
        ("wrong type", 'day is not date: "2020-01-31 foo"'),
    ]


def test_a_time_without_a_zone_is_of_the_sessions_zone_beside_a_decimal(spark: SparkSession) -> None:
    """Python reads such a schema, and means the same moment as Spark's parser does."""
    times = ("2020-07-01T12:00:00", "2020-07-01T12:00:00Z", "2020-01-01")
    values: list[bytes | None] = [f'{{"t":"{time}"}}'.encode() for time in times]
    before = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    try:
        for zone in ("Europe/Berlin", "+02:30", "UTC"):
            spark.conf.set("spark.sql.session.timeZone", zone)
            by_spark, by_python = (
                [
                    row["moment"]
                    for row in decode(records(spark, values), source(schema), Path())
                    .selectExpr("unix_micros(t) AS moment", "kafka")
                    .orderBy("kafka.offset")
                    .collect()
                ]
                for schema in ("t timestamp", "t timestamp, price decimal(10,2)")
            )
            assert by_python == by_spark, zone
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_a_missing_not_null_field_is_named(spark: SparkSession) -> None:
    """NOT NULL applies at the top, in structs, in arrays and in maps."""
    schema = (
        "id long NOT NULL, st struct<x:int NOT NULL, y:int>, a array<struct<q:int NOT NULL>>, "
        "m map<string, struct<v:int NOT NULL>>"
    )
    found = judged(
        spark,
        schema,
        [
            b'{"id":1}',
            b"{}",
            b'{"id":null}',
            b'{"id":1,"st":{"y":1}}',
            b'{"id":1,"a":[{"q":1},{}]}',
            b'{"id":1,"m":{"k":{}}}',
            b'{"id":1,"st":{"x":1},"a":[{"q":1}],"m":{"k":{"v":2}}}',
        ],
    )
    assert found == [
        (None, None),
        ("field missing", "id"),
        ("field missing", "id"),
        ("field missing", "st.x"),
        ("field missing", "a.element.q"),
        ("field missing", "m.value.v"),
        (None, None),
    ]


@pytest.mark.parametrize("more", ["", ", dec decimal(5,2)"], ids=["by Spark's parser", "by Python's"])
def test_rejected_record_harms_nobody_who_reads_a_field_that_must_not_be_null(spark: SparkSession, more: str) -> None:
    """Spark reads such a field of all records without looking for nulls."""
    frame = decode(records(spark, [b'{"a":1}', b"x", b"{}"]), source(f"a long NOT NULL{more}"), Path())
    found = [(row["a"] or 0, row["_reason"]) for row in in_order(frame)]
    assert found == [(1, None), (0, "not json"), (0, "field missing")]


def test_field_that_must_not_be_null_is_declared_so_whatever_its_type(spark: SparkSession) -> None:
    """Spark keeps that in a checkpoint with state, and refuses to continue with a key that may be null."""
    types = ["decimal(5,2)", "date", "timestamp", "string", "binary", "boolean", "double"]
    types += ["array<int>", "map<string,int>", "struct<a:int,b:struct<c:date>>"]
    names = [f"f{number}" for number in range(len(types))]
    schema = ", ".join(f"{name} {kind} NOT NULL" for name, kind in zip(names, types, strict=True))
    frame = decode(records(spark, [b"x"]), source(schema), Path())
    assert {name for name in names if frame.schema[name].nullable} == set()
    row = in_order(frame)[0]
    assert row["_reason"] == "not json"
    assert [name for name in names if row[name] is None] == []


def test_the_original_record_is_kept_with_its_fields(spark: SparkSession) -> None:
    """Key, position, time, headers and the original bytes are kept, for good and bad records alike."""
    frame = decode(records(spark, [b'{"i":1}', b"x"], headers=[("h", b"v")]), source("i int"), Path())
    assert frame.columns == ["i", "kafka", "_value", "_reason", "_detail"]
    good, bad = in_order(frame)
    assert (bytes(good["_value"]), bytes(bad["_value"])) == (b'{"i":1}', b"x")
    for offset, row in enumerate((good, bad)):
        record = row["kafka"]
        assert bytes(record["key"]) == f"k{offset}".encode()
        assert (record["topic"], record["partition"], record["offset"]) == ("in", 3, offset)
        assert record["timestamp"] == AT.replace(tzinfo=None)
        assert [(each["key"], bytes(each["value"])) for each in record["headers"]] == [("h", b"v")]


def test_raw_bytes_are_never_rejected(spark: SparkSession) -> None:
    """A raw record has one column with its bytes as they are, or null."""
    frame = decode(records(spark, [b"\xff", None]), Source(topics=["in"]), Path())
    assert frame.columns == ["value", "kafka", "_value", "_reason", "_detail"]
    assert [(row["value"], row["_reason"]) for row in in_order(frame)] == [(b"\xff", None), (None, None)]


def test_a_schema_file_of_spark_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """A .json file contains the output of df.schema.json(), with NOT NULL."""
    (tmp_path / "s.json").write_text(StructType.fromDDL("id long NOT NULL").json())
    rows = in_order(decode(records(spark, [b'{"id":7}', b"{}"]), source("s.json"), tmp_path))
    assert [(row["id"], row["_reason"]) for row in rows] == [(7, None), (None, "field missing")]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("id lnog", "lnog"),
        ("long", "no fields"),
        ("t tinyint", "smallint"),
        ("m map<int,int>", "m"),
        ("kafka string", "kafka"),
        ("_reason_why string", "_reason_why"),
        ("a int, A int", "twice"),
        ("missing.json", "No such file"),
        ("broken.json", "not a Spark schema"),
        ("missing.py:Model", "No such file"),
        ("no.such.module:Model", "no.such.module"),
        ("models.py:Nothing", "no pydantic model 'Nothing'"),
        ("models.py:Anything", "field what is object"),
        ("models.py:Either", "field which is a union of int, str"),
        ("models.py:Tree", "contains itself"),
        ("raises.py:Model", "ZeroDivisionError"),
    ],
)
def test_an_invalid_schema_is_refused(spark: SparkSession, tmp_path: Path, schema: str, words: str) -> None:
    """The error names the problem, before a record is read."""
    (tmp_path / "broken.json").write_text('{"type": "struct"}')
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "raises.py").write_text("1 / 0")
    with pytest.raises(SchemaInvalid) as raised:
        decode(records(spark, []), source(schema), tmp_path)
    assert words in str(raised.value)


MODELS = """
from __future__ import annotations
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Literal
from pydantic import BaseModel, Field, field_validator

class Colour(Enum):
    RED = "red"

class Part(BaseModel):
    n: int
    tags: dict[str, list[int]] = {}

class Event(BaseModel):
    id: int
    text: str | None = None
    ratio: float = 0.5
    good: bool = True
    data: bytes = b""
    at: datetime | None = None
    day: date | None = None
    price: Annotated[Decimal, Field(max_digits=6, decimal_places=2)] | None = None
    colour: Colour = Colour.RED
    size: Literal["s", "m"] = "s"
    parts: list[Part] = []
    main: Part | None = None

    @field_validator("text")
    @classmethod
    def _text(cls, text):
        if text == "boom":
            raise RuntimeError("boom")
        return text

class Anything(BaseModel):
    what: object

class Either(BaseModel):
    which: int | str

class Tree(BaseModel):
    below: list[Tree]
"""


def test_a_models_schema_has_a_column_for_each_field(tmp_path: Path) -> None:
    """All supported types map to Spark's, nested ones too."""
    (tmp_path / "models.py").write_text(MODELS)
    found = schema_of(load_model(read_model("models.py:Event", tmp_path)))
    part = "struct<n:bigint,tags:map<string,array<bigint>>>"
    assert found.simpleString() == (
        "struct<id:bigint,text:string,ratio:double,good:boolean,data:binary,at:timestamp,day:date,"
        f"price:decimal(6,2),colour:string,size:string,parts:array<{part}>,main:{part}>"
    )


def test_a_model_validates_records_in_the_workers(spark: SparkSession, tmp_path: Path) -> None:
    """A model in a file that workers cannot import gives rows, and reasons for invalid records."""
    (tmp_path / "models.py").write_text(MODELS)
    full = (
        b'{"id":1,"text":"t","at":"2020-01-01T00:00:00.5Z","day":"2020-01-02","price":"12.30","colour":"red",'
        b'"size":"m","data":"xy","parts":[{"n":1,"tags":{"a":[1,2]}}],"main":{"n":2}}'
    )
    values = [
        full, b'{"id":2}', b'{"id":"x","size":"l"}', b"{}", b'{"id":1} x', b'{"id":"\xff"}', None,
        b'{"id":3,"text":"boom"}', b'{"id":99999999999999999999}', b"[1]",
    ]  # fmt: skip
    rows = in_order(decode(records(spark, values), source("models.py:Event"), tmp_path))
    assert [row["_reason"] for row in rows] == [
        None, None, "does not fit the model", "does not fit the model", "not json", "not utf-8", "no value",
        "does not fit the model", "does not fit the model", "does not fit the model",
    ]  # fmt: skip
    assert "id: " in rows[2]["_detail"]
    assert "size: " in rows[2]["_detail"]
    assert rows[7]["_detail"] == "RuntimeError: boom"
    first = rows[0].asDict(recursive=True)
    assert {name: first[name] for name in first if not name.startswith("_") and name != "kafka"} == {
        "id": 1,
        "text": "t",
        "ratio": 0.5,
        "good": True,
        "data": b"xy",
        "at": datetime(2020, 1, 1, 0, 0, 0, 500000, tzinfo=UTC).replace(tzinfo=None),
        "day": date(2020, 1, 2),
        "price": Decimal("12.30"),
        "colour": "red",
        "size": "m",
        "parts": [{"n": 1, "tags": {"a": [1, 2]}}],
        "main": {"n": 2, "tags": {}},
    }
    assert bytes(rows[4]["_value"]) == b'{"id":1} x'
