"""Previews without a JVM: matching, rejections, exceptions, and the forms of a file with records."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tailrace
from support.registry import schema_registry
from tailrace.cli.main import app
from tailrace.errors import ConfigInvalid, FunctionFailed, OptionRefused
from tailrace.kafka.reader import Message, Range
from tailrace.previews import samples
from tailrace.previews.evaluation import batch
from tailrace.previews.model import Preview
from tailrace.previews.topics import Start, parse, window

FUNCTIONS = '''
import pyarrow as pa

def rows(values):
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})

def repeated(batches):
    """As many times as the number says, modulo 3."""
    for records in batches:
        numbers = map(int, records.column("value").to_pylist())
        yield rows([b"%d" % each for each in numbers for _ in range(each % 3)])

def unlucky(batches):
    for records in batches:
        if b"13" in records.column("value").to_pylist():
            raise ValueError("unlucky")
        yield rows(records.column("value").to_pylist())

def counted(batches):
    yield rows([b"%d" % sum(records.num_rows for records in batches)])

def together(batches):
    for records in batches:
        if records.num_rows > 1:
            raise ValueError("too many")
        yield records

def elsewhere(batches):
    for records in batches:
        columns = {"value": records.column("value"), "topic": ["other"] * records.num_rows}
        yield pa.RecordBatch.from_pydict(columns)

def early(batches):
    for records in batches:
        moments = pa.array(map(int, records.column("value").to_pylist()), pa.timestamp("ms", "UTC"))
        yield pa.RecordBatch.from_arrays([records.column("value"), moments], names=["value", "timestamp"])
'''
JSON = {"format": "json", "schema": "id LONG NOT NULL"}


class Pipeline:
    """A pipeline's file, and previews of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "pipeline.yaml"
        (folder / "functions.py").write_text(FUNCTIONS)

    def write(self, function: str = "", *, source: dict[str, Any] | None = None, **sections: Any) -> None:
        """Write the file."""
        process = {"arrow": f"functions.py:{function}"} if function else {}
        body = {
            "pipeline": "p",
            "source": {"topics": ["in"], **(source or {})},
            "process": {**process, **sections.get("process", {})},
            "sink": {"topic": "out", "format": "raw", **sections.get("sink", {})},
        }
        self.file.write_text(json.dumps(body))

    def of(self, *lines: str) -> Preview:
        """Preview lines of a file."""
        records = self.folder / "records.txt"
        records.write_text("\n".join(lines))
        return tailrace.preview(self.file, start=records)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """Provide a pipeline in a folder of its own."""
    return Pipeline(tmp_path)


def test_each_output_is_matched_with_its_source(pipeline: Pipeline) -> None:
    """A record may become several, one or none."""
    pipeline.write("repeated")
    found = pipeline.of("1", "2", "3")
    assert [[each.value for each in outcome.written] for outcome in found.outcomes] == [[b"1"], [b"2", b"2"], []]
    assert found.summary == "p: 3 records of records.txt: 3 would be written, 0 rejected, 1 dropped by the function"
    assert found.good


def test_timestamp_of_zero_is_shown_as_it_would_be_written(pipeline: Pipeline) -> None:
    """Kafka's client cannot write 0."""
    pipeline.write("early")
    found = pipeline.of("0", "2")
    assert [each.written[0].timestamp for each in found.outcomes] == [1, 2]


def test_undecodable_record_is_shown_with_its_reason(pipeline: Pipeline) -> None:
    """The reason is that of the pipeline's own stages."""
    pipeline.write(source=JSON, sink={"format": "json"})
    found = pipeline.of('{"id": 1}', "no JSON")
    assert found.outcomes[0].written[0].value == b'{"id":1}'
    (rejected,) = found.outcomes[1].rejected
    assert (rejected.stage, rejected.reason, rejected.value) == ("decode", "not json", b"no JSON")
    assert rejected.source == ("in", 0, 1)
    assert not found.good


def test_topic_outside_sink_topics_is_rejected(pipeline: Pipeline) -> None:
    """The gateway decides it, and so does a preview."""
    pipeline.write("elsewhere", sink={"topics": ["out"]})
    (rejected,) = pipeline.of("1").outcomes[0].rejected
    assert (rejected.stage, rejected.reason, rejected.sink_topic) == ("sink", "not among sink.topics", "other")


