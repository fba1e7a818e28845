"""The stages on Arrow batches: each output row equals the row that the Spark stages make."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from support.registry import SchemaRegistry, schema_registry
from support.spark import AT, headers_of, records
from tailrace.config import Pipeline
from tailrace.demo.spark import both
from tailrace.errors import (
    ConfigInvalid,
    FunctionFailed,
    FunctionInvalid,
    FunctionMissing,
    InputCutOff,
    KafkaFailed,
    SchemaInvalid,
    SinkColumnsInvalid,
)
from tailrace.gateway.schemas import ROW_SCHEMA
from tailrace.stages.arrow_rows import RECORD
from tailrace.stages.arrow_stages import ArrowSpec, ArrowStages, stages_of, unsupported
from tailrace.startup.run import assemble
from unit.stages.test_decode_avro import EVERYTHING, FULL, TWEET, written
from unit.stages.test_decode_json import MODELS

JOB = """
import pyarrow as pa
import pyarrow.compute as pc
from tailrace_test_arrow_helper import doubled

def enrich(batches, times=1):
    for batch in batches:
        yield pa.RecordBatch.from_arrays(
            [batch.column("kafka").field("key"), doubled(batch.column("n"), times), batch.column("kafka")],
            names=["key", "n", "kafka"],
        )

def fails(batches):
    for batch in batches:
        if batch.num_rows:
            raise ValueError("no such luck")
        yield batch

def at_once(batches):
    raise ValueError("at once")

def collects(batches):
    return list(batches)

def yields_rows(batches):
    for batch in batches:
        yield batch.to_pylist()

def first(batches):
    yield next(batches)

def swallows(batches):
    try:
        yield from batches
    except Exception:
        pass

def keeps(batches):
    yield from batches

def wrong_columns(batches):
    for batch in batches:
        yield batch.append_column("topic", pa.array([1] * batch.num_rows))

LIMIT = 5
"""
HELPER = """
import pyarrow.compute as pc

def doubled(numbers, times):
    return pc.multiply(numbers, 2 * times)
"""
NUMBERS = {"topics": ["in"], "format": "json", "schema": "n long"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a user's folder: a job with a module next to it, models and Avro schemas."""
    (tmp_path / "tailrace_test_arrow_job.py").write_text(JOB)
    (tmp_path / "tailrace_test_arrow_helper.py").write_text(HELPER)
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "s.avsc").write_text(json.dumps(TWEET))
    (tmp_path / "all.avsc").write_text(json.dumps(EVERYTHING))
    return tmp_path


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    """Run a schema registry."""
    with schema_registry() as found:
        yield found


def pipeline(source: dict[str, Any] | None = None, sink: dict[str, Any] | None = None, **more: Any) -> Pipeline:
    """Return a pipeline from raw to raw, or as the arguments say."""
    settings = {
        "pipeline": "p",
        "source": {"topics": ["in"], "format": "raw"} if source is None else source,
        "sink": {"topic": "out", "format": "raw"} if sink is None else sink,
    }
    return Pipeline.model_validate(settings | more)


def job(name: str, **more: Any) -> dict[str, Any]:
    """Return the section `process` with this function."""
    return {"arrow": f"tailrace_test_arrow_job.py:{name}"} | more


def batch_of(
    values: Sequence[bytes | None], headers: Sequence[tuple[str, bytes | None]] | None = None
) -> pa.RecordBatch:
    """Return Kafka's records with these values, as `support.spark.records` makes them."""
    own = None if headers is None else [{"key": name, "value": value} for name, value in headers]
    rows = [
        {
            "key": f"k{offset}".encode(), "value": value, "topic": "in", "partition": 3, "offset": offset,
            "timestamp": AT, "headers": own,
        }
        for offset, value in enumerate(values)
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, schema=RECORD)


