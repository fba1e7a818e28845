"""Previews of records in Kafka: which are chosen, that nothing is written, and that a run writes the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

import tailrace
from support.pipelines import Bench
from tailrace.config import Pipeline
from tailrace.errors import OptionRefused
from tailrace.previews.model import Preview
from tailrace.testing import Record, Topics, consume, produce
from tailrace.testing.embedded import EmbeddedKafka

pytestmark = pytest.mark.integration

BENCHES = Callable[..., Bench]
FUNCTIONS = """
from pyspark.sql import functions as F

def doubled(records):
    @F.udf("binary")
    def twice(value):
        if value == b"13":
            raise ValueError("unlucky")
        return value + value
    chosen = records.where("value != '4'")
    return chosen.select(F.col("kafka.key").alias("key"), F.explode(F.array(twice("value"), "value")).alias("value"))

def mixed(records):
    return records.repartition(2, "value").select("value")
"""


def values(found: Preview) -> list[bytes | None]:
    """Return the values of the records that a preview chose."""
    return [each.source.value for each in found.outcomes]


def world(kafka: EmbeddedKafka) -> tuple[set[str], dict[str, int], set[str]]:
    """Return all topics, the end of each one's first partition, and all groups."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    # The broker creates its own topic of offsets when a client first asks for a group's coordinator.
    topics = set(admin.list_topics(timeout=10).topics) - {"__consumer_offsets"}
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = admin.list_offsets({TopicPartition(topic, 0): latest for topic in topics})
    ends = {place.topic: result.result(10).offset for place, result in asked.items()}
    return topics, ends, {each.group_id for each in admin.list_consumer_groups().result(10).valid}


def test_preview_of_topics_chooses_records_and_writes_nothing(
    tailrace_kafka: EmbeddedKafka, tailrace_topics: Topics, tmp_path: Path
) -> None:
    """Transaction markers take offsets, and an open transaction hides what follows it."""
    source, sink = tailrace_topics("in", partitions=2), tailrace_topics("out")
    servers = tailrace_kafka.bootstrap_servers
    settings = {"bootstrap.servers": servers, "transactional.id": source}
    producer = Producer(settings)
    producer.init_transactions(30)
    for number in range(10):  # each in a transaction of its own, so that every second offset is a marker
        producer.begin_transaction()
        producer.produce(source, b"%d" % number, partition=number % 2, timestamp=1_000_000 + number)
        producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce(source, b"open", partition=0)
    producer.flush(30)
    pipeline = Pipeline.model_validate(
        {
            "pipeline": source,
            "kafka": {"bootstrap.servers": servers},
            "source": {"topics": [source]},
            "sink": {"topic": sink, "format": "raw"},
        }
    )
    before = world(tailrace_kafka)

    def preview(start: str, records: int = 4) -> list[bytes | None]:
        return values(tailrace.preview(pipeline, start=start, records=records, folder=tmp_path))

    assert preview("newest") == [b"6", b"7", b"8", b"9"]
    assert preview("oldest") == [b"0", b"1", b"2", b"3"]
    assert preview("oldest", 100) == [b"%d" % number for number in range(10)]
    assert preview(f"{source}:1:4") == [b"5", b"7", b"9"]
    assert preview("1970-01-01T00:16:40.007") == [b"7", b"8", b"9"]
    with pytest.raises(OptionRefused, match="it holds 0 to 10"):
        preview(f"{source}:1:10")
    found = tailrace.preview(pipeline, records=2, folder=tmp_path)
    assert [each.value for _, each in found.all_written] == [b"8", b"9"]
    assert world(tailrace_kafka) == before
    producer.abort_transaction(30)


def test_preview_with_spark_shows_what_a_run_writes(bench: BENCHES) -> None:
    """Each record becomes two, one is dropped, one is too long, and at one the function raises."""
    made = bench()
    made.write("functions.py", FUNCTIONS)
    pipeline = made.pipeline(
        source={"format": "raw"},
        process={
            "function": "functions.py:doubled",
            "on_error": "reject",
            "validate": {"short": "length(value) < 3"},
        },
    )
    given = (b"1", b"4", b"555", b"7", b"13")
    produce(made.kafka, made.source, [Record(each, key=b"k", timestamp=number) for number, each in enumerate(given, 1)])
    found = tailrace.preview(pipeline, folder=made.folder, spark=made.spark)
    assert not found.unmatched
    assert [len(each.written) for each in found.outcomes[:4]] == [2, 0, 0, 2]
    assert [each.reason for each in found.outcomes[2].rejected] == ["short"]
    made.run(pipeline)
    written = Counter((each.key, each.value) for each in consume(made.kafka, made.sink))
    assert written == Counter((each.key, each.value) for _, each in found.all_written)
    rejected = [dict(each.headers)["tailrace.reason"] for each in consume(made.kafka, pipeline.rejected_topic)]
    assert Counter(rejected) == Counter(each.reason.encode() for _, each in found.all_rejected)


def test_preview_with_spark_names_the_record_that_would_stop_the_pipeline(bench: BENCHES) -> None:
    """The others are shown all the same."""
    made = bench()
    made.write("functions.py", FUNCTIONS)
    samples = made.folder / "samples.txt"
    samples.write_text("1\n13\n7\n")
    pipeline = made.pipeline(process={"function": "functions.py:doubled"})
    found = tailrace.preview(pipeline, start=samples, folder=made.folder, spark=made.spark)
    assert [each.source.value for each in found.raised] == [b"13"]
    assert "ValueError: unlucky" in (found.raised[0].raised or "")
    assert [each.value for _, each in found.all_written] == [b"11", b"1", b"77", b"7"]


def test_outputs_behind_a_shuffle_are_not_matched(bench: BENCHES) -> None:
    """Rejected records name their source, which a shuffle does not change."""
    made = bench()
    made.write("functions.py", FUNCTIONS)
    samples = made.folder / "samples.txt"
    samples.write_text("1\n555\n7\n")
    process = {"function": "functions.py:mixed", "validate": {"short": "length(value) < 3"}}
    found = tailrace.preview(made.pipeline(process=process), start=samples, folder=made.folder, spark=made.spark)
    assert "shuffle" in found.unmatched
    assert [each.reason for each in found.outcomes[1].rejected] == ["short"]
    assert {each.value for place, each in found.all_written if place is None} == {b"1", b"7"}
