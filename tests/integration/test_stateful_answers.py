"""What Spark is told of a stateful pipeline's topics: by one broker, which may lag or be cut off from the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame

from support.pipelines import Bench, events_of, numbered
from support.threads import recreated
from tailrace import errors
from tailrace.config import Pipeline
from tailrace.kafka import source
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.topics import agreed_ids
from tailrace.progress.ledger import Ledger
from tailrace.progress.stream_plan import offsets_of, replace_offsets
from tailrace.spark_stream import stream
from tailrace.spark_stream.checkpoint import Checkpoint
from tailrace.spark_stream.frame import frame
from tailrace.spark_stream.runner import Runner
from tailrace.spark_stream.source_topics import SourceTopics
from tailrace.testing import Record, produce

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("soon"), pytest.mark.takes(15)]

MakeBench = Callable[..., Bench]


@pytest.fixture
def one(bench: MakeBench) -> Bench:
    """Fill a source partition with ten records."""
    made = bench()
    made.send(numbered(0, 10))
    return made


def sections(one: Bench, loss: str = "stop", **source: Any) -> dict[str, Any]:
    """Return the sections of a pipeline with a checkpoint, which does not notice records that it has seen."""
    return {
        "source": {"partitions": None, "on_data_loss": loss, **source},
        "checkpoint": str(one.folder / "state"),
    }


def send(one: Bench, topic: str, start: int, end: int) -> None:
    """Write records to another topic."""
    produce(one.kafka, topic, [Record(value) for value in numbered(start, end)])


def replaced(file: Path, text: str) -> None:
    """Write a file of a checkpoint on a disk, without the checksum that Hadoop keeps of the old text."""
    file.write_text(text)
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize("pattern", ["none|{}", "(?x) none | {}  # a comment"])
def test_pattern_of_a_stateful_pipeline_reads_no_topic_whose_name_only_contains_it(one: Bench, pattern: str) -> None:
    """Such a topic may be the pipeline's own, and neither its offsets nor its id would be known."""
    made = sections(one, topics=[], pattern=pattern.format(one.source))
    send(one, one.topics(f"x-{one.source}"), 90, 95)
    one.run(**made)
    send(one, one.topics(f"y-{one.source}"), 95, 99)
    one.send(numbered(10, 12))
    one.run(**made)
    assert one.values() == numbered(0, 12)


@pytest.mark.parametrize("loss", ["stop", "reset"])
def test_batch_of_an_answer_that_lacked_a_topic_is_planned_again(one: Bench, loss: str) -> None:
    """Spark has written it down, found that it lacks what was read, and would find that at each start."""
    other = one.topics("other")
    made = sections(one, loss, topics=[one.source, other])
    send(one, other, 50, 55)
    one.run(**made)
    log = one.folder / "state" / "offsets"
    version, metadata, ends = (log / "0").read_text().splitlines()
    assert offsets_of("\n".join([version, metadata, ends])).keys() == {(one.source, 0), (other, 0)}
    replaced(log / "1", "\n".join([version, metadata, f'{{"{one.source}":{{"0":12}}}}']))
    one.send(numbered(10, 12))
    send(one, other, 55, 57)
    events = one.run(**made)
    assert events_of(events, "reset") == []
    assert one.values() == [*numbered(0, 12), *numbered(50, 57)]


