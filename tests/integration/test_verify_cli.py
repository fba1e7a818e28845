"""`tailrace verify` on a real Kafka: planted faults are found, and what was never committed is not counted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from tailrace.admin.verify import Identity, read, verify
from tailrace.cli.main import app
from tailrace.config import Kafka
from tailrace.errors import BrokerUnreachable, KafkaFailed, OptionRefused, RecordsDiffer, TopicUnknown
from tailrace.testing import Record, Topics, produce
from tailrace.testing.embedded import EmbeddedKafka

pytestmark = pytest.mark.integration


class Setup:
    """Topics, and the command line on them."""

    def __init__(self, kafka: EmbeddedKafka, topics: Topics) -> None:
        self.bootstrap = kafka.bootstrap_servers
        self.input, self.output, self.rejected = topics("in", partitions=2), topics("out", partitions=3), topics("no")

    def write(self, topic: str, ids: Iterable[int], **fields: Any) -> None:
        """Records whose key, header and value carry an id."""
        produce(
            self.bootstrap,
            topic,
            [
                Record(
                    json.dumps({"at": {"id": each}}).encode(),
                    b"%d" % each,
                    (("id", b"%d" % each), *fields.get("headers", ())),
                )
                for each in ids
            ],
        )

    def transaction(self, name: str) -> Producer:
        """A producer with an open transaction."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": name, "linger.ms": 0})
        producer.init_transactions(30)
        producer.begin_transaction()
        return producer

    def run(self, *arguments: str, output: str = "json") -> Any:
        """The command's result."""
        line = ["verify", self.input, self.output, "-b", self.bootstrap, "--output", output, *arguments]
        return CliRunner().invoke(app, line, catch_exceptions=False)


@pytest.fixture
def setup(tailrace_kafka: EmbeddedKafka, tailrace_topics: Topics) -> Setup:
    """Topics of their own."""
    return Setup(tailrace_kafka, tailrace_topics)


@pytest.mark.parametrize("by", ["key", "header:id", "json:$.at.id"])
def test_equal_topics_are_verified(setup: Setup, by: str) -> None:
    """By key, header and JSON path the line says that all came out, and the exit code is 0."""
    setup.write(setup.input, range(100))
    setup.write(setup.output, reversed(range(100)))
    done = setup.run("--by", by, output="text")
    assert done.stdout == "verified: 100 in, 100 out, 0 lost, 0 duplicated, 0 rejected\n"
    assert done.exit_code == 0


def test_planted_faults_are_counted_and_named(setup: Setup) -> None:
    """A lost, a duplicated and an unexpected id are found, and the exit code is 1."""
    setup.write(setup.input, range(100))
    setup.write(setup.output, [*range(99), 5, 1000])
    done = setup.run()
    found = json.loads(done.stdout)
    assert (found["in"], found["out"], found["lost"], found["duplicated"], found["unexpected"]) == (100, 101, 1, 1, 1)
    assert found["examples"] == {"lost": ["99"], "duplicated": ["5"], "unexpected": ["1000"]}
    assert done.exit_code == 1


def test_the_error_names_examples(setup: Setup) -> None:
    """For a person the failed proof is an error with its ids."""
    setup.write(setup.input, [1, 2])
    setup.write(setup.output, [1])
    with pytest.raises(RecordsDiffer, match="lost: 2"):
        setup.run(output="text")


def test_rejected_records_count_as_delivered(setup: Setup) -> None:
    """A rejected record of this input is not lost; one of another input is none of ours."""
    setup.write(setup.input, range(10))
    setup.write(setup.output, range(9))
    setup.write(setup.rejected, [9], headers=(("tailrace.source.topic", setup.input.encode()),))
    setup.write(setup.rejected, [8], headers=(("tailrace.source.topic", b"another"),))
    found = json.loads(setup.run("--rejected", setup.rejected).stdout)
    assert (found["lost"], found["duplicated"], found["rejected"]) == (0, 0, 1)


