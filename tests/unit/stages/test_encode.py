"""Rows for the sink: how columns become a record, which columns are refused, and which rows are rejected."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from support.registry import SchemaRegistry, schema_registry
from support.spark import AT, AT_MS, headers_of, records
from tailrace.config import Sink, Source
from tailrace.errors import KafkaFailed, SchemaInvalid, SinkColumnsInvalid
from tailrace.stages.decode import decode
from tailrace.stages.encode import encode
from tailrace.stages.rows import ROW, accepted

AVSC: dict[str, Any] = {
    "type": "record",
    "name": "Out",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "side", "type": {"type": "enum", "name": "Side", "symbols": ["LEFT", "RIGHT"]}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}


def sink(format: str = "json", topic: str | None = "out", **more: Any) -> Sink:  # noqa: A002 - the setting's name
    """Return a sink of this format."""
    return Sink.model_validate({"format": format, "topic": topic} | more)


def avro_sink(**more: Any) -> Sink:
    """Return a sink that writes by s.avsc."""
    return sink("avro", schema="s.avsc", **more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with an Avro schema."""
    (tmp_path / "s.avsc").write_text(json.dumps(AVSC))
    return tmp_path


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    """Run a schema registry."""
    with schema_registry() as found:
        yield found


def raw(spark: SparkSession, *values: bytes | None) -> DataFrame:
    """Return what a function gets from raw records with these values."""
    return accepted(decode(records(spark, values, headers=[("h", b"v")]), Source(topics=["in"]), Path()))


def one(frame: DataFrame, to: Sink, folder: Path = Path()) -> Row:
    """Return the only output row."""
    (row,) = encode(frame, to, folder).collect()
    return row


def test_a_row_has_exactly_the_columns_of_the_sink(spark: SparkSession, folder: Path) -> None:
    """Names, order and types equal rows.ROW for every format."""
    frame = spark.sql("SELECT 1L AS id, 'LEFT' AS side, CAST(NULL AS STRING) AS note")
    assert encode(frame, sink(), folder).schema.simpleString() == ROW.simpleString()
    assert encode(frame, avro_sink(), folder).schema.simpleString() == ROW.simpleString()
    assert encode(raw(spark), sink("raw"), folder).schema.simpleString() == ROW.simpleString()


def test_the_reserved_columns_address_the_record(spark: SparkSession) -> None:
    """key, headers, topic, partition and timestamp are removed from the value, and so is `kafka`."""
    frame = raw(spark, b"x").select(
        F.lit("k").alias("key"),
        F.col("kafka.headers").alias("headers"),
        F.lit("other").alias("topic"),
        F.lit(4).alias("partition"),
        F.col("kafka.timestamp").alias("timestamp"),
        F.lit(1).alias("a"),
        F.lit(None).cast("string").alias("b"),
        "kafka",
    )
    row = one(frame, sink())
    assert (row["topic"], row["partition"], row["key"], row["timestamp"]) == ("other", 4, b"k", AT_MS)
    assert row["value"] == b'{"a":1,"b":null}'
    assert headers_of(row) == {"h": b"v"}
    assert row["reason"] is None


def test_address_columns_are_null_by_default(spark: SparkSession) -> None:
    """Only the topic is filled in."""
    row = one(spark.sql("SELECT 1 AS a"), sink())
    assert row.asDict() == {
        "topic": "out", "partition": None, "key": None, "value": b'{"a":1}', "headers": None, "timestamp": None,
        "reason": None,
    }  # fmt: skip


def test_the_topic_column_takes_precedence_unless_null(spark: SparkSession) -> None:
    """sink.topic applies to the other rows."""
    frame = spark.sql("SELECT * FROM VALUES ('a', 1), (NULL, 2) AS t(topic, n)")
    assert {row["topic"]: row["value"] for row in encode(frame, sink(), Path()).collect()} == {
        "a": b'{"n":1}',
        "out": b'{"n":2}',
    }


def test_a_row_without_a_topic_is_rejected_with_its_bytes(spark: SparkSession) -> None:
    """Reason, stage and origin are in the headers, and the record's own headers are kept."""
    frame = raw(spark, b"x").select(
        F.lit(None).cast("string").alias("topic"), F.col("kafka.headers").alias("headers"), "value", "kafka"
    )
    row = one(frame, sink("raw", topic=None))
    assert (row["topic"], row["value"], row["reason"]) == (None, b"x", "no topic")
    assert headers_of(row) == {
        "h": b"v",
        "tailrace.stage": b"encode",
        "tailrace.reason": b"no topic",
        "tailrace.source.topic": b"in",
        "tailrace.source.partition": b"3",
        "tailrace.source.offset": b"0",
        "tailrace.source.timestamp": str(AT_MS).encode(),
    }


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("-2 AS partition", "negative partition"),
        ("TIMESTAMP'1950-01-01' AS timestamp", "negative timestamp"),
        ("array(named_struct('key', CAST(NULL AS STRING), 'value', X'00')) AS headers", "header without a key"),
        ("array(named_struct('key', concat('a', char(0)), 'value', X'00')) AS headers", "header key with NUL"),
        ("array(CAST(NULL AS STRUCT<key: STRING, value: BINARY>)) AS headers", "header without a key"),
    ],
)
def test_a_row_that_kafka_would_refuse_is_rejected(spark: SparkSession, column: str, reason: str) -> None:
    """It keeps its value and its intended topic."""
    row = one(spark.sql(f"SELECT 1 AS a, {column}"), sink())
    assert (row["reason"], row["value"]) == (reason, b'{"a":1}')
    assert (row["topic"], row["partition"], row["timestamp"]) == (None, None, None)
    found = headers_of(row)
    assert found.pop("a\0", b"\0") == b"\0"
    assert found == {
        "tailrace.stage": b"encode",
        "tailrace.reason": reason.encode(),
        "tailrace.sink.topic": b"out",
    }


