"""JSON without a JVM: the same verdicts and values as from Spark's parser, record by record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from support.json_forms import BYTES, EDGES, ONLY_SPARK
from support.spark import in_order, records
from tailrace.config import Source
from tailrace.stages.decode import decode
from tailrace.stages.formats import json_arrow
from tailrace.stages.formats.arrow import Verdicts, decode_batches, decode_values
from tailrace.stages.formats.ddl import DdlInvalid, struct_of
from tailrace.stages.formats.json_arrow import reader
from tailrace.stages.formats.json_records import decoder
from tailrace.stages.formats.json_schema import WRONG_TYPE
from unit.stages.test_decode_json import ACCEPTED, REJECTED, SCHEMA

EVERYTHING = f"{SCHEMA}, n timestamp_ntz"


def source(schema: str) -> Source:
    """Return a JSON source with this schema."""
    return Source.model_validate({"topics": ["in"], "format": "json", "schema": schema})


def by_spark(spark: SparkSession, schema: str, values: Sequence[bytes | None]) -> list[tuple[Any, ...]]:
    """Return reason, detail and fields of each value, from Spark's parser."""
    rows = in_order(decode(records(spark, values), source(schema), Path()))
    fields = StructType.fromDDL(schema)
    assert isinstance(fields, StructType)
    names = fields.names
    return [
        (row["_reason"], row["_detail"], shown({name: row[name] for name in names}) if row["_reason"] is None else None)
        for row in rows
    ]


def by_arrow(schema: str, values: Sequence[bytes | None]) -> list[tuple[Any, ...]]:
    """Return reason, detail and fields of each value, without a JVM."""
    fields = struct_of(schema)
    assert fields is not None
    wanted = to_arrow_schema(fields, timezone="UTC")
    arrays, verdicts = reader(fields, wanted)(pa.array(values, pa.binary()))
    assert [array.type for array in arrays] == [field.type for field in wanted]
    return shown_rows(fields.names, arrays, verdicts)


def shown_rows(names: Sequence[str], arrays: Sequence[pa.Array], verdicts: Verdicts) -> list[tuple[Any, ...]]:
    """Return reason, detail and fields of each row."""
    columns = [array.to_pylist() for array in arrays]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return [
        (reason, detail, shown(row) if reason is None else None)
        for row, reason, detail in zip(rows, verdicts.reasons, verdicts.details, strict=True)
    ]


def shown(value: Any) -> Any:
    """Return a value of Spark or of Arrow in a form in which both are equal."""
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
    """Check that both ways give each value the same verdict and the same fields."""
    ours, theirs = by_arrow(schema, values), by_spark(spark, schema, values)
    differing = {
        repr(value)[:80]: ((mine[0], mine[2]), (spark_[0], spark_[2]))
        for value, mine, spark_ in zip(values, ours, theirs, strict=True)
        if (mine[0], mine[2] or {}) != (spark_[0], spark_[2] or {}) and not only_maps_differ(mine, spark_)
    }
    assert differing == {}


def only_maps_differ(mine: tuple[Any, ...], theirs: tuple[Any, ...]) -> bool:
    """Return whether rows differ only in maps: an empty map and an empty list look alike outside Arrow."""
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
def test_invalid_ddl_is_refused(ddl: str) -> None:
    """The message shows where the text goes wrong."""
    with pytest.raises(DdlInvalid, match=r"unexpected|too early|not a decimal"):
        struct_of(ddl)


def test_ddl_of_a_bare_type_is_refused() -> None:
    """`long` is DDL, but not a schema of records."""
    assert struct_of("long") is None
    assert struct_of("decimal(3,1)") is None


def test_forms_that_only_spark_accepts_are_rejected(spark: SparkSession) -> None:
    """They have a wrong type here, but Spark would accept them."""
    values = [text.encode() for text in ONLY_SPARK]
    assert [reason for reason, _, _ in by_arrow(EVERYTHING, values)] == ["wrong type"] * len(values)


def test_both_ways_give_the_same_verdicts_and_values(spark: SparkSession) -> None:
    """Good, bad and odd records are judged alike, in one batch each."""
    values = [*REJECTED, *ACCEPTED, *(text.encode() for text in EDGES), *BYTES]
    compared(spark, EVERYTHING, values)