def test_end_that_lies_before_what_was_read_is_not_believed(one: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is cut off has fewer records; Spark would read those that follow again, and the state too."""
    made = sections(one, "reset")
    one.run(**made)
    one.send(numbered(10, 12))
    real, seen = Checkpoint.entry, list[int]()

    def entry(self: Checkpoint, batch: Any) -> str:
        seen.append(batch)
        found = real(self, batch)
        return found if len(seen) > 1 else replace_offsets(found, {(one.source, 0): 5})

    monkeypatch.setattr(Checkpoint, "entry", entry)
    events = one.run(**made)
    assert seen == [1, 1]
    assert events_of(events, "reset") == []
    one.send(numbered(12, 14))
    one.run(**made)
    assert one.values() == numbered(0, 14)


def test_topic_that_does_not_begin_at_0_is_added_and_read_from_its_beginning(one: Bench) -> None:
    """Its first records have expired before; Spark takes that for a loss."""
    one.run(**sections(one))
    other = one.topics("other")
    send(one, other, 50, 60)
    admin = AdminClient({"bootstrap.servers": one.kafka})
    [done] = admin.delete_records([TopicPartition(other, 0, 4)]).values()
    done.result(30)
    both = sections(one, topics=[one.source, other])
    events = one.run(**both)
    assert events_of(events, "reset") == []
    one.send(numbered(10, 12))
    one.run(**both)
    assert one.values() == [*numbered(0, 12), *numbered(54, 60)]


def test_note_of_a_batch_that_comes_late_does_not_start_the_next_one_in_a_recreated_topic(
    one: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that was suspended notes the batch after this start has looked; the offsets are still the old ones."""
    other = one.topics("other")
    made = {loss: sections(one, loss, topics=[one.source, other]) for loss in ("stop", "reset")}
    send(one, other, 50, 60)
    one.run(**made["stop"])
    one.send(numbered(10, 12))
    with monkeypatch.context() as patch:
        patch.setattr(Runner, "settle", lambda self: False)  # the ledger does not know that it is done
        one.run(**made["stop"])
    notes = one.folder / "state" / "commits"
    text = (notes / "1").read_text()
    for each in (notes / "1", notes / ".1.crc"):
        each.unlink()
    recreated(one, other)
    send(one, other, 70, 90)
    real = stream._fill

    def late(rows: DataFrame, pipeline: Pipeline) -> None:
        real(rows, pipeline)
        replaced(notes / "1", text)

    with monkeypatch.context() as patch:
        patch.setattr(stream, "_fill", late)
        with pytest.raises(errors.PlanOfAnother, match="which is finished now"):
            one.run(**made["reset"])
    one.run(**made["reset"])
    assert one.values() == [*numbered(0, 12), *numbered(50, 60), *numbered(70, 90)]


@pytest.mark.parametrize(("silent", "refusal"), [(False, errors.DriverFenced), (True, errors.KafkaFailed)])
def test_starting_driver_that_is_overtaken_removes_nothing_of_the_newer_one(
    one: Bench, monkeypatch: pytest.MonkeyPatch, refusal: type[errors.TailraceError], *, silent: bool
) -> None:
    """It was suspended after it had read the ledger, and the newer one has planned and delivered a batch since.

    The brokers say so, or are away when it asks.
    """
    made = sections(one)
    one.run(**made)
    one.send(numbered(10, 12))

    def suspended(*given: Any) -> Any:
        monkeypatch.setattr(stream, "frame", frame)
        one.run(**made)
        if silent:
            monkeypatch.setattr("tailrace.progress.ledger.lost_id", lambda *given, **options: None)
        return frame(*given)

    monkeypatch.setattr(stream, "frame", suspended)
    with pytest.raises(refusal):
        one.run(**made)
    monkeypatch.undo()
    one.send(numbered(12, 14))
    one.run(**made)
    assert one.values() == numbered(0, 14)


@pytest.mark.parametrize("stateful", [False, True])
def test_beginning_is_recorded_with_the_ids_on_which_the_brokers_agree(
    one: Bench, monkeypatch: pytest.MonkeyPatch, *, stateful: bool
) -> None:
    """A broker that lags does not know the topic yet. Without its id, a recreation would go unnoticed."""
    made: dict[str, Any] = {"source": {"auto.offset.reset": "latest"}}
    if stateful:
        made = sections(one, **made["source"])
    with monkeypatch.context() as patched:
        patched.setattr(source, "ids", lambda *given: {})
        one.run(**made)
    with Ledger.of(one.pipeline(**made)) as ledger:
        plan = ledger.latest()
    assert plan is not None
    assert plan.topics == agreed_ids(Cluster(one.pipeline().kafka), [one.source])


@pytest.mark.parametrize(("told", "kind"), [("none", None), ("a former one", None), ("none", "for long")])
def test_topic_whose_id_a_broker_does_not_know_yet_is_planned_with_the_right_one(
    one: Bench, monkeypatch: pytest.MonkeyPatch, told: str, kind: str | None
) -> None:
    """It was created again a moment ago. Without its id, or with another one, the next start would mistake it."""
    made, asked = sections(one), list[str]()
    first = {} if told == "none" else {one.source: "a-former-topic-id-of-22"}

    def agreed(cluster: Cluster, topics: Any) -> dict[str, str]:
        asked.extend(topics)
        return {} if kind or len(asked) < 3 else agreed_ids(cluster, topics)

    with monkeypatch.context() as patched:
        patched.setattr(source, "ids", lambda *given: first)
        patched.setattr(source, "agreed_ids", agreed)
        if first:  # where the pipeline begins may be meant for the former topic
            patched.setattr(SourceTopics, "look", lambda topics: None)
            with pytest.raises(errors.PlanOfAnother, match="start the pipeline again"):
                one.run(**made)
        elif kind:
            with pytest.raises(errors.BrokerUnreachable, match=f"do not agree on the id of {one.source}"):
                SourceTopics(one.pipeline(**made), Cluster(one.pipeline().kafka), {}).learn([one.source])
        else:
            one.run(**made)
    one.send(numbered(10, 12))
    one.run(**made)
    assert events_of(one.events, "reset") == []
    assert one.values() == numbered(0, 12)


def test_topic_that_was_given_up_and_comes_back_is_planned_as_the_one_that_it_is_now(
    one: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plans of this run knew a topic of its name that was deleted."""
    cluster = Cluster(one.pipeline().kafka)
    with monkeypatch.context() as patched:
        patched.setattr(source, "ids", lambda *given: {})  # it does not exist at the start
        topics = SourceTopics(one.pipeline(**sections(one, "reset")), cluster, {one.source: "a-former-topic-id-of-22"})
    topics.learn([one.source], read=[])
    assert topics.of([(one.source, 0)]) == agreed_ids(cluster, [one.source])


# Fails for one value once the sink has records of other parts, while the file `broken` exists.
FUNCTION = """
    import time
    from pathlib import Path
    from confluent_kafka import Consumer, TopicPartition
    from pyspark.sql import functions as F
    from pyspark.sql.types import BinaryType

    def wait_for_another_part():
        consumer = Consumer({{"bootstrap.servers": {kafka!r}, "group.id": "watch"}})
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            there = consumer.list_topics({sink!r}, timeout=10).topics[{sink!r}].partitions
            if any(consumer.get_watermark_offsets(TopicPartition({sink!r}, each), timeout=10)[1] for each in there):
                break
            time.sleep(0.1)
        consumer.close()

    def first(frame):
        def check(value):
            if value == b"000004" and Path({folder!r}, "broken").exists():
                wait_for_another_part()
                raise ValueError("the fault of the test")
            return value
        return frame.dropDuplicates(["value"]).select(F.udf(check, BinaryType())("value").alias("value"))
"""


def test_open_batch_is_finished_as_it_was_planned_whatever_the_checkpoint_says(one: Bench) -> None:
    """A driver that was overtaken has written another end; the parts that are delivered lack what is before it."""
    one.write("keep.py", FUNCTION.format(folder=str(one.folder), kafka=one.kafka, sink=one.sink))
    made = sections(one) | {"process": {"function": "keep.py:first"}}
    one.fail_in_part(**made)
    assert one.values()
    one.send(numbered(10, 30))
    entry = one.folder / "state" / "offsets" / "0"
    replaced(entry, replace_offsets(entry.read_text(), {(one.source, 0): 30}))
    one.run(**made)
    assert one.values() == numbered(0, 30)