@pytest.mark.parametrize(
    ("expression", "key"),
    [
        ("'ü'", "ü".encode()),
        ("X'00FF'", b"\x00\xff"),
        ("named_struct('a', 1, 'b', NULL)", b'{"a":1,"b":null}'),
        ("CAST(NULL AS STRING)", None),
    ],
)
def test_a_key_is_text_or_bytes_or_json(spark: SparkSession, expression: str, key: bytes | None) -> None:
    """A struct becomes JSON, and null stays null."""
    assert one(spark.sql(f"SELECT {expression} AS key, 1 AS a"), sink())["key"] == key


@pytest.mark.parametrize(
    ("select", "value"),
    [
        ("named_struct('a', 1) AS value", b'{"a":1}'),
        ("IF(true, NULL, named_struct('a', 1)) AS value", None),
        ("named_struct('a', 1) AS value, 2 AS b", b'{"value":{"a":1},"b":2}'),
        ("'text' AS value", b'{"value":"text"}'),
        ("1 AS `a.b`", b'{"a.b":1}'),
        ("TIMESTAMP'2026-01-02 03:04:05.123456' AS t", b'{"t":"2026-01-02T03:04:05.123456Z"}'),
        ("TIMESTAMP_NTZ'2026-01-02 03:04:05.123456' AS t", b'{"t":"2026-01-02T03:04:05.123456"}'),
        ("X'0001' AS b", b'{"b":"AAE="}'),
        ("'mine' AS kafka", b'{"kafka":"mine"}'),
    ],
)
def test_json_is_written_without_loss(spark: SparkSession, select: str, value: bytes | None) -> None:
    """Nulls, microseconds and bytes are kept; a lone struct `value` is the value, or no value if it is null."""
    assert one(spark.sql(f"SELECT {select}"), sink())["value"] == value


def test_raw_text_and_bytes_go_out_as_they_are(spark: SparkSession) -> None:
    """A string is written as UTF-8, and null is a record without a value."""
    assert one(spark.sql("SELECT 'ü' AS value"), sink("raw"))["value"] == "ü".encode()
    assert one(spark.sql("SELECT X'FF' AS value"), sink("raw"))["value"] == b"\xff"
    row = one(spark.sql("SELECT CAST(NULL AS BINARY) AS value"), sink("raw"))
    assert (row["value"], row["reason"]) == (None, None)


def test_avro_is_written_by_the_schema_of_the_file(spark: SparkSession, folder: Path) -> None:
    """Columns are matched by name, narrower numbers widen, and an absent field takes its default."""
    frame = spark.sql("SELECT 'LEFT' AS side, 7 AS id, 'k' AS key")
    row = one(frame, avro_sink(), folder)
    found = fastavro.schemaless_reader(io.BytesIO(row["value"]), fastavro.parse_schema(AVSC), None)
    assert found == {"id": 7, "side": "LEFT", "note": None}
    assert (row["key"], row["topic"], row["reason"]) == (b"k", "out", None)


def test_a_null_struct_is_an_avro_record_without_a_value(spark: SparkSession, folder: Path) -> None:
    """This is how to write a tombstone."""
    select = "IF(n = 1, NULL, named_struct('id', n, 'side', 'LEFT')) AS value"
    frame = spark.sql(f"SELECT {select}, string(n) AS key FROM VALUES (1L), (2L) AS t(n)")
    rows = {row["key"]: row for row in encode(frame, avro_sink(), folder).collect()}
    assert (rows[b"1"]["value"], rows[b"1"]["reason"]) == (None, None)
    assert rows[b"2"]["value"] is not None


