"""`tailrace rejected` on a real Kafka: what it shows, and that a replay sends each record once."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from tailrace.cli.rejected import app
from tailrace.errors import OptionRefused, RecordTooLarge
from tailrace.testing import Record, Topics, consume, produce
from tailrace.testing.embedded import EmbeddedKafka

pytestmark = pytest.mark.integration


def rejected(number: int, source: str | None, *, pipeline: str, reason: str = "undecodable", **fields: Any) -> Record:
    """Return a rejected record as the sink writes it."""
    ours = {"reason": reason, "detail": f"detail {number}", "pipeline": pipeline, "at": "1700000000000"}
    if source is not None:
        ours |= {"source.topic": source, "source.partition": "1", "source.offset": str(number)}
    headers = (("own", b"kept"), *((f"tailrace.{name}", value.encode()) for name, value in ours.items()))
    return Record(**{"value": b"value-%d" % number, "key": b"key-%d" % number, "headers": headers} | fields)


class Setup:
    """A source topic, a rejected topic, and the command line on both."""

    def __init__(self, kafka: EmbeddedKafka, topics: Topics) -> None:
        self.bootstrap = kafka.bootstrap_servers
        self.source = topics("source", partitions=3)
        self.topic = topics("rejected", partitions=2)
        self.pipeline = f"p-{uuid4().hex[:8]}"

    def reject(self, *numbers: int, partition: int = 0, **fields: Any) -> None:
        """Put records into the rejected topic."""
        records = [
            rejected(each, self.source, pipeline=self.pipeline, partition=partition, **fields) for each in numbers
        ]
        produce(self.bootstrap, self.topic, records)

    def run(self, command: str, *arguments: str) -> dict[str, Any]:
        """Return the JSON that a command writes; raise its error."""
        line = [command, *arguments, "-t", self.topic, "-b", self.bootstrap, "--output", "json"]
        done = CliRunner().invoke(app, line, catch_exceptions=False)
        return dict(json.loads(done.stdout))

    def text(self, command: str, *arguments: str) -> str:
        """Return what a command writes for people."""
        line = [command, *arguments, "-t", self.topic, "-b", self.bootstrap]
        return CliRunner().invoke(app, line, catch_exceptions=False).stdout

    def replay(self, *arguments: str) -> dict[str, Any]:
        """Replay without the confirmation."""
        return self.run("replay", *arguments, "--yes")

    def arrived(self) -> list[bytes | None]:
        """Return the values in the source topic."""
        return sorted((each.value for each in consume(self.bootstrap, self.source)), key=lambda value: value or b"")


@pytest.fixture
def setup(tailrace_kafka: EmbeddedKafka, tailrace_topics: Topics) -> Setup:
    """Return a setup with its own topics and pipeline name."""
    return Setup(tailrace_kafka, tailrace_topics)


def test_list_shows_where_why_and_from_where(setup: Setup) -> None:
    """Each record has its place, reason, detail and source; reasons are counted."""
    setup.reject(0, 1)
    setup.reject(2, reason="too-long")
    found = setup.run("list")
    assert (found["total"], found["reasons"]) == (3, {"undecodable": 2, "too-long": 1})
    first = found["records"][0]
    assert (first["partition"], first["offset"], first["reason"], first["detail"]) == (0, 0, "undecodable", "detail 0")
    assert first["source"] == {"topic": setup.source, "partition": 1, "offset": 0}
    assert first["at"] == "2023-11-14T22:13:20Z"


def test_list_filters_by_reason_and_shows_the_newest(setup: Setup) -> None:
    """--reason counts only matching records; --limit reduces what is shown, not what is counted."""
    setup.reject(0, 1, 2)
    setup.reject(3, reason="too-long")
    assert setup.run("list", "--reason", "too-long")["total"] == 1
    found = setup.run("list", "--limit", "1")
    assert found["total"] == 4
    assert [each["source"]["offset"] for each in found["records"]] == [3]
    text = setup.text("list", "--limit", "2")
    assert "4 records" in text
    assert "the newest 2 are shown" in text


def test_list_of_a_reason_that_no_record_has_names_those_that_there_are(setup: Setup) -> None:
    """A person who guesses at a reason would believe that nothing was rejected."""
    setup.reject(0, 1)
    setup.reject(2, reason="too-long")
    assert "0 records" in setup.text("list", "--reason", "process")
    assert "none has the reason 'process', there are 2 undecodable, 1 too-long" in setup.text(
        "list", "--reason", "process"
    )


def test_list_of_an_empty_topic_counts_none(setup: Setup) -> None:
    """Nothing rejected is an answer, not an error."""
    assert setup.run("list") == {"topic": setup.topic, "total": 0, "reasons": {}, "records": []}


def test_show_prints_text_as_text_and_other_bytes_as_hex(setup: Setup) -> None:
    """UTF-8 is shown as text; other bytes, and those that could move the cursor, are dumped."""
    setup.reject(0, value="grüße".encode())
    setup.reject(1, value=b"\xff\x00\x41")
    setup.reject(2, value=b"\x1b[2J")
    setup.reject(3, value=None)
    assert "value: grüße" in setup.text("show", "0:0")
    assert "ff 00 41" in setup.text("show", "0:1")
    assert "\x1b" not in setup.text("show", "0:2")
    assert "value: null" in setup.text("show", "0:3")
    assert "own: kept" in setup.text("show", "0:0")


def test_show_of_a_missing_record_is_refused(setup: Setup) -> None:
    """The error names an offset beyond the end, or a missing partition."""
    for place in ("0:7", "9:0"):
        with pytest.raises(OptionRefused, match=place):
            setup.run("show", place)


def test_replay_restores_key_value_headers_and_partition(setup: Setup) -> None:
    """The record returns to its own partition as it was, without the headers of the rejection."""
    setup.reject(5)
    assert setup.replay("--all")["to"] == {setup.source: 1}
    [found] = consume(setup.bootstrap, setup.source)
    assert (found.key, found.value, found.headers, found.partition) == (b"key-5", b"value-5", (("own", b"kept"),), 1)


def test_replaying_all_twice_sends_each_once(setup: Setup) -> None:
    """The second replay finds the marks of the first, and sends only records rejected since."""
    setup.reject(0, 1)
    setup.reject(2, partition=1)
    assert setup.replay("--all")["replayed"] == 3
    again = setup.replay("--all")
    assert (again["replayed"], again["before"]) == (0, 3)
    setup.reject(3)
    assert setup.replay("--all")["replayed"] == 1
    assert setup.arrived() == [b"value-0", b"value-1", b"value-2", b"value-3"]


def test_records_replayed_singly_are_not_sent_again_with_all(setup: Setup) -> None:
    """Marks also cover records sent out of order, by place or by reason."""
    setup.reject(0, 1, 2)
    setup.reject(3, reason="too-long")
    setup.reject(4)
    assert setup.replay("0:1")["replayed"] == 1
    assert setup.replay("0:1")["replayed"] == 0
    assert setup.replay("--reason", "too-long")["replayed"] == 1
    result = setup.replay("--all")
    assert (result["replayed"], result["before"]) == (3, 2)
    assert setup.arrived() == [b"value-%d" % number for number in range(5)]


def test_failed_replay_sends_nothing_and_marks_nothing(setup: Setup, tailrace_topics: Topics) -> None:
    """If the target refuses one record, none is sent; all can be replayed elsewhere."""
    small = tailrace_topics("small", max_message_bytes=1000)
    setup.reject(0)
    setup.reject(1, value=b"x" * 5000)
    with pytest.raises(RecordTooLarge):
        setup.replay("--all", "--to", small)
    assert consume(setup.bootstrap, small) == []
    assert setup.replay("--all")["replayed"] == 2


def test_record_without_its_source_needs_a_topic(setup: Setup) -> None:
    """It is counted and stays where it is until --to names a topic."""
    produce(setup.bootstrap, setup.topic, [rejected(0, None, pipeline=setup.pipeline, partition=0)])
    assert setup.replay("--all") == {"replayed": 0, "to": {}, "before": 0, "without_source": 1}
    assert setup.replay("--all", "--to", setup.source)["replayed"] == 1


def test_topic_of_two_pipelines_is_not_replayed_without_a_name(setup: Setup) -> None:
    """Marks belong to one pipeline, which must be named."""
    setup.reject(0)
    produce(setup.bootstrap, setup.topic, [rejected(1, setup.source, pipeline="other", partition=0)])
    with pytest.raises(OptionRefused, match="2 pipelines"):
        setup.replay("--all")


def test_replay_without_a_terminal_needs_yes(setup: Setup) -> None:
    """Nobody can confirm it, so nothing is sent."""
    setup.reject(0)
    with pytest.raises(OptionRefused, match="no terminal"):
        setup.run("replay", "--all")
    assert setup.arrived() == []


@pytest.mark.parametrize("arguments", [(), ("0:0", "--all"), ("--all", "--reason", "x")])
def test_replay_needs_a_selection(setup: Setup, arguments: tuple[str, ...]) -> None:
    """No selection, or two at once, is an error."""
    with pytest.raises(OptionRefused, match="name what to replay"):
        setup.replay(*arguments)
