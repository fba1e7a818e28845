"""The split of decoded rows: the function's input, and the content of the rejected topic."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from support.rules import rules
from support.spark import AT_MS, headers_of, records
from tailrace.config import Source
from tailrace.stages.decode import decode
from tailrace.stages.process import validate
from tailrace.stages.rows import ROW, accepted, rejected

SOURCE = Source.model_validate({"topics": ["in"], "format": "json", "schema": "n int"})


def test_a_rejected_row_says_why_from_where_and_when(spark: SparkSession) -> None:
    """The original bytes, key and headers are kept, and Tailrace's headers follow."""
    frame = rejected(decode(records(spark, [b'{"n":1}', b"bad"], headers=[("h", b"v")]), SOURCE, Path()), "decode")
    assert frame.schema.simpleString() == ROW.simpleString()
    (row,) = frame.collect()
    assert (row["topic"], row["partition"], row["timestamp"]) == (None, None, None)
    assert (row["key"], row["value"], row["reason"]) == (b"k1", b"bad", "not json")
    assert row["headers"][0].asDict() == {"key": "h", "value": b"v"}
    headers = headers_of(row)
    assert headers.pop("tailrace.detail")
    assert headers == {
        "h": b"v",
        "tailrace.stage": b"decode",
        "tailrace.reason": b"not json",
        "tailrace.source.topic": b"in",
        "tailrace.source.partition": b"3",
        "tailrace.source.offset": b"1",
        "tailrace.source.timestamp": str(AT_MS).encode(),
    }


def test_the_function_sees_no_hidden_column(spark: SparkSession) -> None:
    """It gets the good rows, with their fields and `kafka`."""
    frame = accepted(validate(decode(records(spark, [b'{"n":1}', b"bad"]), SOURCE, Path()), rules(some="n > 0")))
    assert frame.columns == ["n", "kafka"]
    assert [row["n"] for row in frame.collect()] == [1]


def test_each_row_is_accepted_or_rejected(spark: SparkSession) -> None:
    """No row is in both, and every row is in one."""
    values = [b'{"n":1}', b"bad", None, b'{"n":-1}', b"{}", b'{"n":"x"}', b'{"n":2}']
    decoded = validate(decode(records(spark, values), SOURCE, Path()), rules(positive="n > 0"))
    good = {row["kafka"]["offset"] for row in accepted(decoded).collect()}
    bad = {int(headers_of(row)["tailrace.source.offset"] or b"") for row in rejected(decoded, "decode").collect()}
    assert (good, bad) == ({0, 6}, {1, 2, 3, 4, 5})


def test_a_row_that_fails_a_condition_names_the_stage_and_the_condition(spark: SparkSession) -> None:
    """The stage is the condition's, not decode."""
    decoded = validate(decode(records(spark, [b'{"n":-1}', b"bad"]), SOURCE, Path()), rules(positive="n > 0"))
    found = {row["value"]: headers_of(row) for row in rejected(decoded, "decode").collect()}
    negative, bad = found[b'{"n":-1}'], found[b"bad"]
    assert (negative["tailrace.stage"], bad["tailrace.stage"]) == (b"process", b"decode")
    assert (negative["tailrace.reason"], negative["tailrace.detail"]) == (b"positive", b"n > 0")


def test_a_long_value_is_shortened_in_the_detail(spark: SparkSession) -> None:
    """The size of a record does not inflate its headers."""
    value = b'{"n":"' + b"x" * 5000 + b'"}'
    (row,) = rejected(decode(records(spark, [value]), SOURCE, Path()), "decode").collect()
    detail = (headers_of(row)["tailrace.detail"] or b"").decode()
    assert detail.startswith('n is not int: "xxx')
    assert detail.endswith("x…")
    assert len(detail) < 100
    assert row["value"] == value


def test_a_record_without_headers_gets_tailraces_headers(spark: SparkSession) -> None:
    """Null headers count as none."""
    (row,) = rejected(decode(records(spark, [b"bad"], headers=None), SOURCE, Path()), "decode").collect()
    assert headers_of(row)["tailrace.reason"] == b"not json"
