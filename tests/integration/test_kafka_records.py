"""`tailrace kafka topic create`, `produce` and `consume` on a real Kafka."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import fastavro
import pytest
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from tailrace.cli.kafka import app
from tailrace.cli.kafka_records import line, records
from tailrace.errors import OptionRefused, TopicUnknown
from tailrace.testing import Record, Topics, consume, produce
from tailrace.testing.embedded import EmbeddedKafka

pytestmark = pytest.mark.integration

Run = Callable[..., str]
SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


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
    said = run("produce", "-t", topic, stdin=b"k\ta\tb\nplain\n\n\xff\n")
    assert said.splitlines()[0] == f"written: 3 records to {topic}"
    found = consume(tailrace_kafka.bootstrap_servers, topic)
    assert [(each.key, each.value) for each in found] == [(b"k", b"a\tb"), (None, b"plain"), (None, b"\xff")]


def test_producing_to_an_unknown_topic_is_an_error(run: Run) -> None:
    """The client would wait for the topic to appear."""
    with pytest.raises(TopicUnknown, match="nowhere"):
        run("produce", "-t", "nowhere", stdin="a\n")


def test_consume_shows_committed_records_and_leaves_no_group(
    run: Run, tailrace_topics: Topics, tailrace_kafka: EmbeddedKafka
) -> None:
    """It ends at the end of the topic, or after --count records."""
    topic = tailrace_topics("out")
    produce(tailrace_kafka.bootstrap_servers, topic, [Record(b"one", b"k"), Record(None, b"k"), Record(b"\x1b[31m")])
    assert run("consume", "-t", topic) == "0:0\tk\tone\n0:1\tk\tnull\n0:2\tnull\t0x1b5b33316d\n"
    [shown] = run("consume", "-t", topic, "--count", "1", "--output", "json").splitlines()
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
    assert run("consume", "-t", topic, "--new", "--wait", "0.1") == ""


def test_avro_is_decoded_with_the_schema_of_the_file(run: Run, file: Path, tailrace_kafka: EmbeddedKafka) -> None:
    """A value that does not fit it is shown as it is."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(SCHEMA), {"id": 300})
    values = [Record(stream.getvalue()), Record(b"\xff")]
    produce(tailrace_kafka.bootstrap_servers, topic_of(file, "out"), values)
    assert run("consume", str(file)) == '0:0\tnull\t{"id": 300}\n0:1\tnull\t0xff\n'
    shown = [json.loads(each) for each in run("consume", str(file), "-o", "json").splitlines()]
    assert [each["decoded"] for each in shown] == [{"id": 300}, None]


def test_lines_are_not_written_where_the_file_says_avro(run: Run, file: Path) -> None:
    """The pipeline would reject each of them."""
    with pytest.raises(OptionRefused, match="are Avro, and lines are text"):
        run("produce", str(file), "-t", topic_of(file, "out"), stdin="a\n")
    assert f"written: 1 records to {topic_of(file, 'in')}\n" in run("produce", str(file), stdin="a\n")


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_command_without_a_topic_says_how_to_name_one(run: Run, command: str) -> None:
    """Neither a FILE nor --topic."""
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
