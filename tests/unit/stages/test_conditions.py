"""Conditions without a JVM: they give what Spark gives, or are refused."""

from __future__ import annotations

import datetime
import math
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructField, StructType

from tailrace.stages.condition_values import Condition
from tailrace.stages.conditions import Unsupported, columns, parse
from tailrace.stages.formats.ddl import struct_of

WRITTEN = struct_of(
    "id BIGINT, n INT, price DOUBLE, rate FLOAT, total DECIMAL(12,2), sku STRING, paid BOOLEAN, day DATE, "
    "at TIMESTAMP, customer STRUCT<name: STRING, Age: INT>, tags ARRAY<STRING>, `odd name` INT"
)
FIELDS = StructType([*(WRITTEN or ()), StructField("raw", BinaryType())])
SCHEMA = to_arrow_schema(FIELDS, timezone="UTC")
VALUES: dict[str, list[Any]] = {
    "id": [None, 0, 1, -5, 2**53 + 1, -(2**63), 2**63 - 1],
    "n": [None, 0, 1, -1, 7, 2**31 - 1],
    "price": [None, 0.0, -0.0, 0.1, 0.5, -3.25, math.nan, math.inf, -math.inf, 1e300],
    "rate": [None, 0.5, 0.0, -1.5, math.nan, math.inf, 16777216.0],
    "total": [None, Decimal("0.00"), Decimal("10.50"), Decimal("-0.01"), Decimal("9999999999.99")],
    "sku": [None, "", "A-1", "a-1", "  x ", "50%", "line\nbreak", "ÄÖ", "z_y", "\U0001f600"],
    "paid": [None, True, False],
    "day": [None, datetime.date(2026, 11, 20), datetime.date(1969, 12, 31)],
    "at": [
        None,
        datetime.datetime(2026, 11, 20, 10, tzinfo=datetime.UTC),
        datetime.datetime(2026, 11, 20, 10, 0, 0, 1, tzinfo=datetime.UTC),
    ],
    "raw": [None, b"", b"abc"],
    "customer": [None, {"name": None, "Age": None}, {"name": "Ada", "Age": 36}, {"name": "Bo", "Age": -1}],
    "tags": [None, [], ["a"]],
    "odd name": [None, 3],
}
CONDITIONS = [
    "n > 0",
    "N >= 1 AND n <> 7",
    "n = 1 OR price > 0.1 OR sku IS NULL",
    "NOT n = 1 AND NOT paid",
    "! (n == 1)",
    "n != 1 AND (n < 100 OR n > 200)",
    "id < 9007199254740993",
    "id >= -5 AND id <= 1",
    "id = n",
    "id <=> n",
    "price > 0",
    "price >= 0.1",
    "price < 0.1",
    "price <= 1e300",
    "price = 0.0",
    "price != 0.5",
    "price = price",
    "price > rate",
    "price <= rate",
    "price <=> rate",
    "rate < 0.5",
    "rate > 3",
    "rate = rate",
    "total > 10",
    "total >= 10.5",
    "total = 10.500",
    "total < n",
    "total > id",
    "n > 0.5",
    "id < 0.5",
    "sku = 'A-1'",
    'sku > "A"',
    "sku <> ''",
    "sku LIKE 'A%'",
    "sku NOT LIKE '_-1'",
    "sku LIKE '%k'",
    "sku LIKE 'line_break'",
    "sku LIKE '%'",
    "length(sku) > 3",
    "LENGTH(trim(sku)) = 1",
    "char_length(sku) BETWEEN 1 AND 3",
    "length(raw) > 0",
    "sku IN ('A-1', 'a-1', NULL)",
    "n NOT IN (1, 7)",
    "n NOT IN (1, NULL)",
    "n BETWEEN 0 AND 7",
    "n NOT BETWEEN -1 AND 1",
    "paid",
    "NOT paid",
    "paid = true",
    "paid IS TRUE",
    "paid IS NOT FALSE",
    "(n > 0) IS NOT TRUE",
    "(n > 0) = paid",
    "customer IS NOT NULL",
    "customer.name IS NOT NULL",
    "customer.age > 0 AND Customer.Name LIKE 'A%'",
    "tags IS NULL OR n > 3",
    "day >= DATE '2026-01-01'",
    "at > TIMESTAMP '2026-11-20 10:00:00'",
    "at <= timestamp '2026-11-20T10:00:00Z'",
    "`odd name` = 3",
    "n = NULL",
    "n IS NULL AND NULL",
    "n > 0 OR NULL",
    "true",
    "n = -1",
    "sku = 'it\\'s'",
]


