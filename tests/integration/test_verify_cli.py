"""`tailrace verify` on a real Kafka: it finds planted faults, and does not count uncommitted records."""

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
    """Topics, and the command on them."""

    def __init__(self, kafka: EmbeddedKafka, topics: Topics) -> None:
        self.bootstrap = kafka.bootstrap_servers
        self.topics = topics
        self.input, self.output, self.rejected = topics("in", partitions=2), topics("out", partitions=3), topics("no")

    def write(self, topic: str, ids: Iterable[int], **fields: Any) -> None:
        """Write records whose key, header and value carry an id."""
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
        """Return a producer with an open transaction."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": name, "linger.ms": 0})
        producer.init_transactions(30)
        producer.begin_transaction()
        return producer

    def run(self, *arguments: str, output: str = "json") -> Any:
        """Return the command's result."""
        line = ["verify", self.input, self.output, "-b", self.bootstrap, "--output", output, *arguments]
        return CliRunner().invoke(app, line, catch_exceptions=False)


@pytest.fixture
def setup(tailrace_kafka: EmbeddedKafka, tailrace_topics: Topics) -> Setup:
    """Return a setup with its own topics."""
    return Setup(tailrace_kafka, tailrace_topics)


@pytest.mark.parametrize("by", ["key", "header:id", "json:$.at.id"])
def test_equal_topics_are_verified(setup: Setup, by: str) -> None:
    """By key, header and JSON path, the line reports that all records came out, and the exit code is 0."""
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


def test_error_names_examples(setup: Setup) -> None:
    """In text output, the failed proof is an error with ids."""
    setup.write(setup.input, [1, 2])
    setup.write(setup.output, [1])
    with pytest.raises(RecordsDiffer, match="lost: 2"):
        setup.run(output="text")


def test_rejected_records_count_as_delivered(setup: Setup) -> None:
    """A rejected record of this input is not lost; one of another input is ignored."""
    setup.write(setup.input, range(10))
    setup.write(setup.output, range(9))
    setup.write(setup.rejected, [9], headers=(("tailrace.source.topic", setup.input.encode()),))
    setup.write(setup.rejected, [8], headers=(("tailrace.source.topic", b"another"),))
    found = json.loads(setup.run("--rejected", setup.rejected).stdout)
    assert (found["lost"], found["duplicated"], found["rejected"]) == (0, 0, 1)


def test_unparsable_record_is_identified_by_its_place(setup: Setup) -> None:
    """Broken JSON contains no id; the headers of the rejected copy name its source."""
    produce(setup.bootstrap, setup.input, [Record(b"{broken", partition=1)])
    place = {"topic": setup.input, "partition": "1", "offset": "0"}
    headers = tuple((f"tailrace.source.{name}", value.encode()) for name, value in place.items())
    produce(setup.bootstrap, setup.rejected, [Record(b"{broken", headers=headers)])
    done = setup.run("--by", "json:$.at.id", "--rejected", setup.rejected)
    assert (json.loads(done.stdout)["lost"], done.exit_code) == (0, 0)


def test_records_without_an_id_prove_nothing(setup: Setup) -> None:
    """A missing header does not pass as a successful proof."""
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
    """Reading ends at an output's trailing transaction markers, and skips aborted records."""
    setup.write(setup.input, range(3))
    for name, commit in (("committed", True), ("aborted", False)):
        producer = setup.transaction(f"{setup.output}.{name}")
        for each in range(3):
            producer.produce(setup.output, b"", b"%d" % each)
        producer.flush(30)
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)
    assert json.loads(setup.run().stdout)["out"] == 3
    assert json.loads(setup.run("--isolation", "read_uncommitted").stdout)["duplicated"] == 3


def test_open_transaction_is_named_after_a_wait(setup: Setup) -> None:
    """Its records are neither lost nor delivered, so the reader gives no verdict and reports what it waited for."""
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


def test_records_after_the_call_are_not_read(setup: Setup) -> None:
    """The end is fixed at the call, so that a topic still being written can be read to its end."""
    setup.write(setup.input, range(3))
    reading = read(Kafka.model_validate({"bootstrap.servers": setup.bootstrap}), setup.input)
    setup.write(setup.input, range(3, 6))
    assert len(list(reading)) == 3


