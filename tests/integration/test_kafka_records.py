"""`tailrace kafka topic create`, `produce` and `consume` on a real Kafka."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import fastavro
import pytest
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from support.registry import schema_registry
from tailrace.admin import consuming
from tailrace.cli.kafka import app
from tailrace.cli.kafka_records import line, records
from tailrace.config import Kafka
from tailrace.errors import ConfigInvalid, OptionRefused, TopicUnknown
from tailrace.testing import Record, Topics, consume, produce
from tailrace.testing.embedded import EmbeddedKafka

pytestmark = pytest.mark.integration

Run = Callable[..., str]
SCHEMA: dict[str, Any] = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture
def run(tailrace_kafka: EmbeddedKafka) -> Run:
    """Return a function that runs the command on the tests' Kafka, and returns its result; it raises its error."""

    def act(*arguments: str, stdin: str | bytes = "") -> str:
        servers = () if any(each.endswith(".yaml") for each in arguments) else ("-b", tailrace_kafka.bootstrap_servers)
        return CliRunner().invoke(app, [*arguments, *servers], input=stdin, catch_exceptions=False).stdout

    return act


@pytest.fixture
def file(tailrace_kafka: EmbeddedKafka, tailrace_topics: Topics, tmp_path: Path) -> Path:
    """Return the file of a pipeline that reads text and writes Avro."""
    path = tmp_path / "pipeline.yaml"
    (tmp_path / "order.avsc").write_text(json.dumps(SCHEMA))
    content = {
        "pipeline": "orders",
        "kafka": {"bootstrap.servers": tailrace_kafka.bootstrap_servers},
        "source": {"topics": [tailrace_topics("in")]},
        "process": {"function": "orders.py:orders"},
        "sink": {"topic": tailrace_topics("out"), "format": "avro", "schema": "order.avsc"},
    }
    path.write_text(json.dumps(content))
    return path


def topic_of(file: Path, end: str) -> str:
    """Return the source or sink topic that the file names."""
    content: dict[str, Any] = json.loads(file.read_text())
    return str(content["source"]["topics"][0] if end == "in" else content["sink"]["topic"])


def test_created_topics_have_their_partitions_and_existing_ones_stay(run: Run) -> None:
    """A second creation says that the topic exists, with the partitions that it has."""
    name = f"made-{uuid4().hex[:8]}"
    assert f"topic {name}: 3 partitions\n" in run("topic", "create", f"{name}:3")
    found = json.loads(run("topic", "create", f"{name}:5", f"{name}-b", "--output", "json"))
    assert found["topics"] == [
        {"name": name, "partitions": 3, "created": False},
        {"name": f"{name}-b", "partitions": 1, "created": True},
    ]


