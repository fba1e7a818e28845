"""JSON written from Arrow columns: the same text as Spark's to_json."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from tailrace.stages.formats.json_format import OPTIONS as JSON_OPTIONS
from tailrace.stages.formats.json_text import java_double
from tailrace.stages.formats.json_write import NoJson, objects, texts

INNER = pa.struct([("x", pa.float64()), ('te"x\n', pa.string()), ("l", pa.list_(pa.list_(pa.string())))])
TYPES = pa.schema(
    [
        ("n", pa.int64()),
        ("b", pa.bool_()),
        ("i8", pa.int8()),
        ("i", pa.int32()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("dec", pa.decimal128(38, 18)),
        ("small", pa.decimal128(10, 10)),
        ("s", pa.string()),
        ("bin", pa.binary()),
        ("day", pa.date32()),
        ("t", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("st", INNER),
        ("a", pa.list_(pa.int64())),
        ("sts", pa.list_(INNER)),
        ("m", pa.map_(pa.string(), pa.float64())),
        ("by_number", pa.map_(pa.int32(), INNER)),
        ("by_day", pa.map_(pa.date32(), pa.string())),
        ("by_ratio", pa.map_(pa.float64(), pa.bool_())),
        ('q`"uoted', pa.string()),
    ]
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text(
    '\0\x1f\n\t\r\b\f"\\/ü😀\u2028\x7f', max_size=8
)
FLOATS = st.floats() | st.sampled_from(
    [1e7, 9999999.0, 0.001, 0.00099, 1e-5, 100.0, -0.0, 1e10, 123456.75, 5e-324, 1e22]
)
DAYS = st.dates() | st.sampled_from([date(1, 1, 1), date(9999, 12, 31)])
MOMENTS = st.datetimes() | st.sampled_from([datetime(1969, 12, 31, 23, 59, 59, 999999)])  # noqa: DTZ001
INNERS = st.none() | st.fixed_dictionaries(
    {
        "x": st.none() | FLOATS,
        'te"x\n': st.none() | TEXTS,
        "l": st.none() | st.lists(st.none() | st.lists(st.none() | TEXTS, max_size=2), max_size=2),
    }
)


def maps(keys: st.SearchStrategy[Any], values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw a map or null."""
    return st.none() | st.dictionaries(keys, st.none() | values, max_size=2).map(lambda found: list(found.items()))


ROWS = st.fixed_dictionaries(
    {
        "b": st.none() | st.booleans(),
        "i8": st.none() | st.integers(-128, 127),
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "f": st.none() | st.floats(width=32),
        "d": st.none() | FLOATS,
        "dec": st.none() | st.decimals(-(10**19), 10**19, places=18) | st.just(Decimal(0)),
        "small": st.none() | st.decimals("-0.9999999999", "0.9999999999", places=10),
        "s": st.none() | TEXTS,
        "bin": st.none() | st.binary(max_size=7),
        "day": st.none() | DAYS,
        "t": st.none() | MOMENTS.map(lambda at: at.replace(tzinfo=UTC)),
        "local": st.none() | MOMENTS,
        "st": INNERS,
        "a": st.none() | st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=3),
        "sts": st.none() | st.lists(INNERS, max_size=2),
        "m": maps(TEXTS, FLOATS),
        "by_number": maps(st.integers(-5, 5), INNERS),
        "by_day": maps(DAYS, TEXTS),
        "by_ratio": maps(st.floats(allow_nan=False).filter(bool), st.booleans()),
        'q`"uoted': TEXTS,
    }
)


def table(rows: list[dict[str, Any]]) -> pa.Table:
    """Return the rows, numbered."""
    return pa.Table.from_pylist([{"n": number} | row for number, row in enumerate(rows)], schema=TYPES)


def by_spark(spark: SparkSession, found: pa.Table) -> list[str]:
    """Return what to_json writes."""
    names = [F.col("`" + name.replace("`", "``") + "`") for name in found.column_names]
    frame = spark.createDataFrame(found, from_arrow_schema(found.schema)).select(
        "n", F.to_json(F.struct(*names), JSON_OPTIONS).alias("text")
    )
    return [row["text"] for row in sorted(frame.collect(), key=lambda row: int(row["n"]))]


def with_fewest_digits(text: str) -> tuple[str, list[str]]:
    """Return the text with shortest numbers, as Java before 19 writes longer ones for a few; and its decimals."""
    narrow = re.sub(r'(?<="f":)-?[0-9.E-]+', lambda found: java_double(float(np.float32(found[0]))), text)
    short = re.sub(r"-?\d+\.\d+(E-?\d+)?", lambda found: java_double(float(found[0])), narrow)
    return short, re.findall(r'"(?:dec|small)":([^,]*)', text)


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(rows=st.lists(ROWS, min_size=1, max_size=60), cut=st.integers(0, 3))
@example(rows=[dict.fromkeys(TYPES.names[1:])] * 3, cut=1)
def test_any_row_is_written_as_spark_writes_it(spark: SparkSession, rows: list[dict[str, Any]], cut: int) -> None:
    """This covers every type, nested ones too, nulls anywhere, and batches that are slices of others."""
    found = table(rows)
    columns = [column.chunk(0).slice(cut) for column in found.columns]
    ours = objects(found.column_names, columns, len(columns[0])).to_pylist()
    theirs = by_spark(spark, found)[cut:]
    assert [with_fewest_digits(each) for each in ours] == [with_fewest_digits(each) for each in theirs]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0"), (1e7, "1.0E7"), (9999999.0, "9999999.0"), (0.001, "0.001"), (0.00099, "9.9E-4"), (-0.0, "-0.0"),
        (5e-324, "4.9E-324"), (1.5e300, "1.5E300"), (math.inf, '"Infinity"'), (-math.inf, '"-Infinity"'),
        (math.nan, '"NaN"'), (123456.75, "123456.75"),
    ],
)  # fmt: skip
def test_a_double_is_written_as_java_writes_it(value: float, text: str) -> None:
    """It is written the same alone and in a column."""
    assert java_double(value) == text
    assert texts(pa.array([value])).to_pylist() == [text]


def test_years_beyond_9999_have_a_plus() -> None:
    """Java writes them so; years before 1 have a minus."""
    days = pa.array([2932896, 2932897, -719162 - 366, -719162 - 367], pa.date32())
    assert texts(days).to_pylist() == ['"9999-12-31"', '"+10000-01-01"', '"0000-01-01"', '"-0001-12-31"']
    micros = pa.array([253402300800000000, 0, -62167219200000001], pa.timestamp("us", "UTC"))
    assert texts(micros).to_pylist() == [
        '"+10000-01-01T00:00:00.000000Z"', '"1970-01-01T00:00:00.000000Z"', '"-0001-12-31T23:59:59.999999Z"',
    ]  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [pa.duration("us"), pa.time64("us"), pa.map_(pa.binary(), pa.int32()), pa.map_(pa.list_(pa.int32()), pa.int32())],
)
def test_a_type_without_a_json_form_is_refused(kind: pa.DataType) -> None:
    """The message names the type."""
    with pytest.raises(NoJson, match="JSON has no form for"):
        texts(pa.array([], kind))