def test_record_at_which_the_function_raises_is_named(pipeline: Pipeline) -> None:
    """With `on_error: stop`, it would stop the pipeline; the other records are shown all the same."""
    pipeline.write("unlucky")
    found = pipeline.of(*map(str, range(10, 20)))
    assert [(each.source.value, each.raised) for each in found.raised] == [
        (b"13", "ValueError: unlucky (functions.py:16 in unlucky)")
    ]
    assert len(found.all_written) == 9
    assert list(found.rejected["reason"]) == ["would stop the pipeline"]


def test_record_at_which_the_function_raises_is_rejected_if_configured(pipeline: Pipeline) -> None:
    """With `on_error: reject`, it goes to the rejected topic with its own bytes."""
    pipeline.write("unlucky", process={"on_error": "reject"})
    found = pipeline.of("12", "13")
    assert found.raised == ()
    (rejected,) = found.outcomes[1].rejected
    assert (rejected.stage, rejected.reason, rejected.value) == ("process", "function raised", b"13")
    assert rejected.detail == "ValueError: unlucky (functions.py:16 in unlucky)"


@pytest.mark.parametrize(("most", "stops"), [(1, True), (2, False)])
def test_more_faulty_records_than_a_batch_may_have_are_told(pipeline: Pipeline, most: int, stops: bool) -> None:
    """They were shown as rejected, and the pipeline would stop."""
    pipeline.write("unlucky", process={"on_error": "reject", "max_errors": most})
    found = pipeline.of("12", "13", "13")
    assert any("process.max_errors is 1" in each for each in found.notes) is stops


def test_function_over_several_records_is_not_matched(pipeline: Pipeline) -> None:
    """The row for all records is shown, and no row is attributed to a single record."""
    pipeline.write("counted")
    found = pipeline.of("1", "2", "3")
    assert "not matched" in found.unmatched
    assert [each.value for _, each in found.all_written] == [b"3"]
    assert all(not each.written for each in found.outcomes)


def test_exception_that_no_single_record_causes_ends_the_preview(pipeline: Pipeline) -> None:
    """There is no record to name."""
    pipeline.write("together")
    with pytest.raises(FunctionFailed, match="too many") as caught:
        pipeline.of("1", "2")
    assert caught.value.kept == "nothing was written"


def test_preview_asks_no_registry_about_the_sink(pipeline: Pipeline) -> None:
    """A registry that is asked for the id of a new schema registers it."""
    fields = [{"name": "value", "type": "bytes"}]
    (pipeline.folder / "out.avsc").write_text(json.dumps({"type": "record", "name": "Out", "fields": fields}))
    with schema_registry() as registry:
        sink = {"format": "avro", "schema": "out.avsc", "registry": {"url": registry.url}}
        pipeline.write("repeated", sink=sink)
        found = pipeline.of("1")
        assert registry.asked == []
    assert [each.value for _, each in found.all_written] == [b"\x021"]  # a length and the byte, without an id
    assert any("without the schema's id" in note for note in found.notes)


def test_records_of_any_time_can_be_shown() -> None:
    """A time that microseconds cannot hold is none, as in a pipeline."""
    records = [Message("in", 0, number, at, None, b"v") for number, at in enumerate((5, 2**62, -1))]
    assert batch(records).column("timestamp").view("int64").to_pylist() == [5000, None, None]


def test_lines_of_a_file_are_records_or_values(tmp_path: Path) -> None:
    """An object with `value` and only known keys is a record; everything else is a value."""
    lines = [
        {"value": {"id": 1}, "key": "k", "headers": {"a": "b"}, "partition": 2, "offset": 7, "timestamp": 5},
        {"value_base64": "/w==", "headers": [{"key": "a", "value": None}], "topic": "t"},
        {"value": 1, "unit": "kg"},
        {"id": 1},
    ]
    file = tmp_path / "records.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    first, second, third, fourth = samples.read(file, "in", 10)
    assert first == Message("in", 2, 7, 5, b"k", b'{"id": 1}', (("a", b"b"),))
    assert (second.topic, second.offset, second.key, second.value) == ("t", 1, None, b"\xff")
    assert second.headers == (("a", None),)
    assert (third.value, fourth.value) == (b'{"value": 1, "unit": "kg"}', b'{"id": 1}')