def test_empty_topics_are_equal(setup: Setup) -> None:
    """Nothing in and nothing out is exact, without waiting for a record."""
    assert verify(
        Kafka.model_validate({"bootstrap.servers": setup.bootstrap}), setup.input, setup.output, Identity.parse("key")
    ).exact


def test_unknown_topic_is_named_with_the_closest_name(setup: Setup) -> None:
    """A typo in a topic's name is not taken for an empty topic."""
    with pytest.raises(TopicUnknown, match=f"the closest name is '{setup.output}'"):
        CliRunner().invoke(
            app, ["verify", setup.input, setup.output + "x", "-b", setup.bootstrap], catch_exceptions=False
        )


def test_unreachable_broker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the address."""
    monkeypatch.setattr("tailrace.kafka.cluster.ANSWER_LIMIT", 2.0)
    with pytest.raises(BrokerUnreachable, match="localhost:1 "):
        CliRunner().invoke(app, ["verify", "a", "b", "-b", "localhost:1"], catch_exceptions=False)


def test_secret_on_the_command_line_is_refused_and_not_repeated(setup: Setup) -> None:
    """Secrets come from a file; the message has the option's name but not its value."""
    with pytest.raises(OptionRefused, match=r"sasl\.password") as caught:
        setup.run("--option", "sasl.password=hunter2")
    assert "hunter2" not in str(caught.value)


def test_several_outputs_of_each_record_are_counted(setup: Setup) -> None:
    """It said that all but one of each were duplicated; now it says what to tell it."""
    setup.write(setup.input, range(50))
    setup.write(setup.output, [*range(50), *range(50), *range(50)])
    with pytest.raises(RecordsDiffer) as refused:
        setup.run(output="text")
    assert refused.value.then == "if the function makes 3 records of each, say so with --each"
    found = json.loads(setup.run("--each", "3").stdout)
    assert (found["in"], found["out"], found["wanted"], found["lost"], found["duplicated"]) == (50, 150, 150, 0, 0)
    setup.write(setup.output, [7])
    assert json.loads(setup.run("--each", "3").stdout)["duplicated"] == 1


def test_outputs_in_several_topics_and_numbers_in_headers_are_counted(setup: Setup) -> None:
    """A rejected record stands for all of its outputs."""
    setup.write(setup.input, range(10), headers=[("parts", b"2")])
    setup.write(setup.input, range(10, 20), headers=[("parts", b"0")])
    setup.write(setup.output, range(9))
    setup.write(setup.rejected, [9], headers=[("parts", b"2")])
    also = setup.topics("also")
    setup.write(also, range(9))
    line = ["--each", "header:parts", "--also", also, "--rejected", setup.rejected]
    found = json.loads(setup.run(*line).stdout)
    assert {name: found[name] for name in ("in", "out", "wanted", "rejected", "lost", "duplicated")} == {
        "in": 20, "out": 18, "wanted": 20, "rejected": 1, "lost": 0, "duplicated": 0,
    }  # fmt: skip


def test_rejected_output_is_one_of_several_and_a_record_without_a_number_is_found_by_its_place(setup: Setup) -> None:
    """A row that could not be encoded stands for itself; a record that does not parse has no number to tell."""
    produce(setup.bootstrap, setup.input, [Record(b"junk", b"2", partition=0)])
    place = {"topic": setup.input.encode(), "partition": b"0", "offset": b"0"}
    headers = (("tailrace.stage", b"decode"), *((f"tailrace.source.{name}", each) for name, each in place.items()))
    produce(setup.bootstrap, setup.rejected, [Record(b"junk", b"2", headers)])
    setup.write(setup.input, [1], headers=[("parts", b"3")])
    setup.write(setup.output, [1, 1])
    setup.write(setup.rejected, [1], headers=[("parts", b"3"), ("tailrace.stage", b"encode")])
    found = json.loads(setup.run("--by", "key", "--each", "header:parts", "--rejected", setup.rejected).stdout)
    assert {name: found[name] for name in ("lost", "duplicated", "unexpected", "unidentified", "wanted")} == {
        "lost": 0, "duplicated": 0, "unexpected": 0, "unidentified": 0, "wanted": 4,
    }  # fmt: skip


def test_number_of_outputs_that_is_none_is_refused(setup: Setup) -> None:
    """A key is no number."""
    with pytest.raises(OptionRefused, match="--each"):
        setup.run("--each", "key")