QUICK = (
    "i int, l long, d double, f float, dec decimal(5,2), s string, b boolean, t timestamp, n timestamp_ntz, dt date, "
    "bin binary, st struct<x:int NOT NULL,y:struct<z:int, w:double>>, a array<int>, ast array<struct<q:int,u:string>>, "
    "sh smallint, must long NOT NULL, ts array<timestamp>"
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.integers(-5, 5)
    | st.floats()
    | st.sampled_from([1.25, 999.99, 1000, -0.0, 0.5, 1e39, 1e308])
    | st.text(max_size=5)
    | st.sampled_from(
        [
            "2020-01-31", "2020-01-31T01:02:03.123456Z", "2020-01-31 01:02:03+01:00", "2020-01-31T01:02:03",
            "2020-02-30", "0001-01-01", "9999-12-31T23:59:59-17:00", "NaN", "Infinity", "AAE=", "1.25", "",
            "2020-01-31T24:00:00Z",
        ]
    )
)  # fmt: skip
NAMES = st.sampled_from([*struct_of(QUICK).names, "x", "y", "z", "q", "w", "other"])  # type: ignore[union-attr]
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=5
)
FITTING: dict[str, st.SearchStrategy[Any]] = {
    "i": st.integers(-(2**31), 2**31 - 1), "l": st.integers(-(2**63), 2**63 - 1), "s": st.text(max_size=5),
    "d": st.floats(allow_nan=False, allow_infinity=False), "b": st.booleans(), "dec": st.sampled_from([1.25, -0.5, 7]),
    "t": st.datetimes().map(lambda at: at.isoformat() + "Z"), "dt": st.dates().map(str),
    "st": st.fixed_dictionaries({"x": st.integers(0, 5)}, optional={"y": st.fixed_dictionaries({"w": st.just(0.5)})}),
    "a": st.lists(st.none() | st.integers(0, 5), max_size=3), "must": st.integers(0, 5),
    "ast": st.lists(st.fixed_dictionaries({}, optional={"q": st.integers(0, 5), "u": st.text(max_size=3)}), max_size=2),
    "f": st.floats(width=32, allow_nan=False, allow_infinity=False),
}  # fmt: skip


@st.composite
def values(draw: st.DrawFn) -> bytes | None:
    """Draw a record: a valid one, one of random fields, or one with some bytes changed."""
    row = draw(st.fixed_dictionaries({}, optional=FITTING))
    row |= draw(st.just({}) | st.dictionaries(NAMES, VALUES, max_size=2))
    text = json.dumps(row, ensure_ascii=draw(st.booleans()), indent=draw(st.none() | st.just(1)))
    record = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 1, 2]))):
        place = draw(st.integers(0, len(record)))
        record[place : place + draw(st.integers(0, 2))] = draw(
            st.sampled_from(
                [
                    b"",
                    b"}",
                    b"{",
                    b",",
                    b'"',
                    b"\n",
                    b" ",
                    b"NaN",
                    b"-",
                    b"0",
                    b"\xff",
                    b"\\",
                    b"}{",
                    b"]",
                    b":",
                    b"\x00",
                ]
            )
        )
    return draw(st.sampled_from([bytes(record), bytes(record), bytes(record), None, b"", bytes(record[:-1])]))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batch=st.lists(values(), max_size=12), schema=st.sampled_from([QUICK, SCHEMA, "l long, s string", "must long"]))
def test_a_batch_is_decoded_as_its_records_are(batch: list[bytes | None], schema: str) -> None:
    """Arrow's parser changes neither a verdict nor a value, whatever the other records are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_arrow, "_FEW", 1)  # so that small batches are split, too
        ours = by_arrow(schema, batch)
    assert ours == [found for value in batch for found in one_by_one(schema, [value])]


def one_by_one(schema: str, batch: Sequence[bytes | None]) -> list[tuple[Any, ...]]:
    """Return the results of the decoder for single records."""
    fields = struct_of(schema)
    assert fields is not None
    wanted = to_arrow_schema(fields, timezone="UTC")
    arrays, verdicts = decode_values(batch, wanted, decoder(fields), WRONG_TYPE)
    return shown_rows(fields.names, arrays, verdicts)


@pytest.mark.parametrize(
    ("schema", "record"),
    [
        ("d date", rb'{"d":"\ud800"}'),
        ("d decimal(10,2)", rb'{"d":"\ud800"}'),
        ("d decimal(10,2)", rb'{"d":{"a":"\ud800"}}'),
        ("d decimal(10,2)", rb'{"d":["\udc00"]}'),
        ("d struct<a:date>", rb'{"d":{"a":"\ud800"}}'),
        ("d date, m map<string,int>", rb'{"m":{"a":"\ud800"}}'),
        ("d date, m map<string,int>", rb'{"m":"\ud800"}'),
    ],
)
def test_detail_with_half_a_surrogate_pair_stops_no_batch(schema: str, record: bytes) -> None:
    """Arrow's texts are UTF-8, which has no form for it; the detail shows a question mark."""
    fields = struct_of(schema)
    assert fields is not None
    batch = pa.RecordBatch.from_pydict({"value": pa.array([record, b"{}"], pa.binary())})
    read = reader(fields, to_arrow_schema(fields, timezone="UTC"))
    [rows] = decode_batches(iter([batch]), fields, read, "value")
    assert rows.column("_reason").to_pylist() == ["wrong type", None]
    assert "?" in rows.column("_detail")[0].as_py()