def test_json_output_is_read_back_as_records(tmp_path: Path) -> None:
    """So a preview's sources can be kept in a file."""
    record = Message("t", 1, 2, 3, None, b"\xff\x00", (("a", b"b"), ("a", None)))
    file = tmp_path / "records.jsonl"
    file.write_text(json.dumps(samples.document(record)))
    assert samples.read(file, "in", 1) == [record]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"value_base64": "é"}', "ValueError"),
        ('{"value": 1, "headers": [{"value": "a"}]}', "KeyError: 'key'"),
        ('{"value": 1, "headers": 3}', "TypeError"),
        ('{"value": 1, "partition": 4294967296}', "partition is 4294967296"),
    ],
)
def test_unreadable_record_names_its_line(tmp_path: Path, line: str, why: str) -> None:
    """The file may have thousands."""
    file = tmp_path / "records.jsonl"
    file.write_text(f'{{"id": 1}}\n{line}\n')
    with pytest.raises(ConfigInvalid, match=rf"records\.jsonl:2: .*{why}"):
        samples.read(file, "in", 10)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def other(): pass", "no attribute 'records'"),
        ("def records(): return 3", "'int' object is not iterable"),
        ("def records(): yield 'k', b'v'", "'k' is str, not bytes"),
        ("import nowhere", "No module named 'nowhere'"),
    ],
)
def test_mistake_in_samples_is_explained(tmp_path: Path, text: str, why: str) -> None:
    """Without a traceback, and with what the file has to define."""
    file = tmp_path / "samples.py"
    file.write_text(text)
    with pytest.raises(ConfigInvalid, match=why) as caught:
        samples.read(file, "in", 10)
    assert "records" in caught.value.then


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("newest", Start(word="newest")),
        ("orders:2:17", Start(place=("orders", 2, 17))),
        ("2026-11-20T10:00:00", Start(at=datetime(2026, 11, 20, 10, tzinfo=UTC))),
    ],
)
def test_place_to_begin_is_understood(text: str, start: Start) -> None:
    """A time without a zone is UTC."""
    assert parse(text) == start


def test_unknown_place_to_begin_is_refused_with_the_forms() -> None:
    """A file that does not exist is such a place."""
    with pytest.raises(OptionRefused, match=r"'none\.txt' is no place") as caught:
        parse("none.txt")
    assert "TOPIC:PARTITION:OFFSET" in caught.value.then


def test_window_stays_within_the_partition() -> None:
    """At its end or its start."""
    assert window(5, 20, 10, backwards=True) == Range(10, 20)
    assert window(15, 20, 10, backwards=True) == Range(15, 20)
    assert window(5, 20, 10, backwards=False) == Range(5, 15)
    assert window(15, 20, 10, backwards=False) == Range(15, 20)


def test_command_shows_both_sides_and_exits_by_the_verdicts(pipeline: Pipeline) -> None:
    """0 if all is written, 1 if something is rejected or would stop the pipeline; control characters stay unprinted."""
    pipeline.write("unlucky")
    file = pipeline.folder / "records.txt"
    file.write_bytes(b"12\n\x1b[31m\n")
    line = ["preview", str(pipeline.file), "--from", str(file)]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout
    assert "0x1b5b33316d" in done.stdout
    file.write_bytes(b"12\n13\n")
    assert CliRunner().invoke(app, line).exit_code == 1
    document = json.loads(CliRunner().invoke(app, [*line, "-o", "json"]).stdout)
    assert document["counts"] == {"records": 2, "written": 1, "rejected": 0, "raised": 1}
    assert document["records"][1]["source"]["value"] == "13"


def test_frames_and_html_show_outputs_with_their_sources(pipeline: Pipeline) -> None:
    """Text is escaped, because records are foreign."""
    pipeline.write("unlucky", process={"on_error": "reject"})
    found = pipeline.of("<b>", "13")
    assert found.written[["source_offset", "value"]].to_dict("records") == [{"source_offset": 0, "value": "<b>"}]
    assert list(found.rejected["reason"]) == ["function raised"]
    html = found._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