def test_a_record_that_does_not_parse_is_known_by_its_place(setup: Setup) -> None:
    """Broken JSON has no id in it; the headers of the rejected copy say where it came from."""
    produce(setup.bootstrap, setup.input, [Record(b"{broken", partition=1)])
    place = {"topic": setup.input, "partition": "1", "offset": "0"}
    headers = tuple((f"tailrace.source.{name}", value.encode()) for name, value in place.items())
    produce(setup.bootstrap, setup.rejected, [Record(b"{broken", headers=headers)])
    done = setup.run("--by", "json:$.at.id", "--rejected", setup.rejected)
    assert (json.loads(done.stdout)["lost"], done.exit_code) == (0, 0)


def test_records_without_an_id_prove_nothing(setup: Setup) -> None:
    """A header that does not exist is not taken for a successful proof."""
    setup.write(setup.input, [1])
    setup.write(setup.output, [1])
    done = setup.run("--by", "header:nowhere")
    assert (json.loads(done.stdout)["unidentified"], done.exit_code) == (2, 1)


def test_input_and_output_may_carry_the_id_in_different_places(setup: Setup) -> None:
    """--in-by and --out-by override --by."""
    setup.write(setup.input, range(5))
    setup.write(setup.output, range(5))
    assert setup.run("--in-by", "json:$.at.id", "--out-by", "header:id").exit_code == 0


def test_aborted_records_are_not_counted(setup: Setup) -> None:
    """The end of an output that ends with transaction markers is found, and what was aborted is not there."""
    setup.write(setup.input, range(3))
    for name, commit in (("committed", True), ("aborted", False)):
        producer = setup.transaction(f"{setup.output}.{name}")
        for each in range(3):
            producer.produce(setup.output, b"", b"%d" % each)
        producer.flush(30)
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)
    assert json.loads(setup.run().stdout)["out"] == 3
    assert json.loads(setup.run("--isolation", "read_uncommitted").stdout)["duplicated"] == 3


def test_an_open_transaction_is_waited_for_and_then_named(setup: Setup) -> None:
    """Its records are neither lost nor there, so the reader does not decide; it says what it waited for."""
    producer = setup.transaction(f"{setup.output}.open")
    producer.produce(setup.output, b"", b"0", partition=0)
    producer.flush(30)
    kafka = Kafka.model_validate({"bootstrap.servers": setup.bootstrap})
    try:
        with pytest.raises(KafkaFailed, match=f"{setup.output}-0 at 0 of 1"):
            list(read(kafka, setup.output, limit=2))
    finally:
        producer.abort_transaction(30)
    assert list(read(kafka, setup.output)) == []


def test_what_comes_after_the_call_is_not_read(setup: Setup) -> None:
    """The end is that of the moment of the call, so that a topic that is written to can be read to its end."""
    setup.write(setup.input, range(3))
    reading = read(Kafka.model_validate({"bootstrap.servers": setup.bootstrap}), setup.input)
    setup.write(setup.input, range(3, 6))
    assert len(list(reading)) == 3


def test_empty_topics_are_equal(setup: Setup) -> None:
    """Nothing in and nothing out is exact, without waiting for a record."""
    assert verify(
        Kafka.model_validate({"bootstrap.servers": setup.bootstrap}), setup.input, setup.output, Identity.parse("key")
    ).exact


def test_an_unknown_topic_is_named_with_the_nearest(setup: Setup) -> None:
    """A typing error in a topic's name is not an empty topic."""
    with pytest.raises(TopicUnknown, match=f"the closest name is '{setup.output}'"):
        CliRunner().invoke(
            app, ["verify", setup.input, setup.output + "x", "-b", setup.bootstrap], catch_exceptions=False
        )


def test_a_broker_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the address."""
    monkeypatch.setattr("tailrace.kafka.cluster.ANSWER_LIMIT", 2.0)
    with pytest.raises(BrokerUnreachable, match="localhost:1 "):
        CliRunner().invoke(app, ["verify", "a", "b", "-b", "localhost:1"], catch_exceptions=False)


def test_a_secret_on_the_command_line_is_refused_and_not_repeated(setup: Setup) -> None:
    """Secrets come from a file; the message has the option's name and not its value."""
    with pytest.raises(OptionRefused, match=r"sasl\.password") as caught:
        setup.run("--option", "sasl.password=hunter2")
    assert "hunter2" not in str(caught.value)