DECIMALS = (
    "d decimal(10,2), w decimal(38,18), n decimal(38,0), s decimal(30,28), st struct<d:decimal(10,2)>, "
    "a array<decimal(38,18)>, k decimal(38,2), u decimal(19,19), v decimal(28,10)"
)
TINY = (
    "1e-41", "1e-99999999", "0e-999999999", "1E-000000099", "99999999999999999999999999999999999999e-57", "-1.5e-87",
    "0.00000000000000000000000000000000000001e-9", "12345678901234567890123456789012345678e-0000000000000019",
    "0.1e-00000000000000000000000000000000000020", "1e-38", "0.00000000000000000000000000000000000000E-5",
)  # fmt: skip
OVERFLOWING = ("350000000000000000000", "-3.5e20", "1e30", "90736613012932121.3", "99999999999999999999", "1e20")


@pytest.mark.parametrize(
    "field", ['"d":%s', '"w":%s', '"n":%s', '"s":%s', '"st":{"d":%s}', '"a":[1, %s]', '"k":%s', '"u":%s', '"v":%s']
)
@pytest.mark.parametrize("number", [*TINY, *OVERFLOWING])
def test_decimal_that_arrow_would_misread_is_judged_by_its_digits(number: str, field: str) -> None:
    """Arrow reads beyond its table of powers of ten, where the process may end, or multiplies beyond 128 bits."""
    escaped = number.replace("e", "\\u0065").replace("5", "\\u0035", 1)
    batch = [b"{%b}" % (field % text).encode() for text in (number, f'"{number}"', f'"{escaped}"', "1.25")]
    expected = [found for record in batch for found in one_by_one(DECIMALS, [record])]
    assert by_arrow(DECIMALS, batch) == expected
    assert [by_arrow(DECIMALS, [record])[0] for record in batch] == expected


@settings(max_examples=300, deadline=None)
@given(digits=st.integers(0, 10**38 - 1), exponent=st.integers(-45, 39), precision=st.integers(1, 38), data=st.data())
def test_decimal_is_read_exactly_or_rejected(digits: int, exponent: int, precision: int, data: st.DataObject) -> None:
    """Whatever its digits, its exponent and its type."""
    schema = f"d decimal({precision},{data.draw(st.integers(0, precision))})"
    batch = [b'{"d":%de%d}' % (digits, exponent), b'{"d":%d}' % digits, b'{"d":0.%038d}' % digits]
    assert by_arrow(schema, batch) == [found for record in batch for found in one_by_one(schema, [record])]


def test_ordinary_records_go_through_arrows_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only records that it refuses are decoded one by one."""
    slow: list[bytes | None] = []

    def seen(values: Sequence[bytes | None], *more: Any) -> Any:
        slow.extend(values)
        return decode_values(values, *more)

    monkeypatch.setattr(json_arrow, "decode_values", seen)
    good = [
        b'{"l":%d,"s":"x\\n \\u00e9","dt":"2020-01-01","p":"-12.5","w":12345678901234567.25,' % number
        + b'"x":1.5e-17,"other":{"NaN":1}}\n'
        for number in range(1000)
    ]
    bad = [b"{}}", b'{"l":1.5}', b"x", None, b'{"l":1}{"l":2}', b'{"l":1,"l":2}']
    batch = [*good[:300], *bad, *good[300:]]
    found = by_arrow("l long, s string, dt date, p decimal(10,2), w decimal(38,18), x double", batch)
    assert [row["l"] for reason, _, row in found if reason is None] == [*range(300), 2, *range(300, 1000)]
    assert set(bad) <= set(slow)
    assert len(slow) < 500