def rows(count: int) -> list[tuple[Any, ...]]:
    """Return random rows out of the values, the same each time."""
    chosen = random.Random(7)
    return [tuple(chosen.choice(VALUES[field.name]) for field in FIELDS) for _ in range(count)]


def test_conditions_give_what_spark_gives(spark: SparkSession) -> None:
    """Each condition, on random rows with null, NaN, and the ends of the ranges."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    made = rows(400)
    frame = spark.createDataFrame(made, FIELDS)
    meets = [F.coalesce(F.expr(each), F.lit(False)).alias(str(number)) for number, each in enumerate(CONDITIONS)]
    expected = [list(row) for row in frame.coalesce(1).select(*meets).collect()]
    arrays = [pa.array([row[number] for row in made], field.type) for number, field in enumerate(SCHEMA)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    different = {}
    for number, text in enumerate(CONDITIONS):
        found = Condition(text, SCHEMA)(batch).to_pylist()
        wrong = [made[row] for row, met in enumerate(found) if met != expected[row][number]]
        if wrong:
            different[text] = len(wrong), wrong[0]
    assert different == {}


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("n +", "'+'"),
        ("n + 1 > 0", "only Spark"),
        ("", "the end"),
        ("n >", "the end"),
        ("n > 0 0", "'0'"),
        ("n > 0)", "')'"),
        ("(n > 0", "')' is expected"),
        ("absent > 0", "absent is not a field; the fields are id, n"),
        ("customer.absent = 1", "customer.absent: absent is not a field; the fields are name, Age"),
        ("n.m = 1", "which has no fields"),
        ("n", "it is int32, not boolean"),
        ("n AND paid", "a condition is expected"),
        ("sku > 1", "only Spark does"),
        ("id > price", "only Spark does"),
        ("total > price", "only Spark does"),
        ("price > 16777217", "only Spark does"),
        ("total < 99999999999999999999999999999.0000000000", "Spark rounds"),
        ("day = '2026-01-01'", "only Spark does"),
        ("DATE '2026-13-01' = day", "read by Spark only"),
        ("upper(sku) = 'A'", "the function upper() is evaluated by Spark only"),
        ("sku RLIKE 'A'", "only Spark knows what 'rlike' means"),
        ("sku LIKE n", "LIKE takes a text in quotes"),
        ("sku LIKE '50\\\\%'", "escape"),
        ("sku = 'a\\n'", "escape"),
        ("n IS DISTINCT FROM 1", "IS distinct"),
        ("n = 1 = true", "only Spark knows"),
        ("CASE WHEN n > 0 THEN true END", "'case'"),
        ("tags[0] = 'a'", "[0] ="),
        ("tags = tags", "only Spark does"),
        ("n > 10L", "10L"),
        ("id > 99999999999999999999", "too large"),
        ("sku = 'it''s'", "only Spark knows"),
        ("n -- a comment", "only Spark knows"),
    ],
)
def test_condition_that_only_spark_can_evaluate_is_refused(condition: str, words: str) -> None:
    """Never evaluated in another way; the message names what it is about."""
    with pytest.raises(Unsupported) as raised:
        Condition(condition, SCHEMA)
    assert words in str(raised.value)


def test_columns_of_a_condition_are_known() -> None:
    """Wherever they are in it."""
    found = [
        str(each) for each in columns(parse("a.b > 0 AND NOT (length(c) = 1 OR d IN (e, 2)) OR kafka.key IS NULL"))
    ]
    assert found == ["a.b", "c", "d", "e", "d", "kafka.key"]