def made(spec: ArrowSpec, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows for the gateway."""
    stages = ArrowStages(pickle.loads(pickle.dumps(spec)))
    good, aside = stages.decode(batch.select(list(stages.columns)))
    found = [stages.encode(each) for each in stages.process(iter([good]))]
    found += [] if aside is None else [aside]
    assert all(each.schema.equals(ROW_SCHEMA) for each in found)
    return [row for each in found for row in each.to_pylist()]


def normalized(rows: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return rows in a form in which those of Spark and of Arrow are equal, in the order of their keys."""
    return sorted(
        (
            row["key"], row["topic"], row["partition"], row["value"] and bytes(row["value"]), row["timestamp"],
            row["reason"],
            [(each["key"], each["value"] and bytes(each["value"])) for each in row["headers"] or []],
        )
        for row in rows
    )  # fmt: skip


def compared(
    spark: SparkSession,
    folder: Path,
    settings: Pipeline,
    values: Sequence[bytes | None],
    headers: Sequence[tuple[str, bytes | None]] | None = (("h", b"v"), ("n", None)),
) -> list[dict[str, Any]]:
    """Check that both ways make the same rows, and return them."""
    ours = made(ArrowSpec.of(settings, folder), batch_of(values, headers))
    theirs = both(assemble(spark, settings, folder), records(spark, values, headers=headers)).collect()
    assert normalized(ours) == normalized(theirs)
    return ours


def test_raw_records_are_copied_without_looking_at_them(spark: SparkSession, folder: Path) -> None:
    """Key, value, headers and time are the same arrays that were read."""
    values = [b"a", None, b"\xff"]
    compared(spark, folder, pipeline(), values)
    stages = stages_of(ArrowSpec.of(pipeline(), folder))
    assert stages.columns == ("key", "value", "headers", "timestamp")
    batch = batch_of(values, [("h", b"v")]).select(list(stages.columns))
    good, aside = stages.decode(batch)
    (row,) = map(stages.encode, stages.process(iter([good])))
    assert aside is None
    for name in ("key", "value", "headers"):
        assert [each and each.address for each in row.column(name).buffers()] == [
            each and each.address for each in batch.column(name).buffers()
        ]


def test_raw_records_become_json(spark: SparkSession, folder: Path) -> None:
    """The value is Base64 in an object."""
    compared(spark, folder, pipeline(sink={"topic": "out", "format": "json"}), [b"a", None, b"\xff"])


def test_json_records_become_json(spark: SparkSession, folder: Path) -> None:
    """Good records are written again; bad ones are rejected with their bytes, reason, detail and origin."""
    schema = "i int NOT NULL, s string, t timestamp, st struct<x:double>, a array<string>, m map<string,long>"
    source = {"topics": ["in"], "format": "json", "schema": schema}
    values = [
        b'{"i":1,"s":"\\u00e9\\n\\"","t":"2020-01-01T00:00:00.5+01:00","st":{"x":1e10},"a":["x",null],"m":{"k":1}}',
        b'{"i":1}', b"{}", b'{"i":"x"}', b"nonsense", None, b'{"i":2,"s":"\xff"}', b'{"i":3,"st":{"x":1e999}}',
    ]  # fmt: skip
    to_json = pipeline(source, {"topic": "out", "format": "json"})
    rows = compared(spark, folder, to_json, values)
    assert sum(row["reason"] is not None for row in rows) == 6
    compared(spark, folder, to_json, values, None)


def test_avro_records_become_json_and_avro(spark: SparkSession, folder: Path) -> None:
    """Every supported type is read and written alike, and invalid Avro is rejected alike."""
    source = {"topics": ["in"], "format": "avro", "schema": "all.avsc"}
    good = written(EVERYTHING, FULL)
    values = [good, good[:-1], good + b"x", None, good]
    compared(spark, folder, pipeline(source, {"topic": "out", "format": "json"}), values)
    compared(spark, folder, pipeline(source, {"topic": "out", "format": "avro", "schema": "all.avsc"}), values)


def test_the_wire_format_is_read_and_written(spark: SparkSession, folder: Path, registry: SchemaRegistry) -> None:
    """The sink's schema is registered before a record is read."""
    number = registry.add(TWEET)
    url = {"registry": {"url": registry.url}}
    source = {"topics": ["in"], "format": "avro", "schema": "s.avsc"} | url
    sink = {"topic": "out", "format": "avro", "schema": "s.avsc"} | url
    row = {"id": 1, "text": "t", "good": True}
    values = [written(TWEET, row, number), written(TWEET, row, 77), b"\x00", None]
    compared(spark, folder, pipeline(source, sink), values)
    assert registry.subjects["out-value"] == [number]


def test_a_registry_that_does_not_answer_stops_before_anything_is_read(folder: Path, registry: SchemaRegistry) -> None:
    """The error occurs when the pipeline starts."""
    registry.broken = True
    url = {"registry": {"url": registry.url, "options": {"max.retries": "0"}}}
    sink = {"topic": "out", "format": "avro", "schema": "s.avsc"} | url
    source = {"topics": ["in"], "format": "avro", "schema": "s.avsc"}
    with pytest.raises(KafkaFailed):
        ArrowSpec.of(pipeline(source, sink), folder)


def test_a_model_validates_records(spark: SparkSession, folder: Path) -> None:
    """Its rows and rejections equal those of the Spark stages."""
    source = {"topics": ["in"], "format": "json", "schema": "models.py:Event"}
    values = [
        b'{"id":1,"text":"t","at":"2020-01-01T00:00:00.5Z","day":"2020-01-02","price":"12.30","parts":[{"n":1}]}',
        b'{"id":"x","size":"l"}', b'{"id":1} x', b'{"id":3,"text":"boom"}', None, b'{"id":99999999999999999999}',
    ]  # fmt: skip
    compared(spark, folder, pipeline(source, {"topic": "out", "format": "json"}), values)


def test_the_function_gets_fields_and_origin_and_its_arguments(folder: Path) -> None:
    """Rows that it yields are written with the key that it sets; its file may import another."""
    settings = pipeline(NUMBERS, {"topic": "out", "format": "json"}, process=job("enrich", arguments={"times": 10}))
    rows = made(ArrowSpec.of(settings, folder), batch_of([b'{"n":1}', b"bad", b'{"n":null}']))
    assert [(row["key"], row["value"], row["reason"]) for row in rows] == [
        (b"k0", b'{"n":20}', None),
        (b"k2", b'{"n":null}', None),
        (b"k1", b"bad", "not json"),
    ]


def test_the_function_runs_where_its_files_are_missing(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Another process gets only the spec, and never starts a JVM."""
    settings = pipeline(NUMBERS, {"topic": "out", "format": "json"}, process=job("enrich"))
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "spec").write_bytes(pickle.dumps((ArrowSpec.of(settings, folder), batch_of([b'{"n":4}']))))
    for file in folder.glob("*.py"):
        file.unlink()
    program = (
        "import pickle, sys\n"
        "from tailrace.stages.arrow_stages import stages_of\n"
        "spec, batch = pickle.load(open('spec', 'rb'))\n"
        "stages = stages_of(spec)\n"
        "assert stages is stages_of(spec)\n"
        "good, _ = stages.decode(batch)\n"
        "(row,) = map(stages.encode, stages.process(iter([good])))\n"
        "assert row.column('value').to_pylist() == [b'{\"n\":8}'], row\n"
        "from pyspark import SparkContext\n"
        "assert SparkContext._gateway is None\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=elsewhere, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["fails", "at_once"])
def test_an_error_of_the_function_names_its_line(folder: Path, name: str) -> None:
    """The message has the file, line and function."""
    settings = pipeline(NUMBERS, {"topic": "out", "format": "json"}, process=job(name))
    with pytest.raises(FunctionFailed) as raised:
        made(ArrowSpec.of(settings, folder), batch_of([b'{"n":1}']))
    raises = "no such luck" if name == "fails" else "at once"
    line = next(number for number, text in enumerate(JOB.splitlines(), 1) if raises in text)
    assert f"(tailrace_test_arrow_job.py:{line} in {name})" in raised.value.what


@pytest.mark.parametrize(
    ("name", "said"), [("collects", "returned list"), ("yields_rows", "yielded list"), ("LIMIT", "not callable")]
)
def test_a_result_that_is_not_an_iterator_of_batches_is_refused(folder: Path, name: str, said: str) -> None:
    """The message says what was returned instead."""
    settings = pipeline(NUMBERS, {"topic": "out", "format": "json"}, process=job(name))
    with pytest.raises((FunctionInvalid, FunctionMissing)) as raised:
        made(ArrowSpec.of(settings, folder), batch_of([b'{"n":1}']))
    assert said in raised.value.what


def test_an_argument_that_the_function_does_not_take_is_refused_at_the_start(folder: Path) -> None:
    """The error comes before a record is read."""
    with pytest.raises(FunctionInvalid, match="nonsense"):
        ArrowSpec.of(pipeline(process=job("enrich", arguments={"nonsense": 1})), folder)


def test_an_input_that_the_function_stops_reading_is_read_to_its_end(folder: Path) -> None:
    """Otherwise later rejected records would be lost."""
    stages = ArrowStages(ArrowSpec.of(pipeline(NUMBERS, {"topic": "out"}, process=job("first")), folder))
    seen = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            seen.append(number)
            yield stages.decode(batch_of([b'{"n":1}']))[0]

    assert len(list(stages.process(batches()))) == 1
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("name", ["keeps", "swallows"])
def test_a_read_error_is_not_wrapped(folder: Path, name: str) -> None:
    """This holds even if the function catches it, because the following records were not read."""
    stages = ArrowStages(ArrowSpec.of(pipeline(NUMBERS, {"topic": "out"}, process=job(name)), folder))

    def batches() -> Iterator[pa.RecordBatch]:
        yield stages.decode(batch_of([b'{"n":1}']))[0]
        raise InputCutOff("the input ended early")

    with pytest.raises(InputCutOff):
        list(stages.process(batches()))


def test_invalid_columns_are_refused_as_on_spark(folder: Path) -> None:
    """With a function they are refused at its first batch, otherwise before a record is read."""
    settings = pipeline(NUMBERS, {"topic": "out"}, process=job("wrong_columns"))
    with pytest.raises(SinkColumnsInvalid, match="`topic` is bigint, not string"):
        made(ArrowSpec.of(settings, folder), batch_of([b'{"n":1}']))
    with pytest.raises(SinkColumnsInvalid, match=r"sink.topic"):
        ArrowSpec.of(pipeline(sink={"format": "raw"}), folder)
    with pytest.raises(SinkColumnsInvalid, match="good: in the schema"):
        ArrowSpec.of(pipeline(NUMBERS, {"topic": "out", "format": "avro", "schema": "s.avsc"}), folder)


@pytest.mark.parametrize(
    ("column", "array", "reason"),
    [
        ("partition", pa.array([-2], pa.int32()), "negative partition"),
        ("timestamp", pa.array([-1], pa.timestamp("us", "UTC")), "negative timestamp"),
        ("headers", pa.array([[{"key": None, "value": b"x"}]], RECORD.field("headers").type), "header without a key"),
        ("headers", pa.array([[{"key": "a\0", "value": b"x"}]], RECORD.field("headers").type), "header key with NUL"),
        ("headers", pa.array([[None]], RECORD.field("headers").type), "header without a key"),
        ("topic", pa.array([None], pa.string()), "no topic"),
    ],
)
def test_a_row_that_kafka_would_refuse_is_rejected(folder: Path, column: str, array: pa.Array, reason: str) -> None:
    """It keeps its value and its origin; its neighbours go through."""
    sink = {"format": "json"} if column == "topic" else {"format": "json", "topic": "out"}
    stages = ArrowStages(ArrowSpec.of(pipeline(NUMBERS, sink, process=job("keeps")), folder))
    good, _ = stages.decode(batch_of([b'{"n":1}', b'{"n":2}']))
    fine = pa.array(["there"]) if column == "topic" else pa.nulls(1, array.type)
    rows = stages.encode(good.append_column(column, pa.concat_arrays([array, fine]))).to_pylist()
    assert [(row["value"], row["reason"]) for row in rows] == [(b'{"n":1}', reason), (b'{"n":2}', None)]
    headers = headers_of(rows[0])
    assert headers["tailrace.reason"] == reason.encode()
    assert headers["tailrace.stage"] == b"encode"
    assert headers["tailrace.source.offset"] == b"0"
    assert headers.get("tailrace.sink.topic") == (None if column == "topic" else b"out")
    assert (rows[0]["topic"], rows[0]["partition"], rows[0]["timestamp"]) == (None, None, None)
    assert rows[1]["topic"] == ("there" if column == "topic" else "out")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"process": {"function": "a:b"}}, "process.function works on DataFrames"),
        ({"process": {"validate": {"a": "b"}}}, "process.validate is SQL"),
        ({"process": {"partitions": 2}}, "process.partitions shuffles"),
        ({"spark": {"spark.sql.session.timeZone": "Europe/Paris"}}, "spark.sql.session.timeZone is not UTC"),
        ({"spark": {"spark.sql.legacy.timeParserPolicy": "LEGACY"}}, "spark.sql.legacy.timeParserPolicy changes how"),
        ({}, ""),
    ],
)
def test_a_setting_that_needs_spark_is_named(folder: Path, settings: dict[str, Any], why: str) -> None:
    """The reason names the setting, and a spec is refused with it."""
    assert unsupported(pipeline(**settings)).startswith(why)
    assert bool(unsupported(pipeline(**settings))) is bool(why)
    if why:
        with pytest.raises(ConfigInvalid, match=why):
            ArrowSpec.of(pipeline(**settings), folder)


@pytest.mark.parametrize("schema", ["id lnog", "long", "t tinyint", "m map<int,int>", "kafka string", "missing.json"])
def test_an_invalid_schema_is_refused(folder: Path, schema: str) -> None:
    """As on Spark, it is refused before a record is read."""
    with pytest.raises(SchemaInvalid):
        ArrowSpec.of(pipeline({"topics": ["in"], "format": "json", "schema": schema}), folder)


def test_arrow_types_unknown_to_spark_are_converted(folder: Path) -> None:
    """Dictionaries, large and small types are written like the types that they represent."""
    stages = ArrowStages(ArrowSpec.of(pipeline(NUMBERS, {"topic": "out"}, process=job("keeps")), folder))
    columns = {
        "key": pa.array(["k"], pa.large_string()), "d": pa.array(["x"]).dictionary_encode(),
        "u": pa.array([7], pa.uint32()),
        "ls": pa.array([[1]], pa.large_list(pa.int64())), "ns": pa.array([1_999], pa.timestamp("ns", "UTC")),
        "v": pa.array(["y"], pa.string_view()), "f": pa.array([0.5], pa.float16()),
        "m": pa.array([[("a", "b")]], pa.map_(pa.large_string(), pa.large_string())),
    }  # fmt: skip
    (row,) = stages.encode(pa.RecordBatch.from_pydict(columns)).to_pylist()
    assert (row["key"], row["value"]) == (
        b"k",
        b'{"d":"x","u":7,"ls":[1],"ns":"1970-01-01T00:00:00.000001Z","v":"y","f":0.5,"m":{"a":"b"}}',
    )


def test_an_empty_batch_passes_every_stage(folder: Path) -> None:
    """It does so with a function and without one."""
    to_json = {"topic": "out", "format": "json"}
    for settings in (pipeline(), pipeline(NUMBERS, to_json), pipeline(NUMBERS, to_json, process=job("enrich"))):
        assert made(ArrowSpec.of(settings, folder), batch_of([])) == []