def test_a_row_that_does_not_fit_the_schema_is_rejected_as_json(spark: SparkSession, folder: Path) -> None:
    """Its neighbours are written; it keeps all its values and says what is wrong."""
    frame = (
        raw(spark, b"LEFT", b"UP", b"")
        .withColumn("id", F.when(F.col("value") != b"", F.col("kafka.offset")))
        .withColumn("side", F.when(F.col("value") != b"", F.col("value").cast("string")).otherwise("LEFT"))
        .select("id", "side", "kafka", F.col("kafka.key").alias("key"))
    )
    rows = {row["key"]: row for row in encode(frame, avro_sink(), folder).collect()}
    assert rows[b"k0"]["reason"] is None
    for key, value, detail in (
        (b"k1", {"id": 1, "side": "UP"}, b"side is 'UP', and the schema has LEFT, RIGHT"),
        (b"k2", {"id": None, "side": "LEFT"}, b"id is null, and the schema has long"),
    ):
        row, headers = rows[key], headers_of(rows[key])
        assert (row["topic"], row["reason"]) == (None, "does not fit the schema")
        assert json.loads(row["value"]) == value
        assert headers["tailrace.detail"] == detail
        assert headers["tailrace.stage"] == b"encode"
        assert headers["tailrace.source.offset"] == key[1:]


def test_the_wire_format_has_the_id_that_the_registry_gave(
    spark: SparkSession, folder: Path, registry: SchemaRegistry
) -> None:
    """The schema is registered once, under the topic's subject."""
    registry.add({"type": "record", "name": "Other", "fields": [{"name": "z", "type": "int"}]})
    to = avro_sink(registry={"url": registry.url})
    frame = spark.sql("SELECT 7L AS id, 'LEFT' AS side")
    for _ in range(2):
        value = one(frame, to, folder)["value"]
        assert struct.unpack_from(">bI", value) == (0, 2)
    assert registry.subjects["out-value"] == [2]
    assert json.loads(registry.schemas[2]) == AVSC
    assert sum(asked.endswith("/versions") or "/versions?" in asked for asked in registry.asked) == 1


def test_a_registry_that_does_not_answer_stops_before_anything_runs(
    spark: SparkSession, folder: Path, registry: SchemaRegistry
) -> None:
    """The error occurs on the driver."""
    registry.broken = True
    to = avro_sink(registry={"url": registry.url, "options": {"max.retries": "0"}})
    with pytest.raises(KafkaFailed):
        encode(spark.sql("SELECT 7L AS id, 'LEFT' AS side"), to, folder)


@pytest.mark.parametrize(
    ("select", "settings", "words"),
    [
        ("1 AS a", {"topic": None}, "neither `sink.topic` nor a column `topic`"),
        ("1 AS a, 2 AS topic", {}, "`topic` is int, not string"),
        ("1 AS a, 2 AS key", {}, "`key` is int"),
        ("1 AS a, 'x' AS headers", {}, "`headers` is string"),
        ("1 AS a, 2L AS partition", {}, "`partition` is bigint, not int"),
        ("1 AS a, 2L AS timestamp", {}, "`timestamp` is bigint, not timestamp"),
        ("'k' AS key", {}, "no column for the value"),
        ("1 AS a, 2 AS a", {}, "a occurs more than once"),
        ("INTERVAL '1' DAY AS a, map(1, 2) AS b, 'x' AS c", {"format": "raw"}, "there are a, b, c"),
        ("1 AS value", {"format": "raw"}, "`value` is int, not string or binary"),
        ("1L AS id", {"format": "avro", "schema": "s.avsc"}, "side: in the schema without a default"),
        ("1L AS id, 'L' AS side, 3 AS x", {"format": "avro", "schema": "s.avsc"}, "x: among the columns, but not in"),
        ("'1' AS id, 'L' AS side", {"format": "avro", "schema": "s.avsc"}, "id: string, but the schema has long"),
        (
            "'t' AS topic, 1L AS id, 'L' AS side",
            {"format": "avro", "schema": "s.avsc", "topic": None, "registry": {"url": "http://127.0.0.1:9"}},
            "`sink.topic` is not set",
        ),
    ],
)
def test_columns_that_can_never_be_written_are_refused(
    spark: SparkSession, folder: Path, select: str, settings: dict[str, Any], words: str
) -> None:
    """The error names the column and what it must be, before anything runs."""
    to = Sink.model_validate({"format": "json", "topic": "out"} | settings)
    with pytest.raises(SinkColumnsInvalid) as raised:
        encode(spark.sql(f"SELECT {select}"), to, folder)
    assert words in str(raised.value)


def test_a_schema_that_does_not_parse_is_refused(spark: SparkSession, folder: Path) -> None:
    """The sink's schema file is read before anything runs."""
    (folder / "s.avsc").write_text("{}")
    with pytest.raises(SchemaInvalid):
        encode(spark.sql("SELECT 1L AS id"), avro_sink(), folder)


def test_the_records_time_survives(spark: SparkSession) -> None:
    """Kafka's milliseconds come out as they went in."""
    frame = raw(spark, b"x").select("value", F.col("kafka.timestamp").alias("timestamp"))
    assert one(frame, sink("raw"))["timestamp"] == int(AT.timestamp() * 1000)
