"""`tailrace rejected` on a real Kafka: what it shows, and that a replay sends each record once."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from typer.testing import CliRunner

from support.kafkaproxy import proxied
from support.proxy import Fault, nth
from support.threads import Line
from support.wire import Api
from tailrace.admin.rejected import Target
from tailrace.admin.replay import Replay
from tailrace.admin.selection import Home, Marks, Selection, select
from tailrace.cli.rejected import app
from tailrace.errors import KafkaFailed, OptionRefused, RecordTooLarge
from tailrace.kafka.clients import add_offsets
from tailrace.kafka.reader import Message
from tailrace.testing import Record, Topics, consume, produce
from tailrace.testing.embedded import EmbeddedKafka, EmbeddedOptions

pytestmark = pytest.mark.integration


def rejected(
    number: int,
    source: str | None,
    *,
    pipeline: str,
    reason: str = "undecodable",
    stage: str = "decode",
    **fields: Any,
) -> Record:
    """Return a rejected record as the sink writes it."""
    ours = {"stage": stage, "reason": reason, "detail": f"detail {number}"}
    ours |= {"pipeline": pipeline, "at": "1700000000000"}
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


def test_show_keeps_the_cursor_where_it_is(setup: Setup) -> None:
    """The name of a header is the source's producer's, too."""
    name = "\x1b[2J"
    produce(setup.bootstrap, setup.topic, [Record(b"{}", headers=((name, b"1"),), partition=0)])
    assert "\x1b" not in setup.text("show", "0:0")


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


@pytest.fixture
def hasty() -> Iterator[Setup]:
    """Return a setup on brokers that abort a transaction as soon as its time is over."""
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
    with EmbeddedKafka(EmbeddedOptions(settings=settings)) as kafka:
        yield Setup(kafka, Topics(kafka.bootstrap_servers))


def slowed(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the brokers end a replay's transactions after 3 s, and let each record take so long."""
    produce_one = Replay._produce

    def slow(sending: Replay, message: Message, home: Home) -> None:
        time.sleep(seconds)
        produce_one(sending, message, home)

    patch.setattr("tailrace.admin.replay._TIMEOUT_MS", 3000)
    patch.setattr(Replay, "_produce", slow)