def test_topics_of_a_file_are_created(run: Run, tailrace_kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Without names, those that the pipeline reads and writes."""
    names = [f"{end}-{uuid4().hex[:8]}" for end in ("in", "out")]
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        f"pipeline: p\nkafka: {{bootstrap.servers: '{tailrace_kafka.bootstrap_servers}'}}\n"
        f"source: {{topics: [{names[0]}]}}\nsink: {{topic: {names[1]}}}\n"
    )
    found = json.loads(run("topic", "create", str(path), "--output", "json"))
    assert [each["name"] for each in found["topics"]] == names


def test_produced_lines_are_values_with_or_without_a_key(
    run: Run, tailrace_topics: Topics, tailrace_kafka: EmbeddedKafka
) -> None:
    """The first tab ends the key; bytes stay as they are."""
    topic = tailrace_topics("in")
    said = run("produce", topic, stdin=b"k\ta\tb\nplain\n\n\xff\n")
    assert said.splitlines()[0] == f"written: 3 records to {topic}"
    found = consume(tailrace_kafka.bootstrap_servers, topic)
    assert [(each.key, each.value) for each in found] == [(b"k", b"a\tb"), (None, b"plain"), (None, b"\xff")]


def test_producing_to_an_unknown_topic_is_an_error(run: Run) -> None:
    """The client would wait for the topic to appear."""
    with pytest.raises(TopicUnknown, match="nowhere"):
        run("produce", "nowhere", stdin="a\n")


def test_consume_shows_committed_records_and_leaves_no_group(
    run: Run, tailrace_topics: Topics, tailrace_kafka: EmbeddedKafka
) -> None:
    """It ends at the end of the topic, or after --count records."""
    topic = tailrace_topics("out")
    produce(tailrace_kafka.bootstrap_servers, topic, [Record(b"one", b"k"), Record(None, b"k"), Record(b"\x1b[31m")])
    assert run("consume", topic) == "0:0\tk\tone\n0:1\tk\tnull\n0:2\tnull\t0x1b5b33316d\n"
    [shown] = run("consume", topic, "--count", "1", "--output", "json").splitlines()
    assert {"offset": 0, "value": {"text": "one", "bytes": 3}}.items() <= json.loads(shown).items()
    admin = AdminClient({"bootstrap.servers": tailrace_kafka.bootstrap_servers})
    groups = [each.group_id for each in admin.list_consumer_groups().result().valid]
    assert [each for each in groups if each.startswith("tailrace.reader")] == []


def test_consume_of_new_records_shows_no_old_ones(
    run: Run, tailrace_topics: Topics, tailrace_kafka: EmbeddedKafka
) -> None:
    """It waits for as long as --wait says, and ends without any."""
    topic = tailrace_topics("out")
    produce(tailrace_kafka.bootstrap_servers, topic, [Record(b"old")])
    assert run("consume", topic, "--new", "--wait", "0.1") == ""


def test_avro_is_decoded_with_the_schema_of_the_file(run: Run, file: Path, tailrace_kafka: EmbeddedKafka) -> None:
    """A value that does not fit it is shown as it is."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(SCHEMA), {"id": 300})
    values = [Record(stream.getvalue()), Record(b"\xff")]
    produce(tailrace_kafka.bootstrap_servers, topic_of(file, "out"), values)
    assert run("consume", str(file)) == '0:0\tnull\t{"id": 300}\n0:1\tnull\t0xff\n'
    shown = [json.loads(each) for each in run("consume", str(file), "-o", "json").splitlines()]
    assert [each["decoded"] for each in shown] == [{"id": 300}, None]


def test_lines_of_json_are_written_as_the_avro_of_the_file(run: Run, file: Path, tailrace_kafka: EmbeddedKafka) -> None:
    """The first that does not fit ends it, and those before it are written; a topic without Avro takes any line."""
    out = topic_of(file, "out")
    with pytest.raises(ConfigInvalid, match=r"line 2: it does not fit the schema: [a-z ]+: .*id") as caught:
        run("produce", str(file), out, stdin='k\t{"id": 300}\n{"id": "x"}\n{"id": 1}\n')
    assert caught.value.kept == f"the 1 records before it were written to {out}"
    [found] = consume(tailrace_kafka.bootstrap_servers, out)
    assert (found.key, fastavro.schemaless_reader(io.BytesIO(found.value or b""), SCHEMA)) == (b"k", {"id": 300})
    assert run("consume", str(file)) == '0:0\tk\t{"id": 300}\n'
    assert f"written: 1 records to {topic_of(file, 'in')}\n" in run("produce", str(file), stdin="a\n")


def test_avro_of_a_schema_file_needs_no_pipeline(run: Run, tailrace_topics: Topics, tmp_path: Path) -> None:
    """Dates, decimals, maps and defaults come back as they were written; without the schema the bytes are shown."""
    topic, path = tailrace_topics("in"), tmp_path / "rich.avsc"
    fields = [
        {"name": "id", "type": "long"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "currency", "type": "string", "default": "EUR"},
    ]
    path.write_text(json.dumps({"type": "record", "name": "Rich", "fields": fields}))
    line = '{"id": 7, "day": "2026-11-25", "total": 1.50, "tags": {"a": "b"}}\n'
    run("produce", topic, "--value-schema", str(path), stdin=line)
    [shown] = run("consume", topic, "--value-schema", str(path), "-o", "json").splitlines()
    assert json.loads(shown)["decoded"] == {
        "id": 7, "day": "2026-11-25", "total": "1.50", "tags": [["a", "b"]], "note": None, "currency": "EUR",
    }  # fmt: skip
    assert run("consume", topic).startswith("0:0\tnull\t0x0e")


def test_avro_of_a_registry_has_the_newest_schema_of_the_subject(
    run: Run, file: Path, tailrace_kafka: EmbeddedKafka
) -> None:
    """The pipeline's own schema, which may lack its fields, is registered only under a new subject."""
    content = json.loads(file.read_text())
    topic = topic_of(file, "in")
    with schema_registry() as registry:
        content["source"] |= {"format": "avro", "schema": "order.avsc", "registry": {"url": registry.url}}
        file.write_text(json.dumps(content))
        run("produce", str(file), stdin='{"id": 1}\n')
        newer = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "note", "type": "string"}]}
        number = registry.add(newer, f"{topic}-value")
        run("produce", str(file), stdin='{"id": 2, "note": "new"}\n')
        assert run("consume", str(file), topic) == '0:0\tnull\t{"id": 1}\n0:1\tnull\t{"id": 2}\n'
        assert registry.subjects == {f"{topic}-value": [1, number]}
    found = consume(tailrace_kafka.bootstrap_servers, topic)
    assert [(each.value or b"")[:5] for each in found] == [b"\0\0\0\0\1", b"\0\0\0\0\2"]