def test_replay_that_takes_longer_than_a_transaction_may_sends_each_record_once(
    hasty: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could never succeed in one transaction, however often it was repeated."""
    hasty.reject(*range(20))
    hasty.reject(*range(20, 30), partition=1)
    slowed(monkeypatch, 0.15)
    monkeypatch.setattr("tailrace.admin.replay._PART", 0.3)
    assert hasty.replay("0:3", "0:17")["replayed"] == 2
    assert hasty.replay("--all")["replayed"] == 28
    assert hasty.arrived() == sorted(b"value-%d" % number for number in range(30))
    assert hasty.replay("--all")["before"] == 30


def test_replay_of_few_records_among_many_is_not_ended_while_it_reads_the_others(
    hasty: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction was open until the topic's end, and until the next record to send, whatever lay between."""
    hasty.reject(*range(40))
    read = Target.every
    monkeypatch.setattr("tailrace.admin.replay._TIMEOUT_MS", 3000)
    monkeypatch.setattr("tailrace.admin.replay._PART", 0.3)

    def slow(target: Target) -> Iterator[Message]:
        for each in read(target):
            time.sleep(0.15)
            yield each

    monkeypatch.setattr(Target, "every", slow)
    assert hasty.replay("0:1")["replayed"] == 1
    assert hasty.replay("0:3", "0:38")["replayed"] == 2
    # Those between may be of other pipelines, which share the topic.
    monkeypatch.setattr(Target, "records", lambda target: (each for each in slow(target) if each.offset in (5, 36)))
    assert hasty.replay("0:5", "0:36")["replayed"] == 2
    assert hasty.arrived() == [b"value-1", b"value-3", b"value-36", b"value-38", b"value-5"]


def test_transaction_that_the_brokers_ended_is_not_taken_for_another_replay(
    hasty: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice was to wait for a replay that does not exist."""
    hasty.reject(*range(40))
    slowed(monkeypatch, 0.15)
    with pytest.raises(KafkaFailed, match=r"stayed open .* brokers end one after 3 s") as caught:
        hasty.replay("--all")
    assert caught.value.kept == "nothing was sent"
    assert hasty.arrived() == []


def test_commit_of_a_replay_that_arrives_in_its_next_transaction_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would commit records before their marks, and the repeated command would send them once more."""
    produce_one, held = Replay._produce, list[Any]()
    with proxied() as kafka:
        setup = Setup(kafka, Topics(kafka.bootstrap_servers))
        setup.bootstrap = kafka.proxied_servers
        setup.reject(*range(6))

        def late(sending: Replay, message: Message, home: Home) -> None:
            produce_one(sending, message, home)
            if message.offset == 1:  # the second transaction has begun
                sending._producer.flush(10)
                held[0].let_go()
                raise RuntimeError("the replay is killed")

        def held_back(sending: Replay) -> None:
            kafka.proxy.judge = nth(Api.END_TXN, Fault.HOLD, transaction=sending._name)
            commit(sending)
            held.append(kafka.proxy.one_held())

        commit = Replay._commit
        monkeypatch.setattr(Replay, "_commit", held_back)
        monkeypatch.setattr(Replay, "_produce", late)
        monkeypatch.setattr("tailrace.admin.replay._PART", 0.0)
        with pytest.raises(RuntimeError, match="the replay is killed"):
            setup.replay("--all")
        monkeypatch.undo()
        kafka.proxy.heal()
        assert setup.replay("--all")["before"] == 1
        assert setup.arrived() == [b"value-%d" % number for number in range(6)]


def check_overtaken(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay five records, each in a transaction, and expect that another replay takes over after two."""
    monkeypatch.setattr("tailrace.admin.replay._PART", 0.0)
    with pytest.raises(KafkaFailed, match="another replay has taken over") as caught:
        setup.replay("--all")
    assert caught.value.kept == "2 records were sent and are marked as replayed"
    assert setup.arrived() == [b"value-%d" % number for number in range(5)]


def test_replay_that_another_one_fences_says_so(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what it has sent by then; the other one does not send it again."""
    setup.reject(*range(5))
    others = [2]
    produce_one = Replay._produce

    def taken_over(sending: Replay, message: Message, home: Home) -> None:
        if message.offset in others:
            others.clear()
            assert setup.replay("--all")["replayed"] == 3
        produce_one(sending, message, home)

    monkeypatch.setattr(Replay, "_produce", taken_over)
    check_overtaken(setup, monkeypatch)


def test_replay_ends_once_another_one_has_sent_more_between_its_transactions(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a new epoch for each of them, and so would go on without having noticed the other one."""
    setup.reject(*range(5))
    others = [2]
    renew = Replay._renew

    def overtaken(sending: Replay, marked: Mapping[int, Marks]) -> None:
        if sending._marked in others:
            others.clear()
            assert setup.replay("--all")["replayed"] == 3
        renew(sending, marked)

    monkeypatch.setattr(Replay, "_renew", overtaken)
    check_overtaken(setup, monkeypatch)


def test_replay_keeps_the_marks_of_one_that_ran_while_it_listed_its_records(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one may have sent records that the list does not contain, of a partition that was empty too."""
    setup.reject(0, 1, 2)

    def listed(*given: Any) -> Selection:
        found = select(*given)
        monkeypatch.setattr("tailrace.cli.rejected.select", select)
        setup.reject(3, reason="late")
        setup.reject(4, 5, partition=1)
        setup.reject(6, partition=1, reason="late")
        assert setup.replay("--reason", "late")["replayed"] == 2
        return found

    monkeypatch.setattr("tailrace.cli.rejected.select", listed)
    assert setup.replay("0:1")["replayed"] == 1
    assert setup.replay("--all")["replayed"] == 4
    assert setup.arrived() == [b"value-%d" % number for number in range(7)]


def test_long_replay_commits_no_marks_that_are_too_long(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks of a part may be longer than those before and after the replay: they wait for more records."""
    setup.reject(*range(16), reason="other")
    monkeypatch.setattr("tailrace.admin.replay._METADATA", 20)
    monkeypatch.setattr("tailrace.admin.replay._PART", 0.0)
    assert setup.replay("0:10", "0:12", "0:14")["replayed"] == 3
    added = list[str | None]()

    def adding(producer: Producer, places: Sequence[TopicPartition], *more: Any) -> None:
        added.append(places[0].metadata)
        add_offsets(producer, places, *more)

    monkeypatch.setattr("tailrace.admin.replay.add_offsets", adding)
    assert setup.replay("0:1", "0:3", "0:11", "0:13")["replayed"] == 4
    assert added == ["1-1,3-3,10-12,14-14", "1-1,3-3,10-14"]
    assert setup.replay("--all")["replayed"] == 9
    assert setup.arrived() == sorted(b"value-%d" % number for number in range(16))


KILLED = """
import os, sys
from tailrace.admin.rejected import Target
from tailrace.admin.replay import Replay
from tailrace.admin import replay
from tailrace.cli.rejected import app

within = sys.argv.pop(1) == "within"
produce, commit, sent = Replay._produce, Replay._commit, []

def produced(self, message, home):
    produce(self, message, home)
    sent.append(home)
    if within and len(sent) == 3:
        self._producer.flush(30)
        os._exit(9)

def committed(self):
    commit(self)
    if not within and len(sent) == 2:
        os._exit(9)

replay._PART, Replay._produce, Replay._commit = 0.0, produced, committed
app()
"""


@pytest.mark.parametrize("when", ["between", "within"])
def test_replay_that_was_killed_is_completed_by_the_next_one(setup: Setup, when: str) -> None:
    """Two of its transactions were committed, and the third was open or not begun."""
    setup.reject(*range(5))
    line = ["replay", "--all", "--yes", "-t", setup.topic, "-b", setup.bootstrap]
    killed = subprocess.run([sys.executable, "-c", KILLED, when, *line], timeout=120, check=False)
    assert killed.returncode == 9
    result = setup.replay("--all")
    assert (result["replayed"], result["before"]) == (3, 2)
    assert setup.arrived() == [b"value-%d" % number for number in range(5)]


def test_records_that_expire_during_a_replay_are_an_error_that_says_what_was_sent(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person then knows that repeating it is right."""
    setup.reject(*range(4))
    monkeypatch.setattr("tailrace.admin.replay._PART", 0.0)
    outgoing = Selection.outgoing
    monkeypatch.setattr(Selection, "outgoing", lambda *given: itertools.islice(outgoing(*given), 3))
    with pytest.raises(KafkaFailed, match=r"4 records .* only 3 still exist") as caught:
        setup.replay("--all")
    assert caught.value.kept == "3 records were sent and are marked as replayed"
    monkeypatch.undo()
    assert setup.replay("--all")["replayed"] == 1
    assert setup.arrived() == [b"value-%d" % number for number in range(4)]


def test_record_without_its_source_needs_a_topic(setup: Setup) -> None:
    """It is counted and stays where it is until --to names a topic."""
    produce(setup.bootstrap, setup.topic, [rejected(0, None, pipeline=setup.pipeline, partition=0)])
    assert setup.replay("--all") == {"replayed": 0, "to": {}, "before": 0, "without_source": 1, "outputs": 0}
    assert "1 do not name their source, and need --to TOPIC" in setup.text("replay", "--all", "--yes")
    assert setup.replay("--all", "--to", setup.source)["replayed"] == 1


FANNED = """
import pyarrow as pa

def fanned(batches):
    for batch in batches:
        for value in batch.column("value").to_pylist():
            values = [value + b"-good", value + b"-early", value + b"-beyond"]
            times = pa.array([1, -1, 1], pa.timestamp("ms", "UTC"))
            partitions = pa.array([0, 0, 7], pa.int32())
            yield pa.RecordBatch.from_arrays(
                [pa.array(values), times, partitions, batch.column("kafka").take(pa.array([0, 0, 0]))],
                names=["value", "timestamp", "partition", "kafka"],
            )
"""


def test_output_that_was_rejected_does_not_go_to_the_source_topic(line: Callable[..., Line]) -> None:
    """Its value is none of that topic's; a rejected source record of the same replay goes back."""
    one = line(1)
    (one.folder / "fanned.py").write_text(FANNED)
    sections: dict[str, Any] = {"process": {"arrow": "fanned.py:fanned", "validate": {"filled": "value IS NOT NULL"}}}
    one.send([b"a", None])
    one.run(**sections)
    assert one.values() == [b"a-good"]
    assert one.rejected() == [b"", b"a-beyond", b"a-early"]
    file = one.folder / "pipeline.yaml"
    file.write_text(one.pipeline(**sections).model_dump_json(by_alias=True, exclude_unset=True))
    line_ = ["replay", str(file), "--all", "--yes"]
    done = CliRunner().invoke(app, line_, catch_exceptions=False)
    assert [each.value for each in consume(one.kafka, one.source)] == [b"a", None, None]
    assert "replayed: 1 records" in done.stdout
    assert "2 are outputs, which the source topic does not take" in done.stdout
    assert f"tailrace backfill {file}" in done.stdout
    again = CliRunner().invoke(app, [*line_, "--output", "json"], catch_exceptions=False)
    assert json.loads(again.stdout) == {"replayed": 0, "to": {}, "before": 1, "without_source": 0, "outputs": 2}


@pytest.mark.parametrize("stage", ["encode", "sink"])
def test_output_that_was_rejected_is_sent_where_a_person_says(setup: Setup, stage: str) -> None:
    """Its partition is that of its source record, and decides nothing in another topic or this one."""
    setup.reject(0, stage=stage)
    with_places = setup.replay("0:0")
    assert (with_places["replayed"], with_places["outputs"]) == (0, 1)
    assert setup.replay("--all", "--to", setup.source)["replayed"] == 1
    assert setup.arrived() == [b"value-0"]


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


def test_what_a_backfill_has_rejected_does_not_go_back_to_the_live_pipelines_source(setup: Setup) -> None:
    """The live pipeline would deliver it again, and the backfill's topic would not get it."""
    setup.pipeline = "live-backfill-0a1b2c3d"
    setup.reject(0)
    with pytest.raises(OptionRefused, match="is a backfill") as refused:
        setup.replay("--all")
    assert "tailrace backfill FILE --into TOPIC" in refused.value.then
    assert setup.arrived() == []
    assert setup.replay("--all", "--to", setup.source)["replayed"] == 1


def test_what_a_shadow_has_rejected_does_not_go_back_to_the_live_pipelines_source(setup: Setup) -> None:
    """The live pipeline may have delivered it: the shadow is what differs."""
    setup.reject(0)
    consumer = Consumer({"bootstrap.servers": setup.bootstrap, "group.id": f"tailrace.{setup.pipeline}.shadow"})
    consumer.commit(offsets=[TopicPartition(setup.source, 0, 5, "5")], asynchronous=False)
    consumer.close()
    with pytest.raises(OptionRefused, match="is a shadow"):
        setup.replay("--all")
    assert setup.arrived() == []


def test_record_is_replayed_by_its_place_though_the_topic_has_those_of_another_pipeline(setup: Setup) -> None:
    """Only the pipelines of what is to be sent count."""
    setup.reject(0)
    produce(setup.bootstrap, setup.topic, [rejected(1, setup.source, pipeline="other", partition=1)])
    assert setup.replay("1:0")["replayed"] == 1