def test_headers_are_written_with_each_record(run: Run, tailrace_topics: Topics, tailrace_kafka: EmbeddedKafka) -> None:
    """A name may occur twice, and a value may have an equals sign or be empty."""
    topic = tailrace_topics("in")
    run("produce", topic, "--header", "trace=a=b", "-H", "trace=", stdin="one\ntwo\n")
    found = consume(tailrace_kafka.bootstrap_servers, topic)
    assert [each.headers for each in found] == [(("trace", b"a=b"), ("trace", b""))] * 2
    with pytest.raises(OptionRefused, match="'trace' is not of the form NAME=VALUE"):
        run("produce", topic, "--header", "trace", stdin="one\n")


def test_topic_may_still_be_an_option_with_a_warning(tailrace_topics: Topics, tailrace_kafka: EmbeddedKafka) -> None:
    """The warning says what to write instead; two topics are refused."""
    topic, servers = tailrace_topics("in"), tailrace_kafka.bootstrap_servers
    done = CliRunner().invoke(app, ["produce", "-t", topic, "-b", servers], input="a\n", catch_exceptions=False)
    assert f"-t is deprecated and ends with 0.3; pass the topic as an argument: {topic}" in done.stderr
    assert "deprecated" not in CliRunner().invoke(app, ["consume", topic, "-b", servers]).stderr
    with pytest.raises(OptionRefused, match="'other' is a second TOPIC"):
        CliRunner().invoke(app, ["consume", topic, "other", "-b", servers], catch_exceptions=False)


def test_consume_begins_at_an_offset_a_time_or_the_end(
    run: Run, tailrace_topics: Topics, tailrace_kafka: EmbeddedKafka
) -> None:
    """An offset is of one partition, of which alone is read; a time is of all."""
    topic = tailrace_topics("in", partitions=2)
    at = int(datetime(2026, 11, 20, 10, tzinfo=UTC).timestamp()) * 1000
    given = [Record(b"%d" % number, partition=number % 2, timestamp=at + number) for number in range(6)]
    produce(tailrace_kafka.bootstrap_servers, topic, given)

    def values(start: str, *more: str) -> list[str]:
        return sorted(each.split("\t")[2] for each in run("consume", topic, "--from", start, *more).splitlines())

    assert values("start") == ["0", "1", "2", "3", "4", "5"]
    assert values("1:1") == ["3", "5"]
    assert values("1:1", "--count", "1") == ["3"]
    assert values("2026-11-20T10:00:00.003Z") == ["3", "4", "5"]
    assert values("0:3") == values("end", "--wait", "0") == values("2027-01-01T00:00:00Z") == []


def test_consume_waits_at_the_end_for_more_than_an_offset_has(
    tailrace_topics: Topics, tailrace_kafka: EmbeddedKafka
) -> None:
    """Records that are committed meanwhile follow, those of an open transaction do not."""
    topic, kafka = tailrace_topics("in"), Kafka(bootstrap_servers=tailrace_kafka.bootstrap_servers)
    produce(tailrace_kafka.bootstrap_servers, topic, [Record(b"old"), Record(b"first")])
    found = consuming.records(kafka, topic, consuming.parse("0:1"), 30)
    assert next(found).value == b"first"
    produce(tailrace_kafka.bootstrap_servers, topic, [Record(b"second")])
    assert next(found).value == b"second"
    found.close()


@pytest.mark.parametrize(
    ("start", "says"),
    [("1:0", "has no partition 1"), ("0:9", "has no offset 9: it holds 0 to 0"), ("yesterday", "is no place to begin")],
)
def test_place_that_a_topic_does_not_have_is_refused(run: Run, tailrace_topics: Topics, start: str, says: str) -> None:
    """Nothing is shown instead of what was asked for."""
    with pytest.raises(OptionRefused, match=says):
        run("consume", tailrace_topics("in"), "--from", start)


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_command_without_a_topic_says_how_to_name_one(run: Run, command: str) -> None:
    """Neither a FILE nor a TOPIC."""
    with pytest.raises(OptionRefused, match="no topic is named"):
        run(command)


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "null"), (b"a\tb\r\nc", "a\\tb\\nc"), (b"\x00", "0x00"), ("é".encode(), "é")]
)
def test_value_takes_one_line(value: bytes | None, shown: str) -> None:
    """Tabs and newlines are the separators of fields and records."""
    assert line(value) == shown


def test_last_line_needs_no_newline() -> None:
    """A carriage return belongs to the end of the line, too."""
    assert [(each.key, each.value) for each in records([b"a\r\n", b"k\tb"])] == [(None, b"a"), (b"k", b"b")]
