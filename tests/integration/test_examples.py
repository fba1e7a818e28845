"""The pipeline of each example: its output equals what its `expected` returns."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from tailrace.config import Kafka, file
from tailrace.demo.example import Example, example, load
from tailrace.demo.feed import create_topics, feed, kafka_at
from tailrace.demo.proof import compare, source_of
from tailrace.kafka.reader import read
from tailrace.startup import run as startup
from tailrace.testing.embedded import EmbeddedKafka

pytestmark = pytest.mark.integration


def run(chosen: Example, bootstrap: str, spark: SparkSession, **more: str) -> None:
    """Run the example's pipeline over all existing records."""
    with patch.dict(os.environ, {"TAILRACE_KAFKA__BOOTSTRAP_SERVERS": bootstrap, **more}):
        loaded = file.load(chosen.pipeline)
    startup.run(loaded.pipeline, loaded.folder, batch=True, spark=spark)


def prove(chosen: Example, kafka: Kafka, source: str, sinks: tuple[str, ...], rejected: str) -> None:
    """Compare the example's topics with what its `expected` returns; neither side may be empty."""
    went_in = list(read(kafka, source))
    expected = chosen.expected(went_in)
    assert expected.outputs
    assert expected.rejected
    outputs = Counter(chosen.identity(record) for sink in sinks for record in read(kafka, sink))
    refused = Counter(source_of(record) for record in read(kafka, rejected))
    verdict = compare(len(went_in), expected, outputs, refused)
    assert verdict.holds, f"{verdict.line()}: {verdict.wrong}"


@pytest.mark.takes(15)
def test_tweets_become_their_hashtags(tailrace_kafka: EmbeddedKafka, spark: SparkSession) -> None:
    """Every hashtag comes out once, and records that are no tweets are rejected with their place."""
    chosen, bootstrap = example("tweets"), tailrace_kafka.bootstrap_servers
    generator = load(chosen.generator)
    create_topics(bootstrap, generator.TOPICS)
    assert generator.generate(bootstrap, count=2000) == 2000
    run(chosen, bootstrap, spark)
    prove(chosen, kafka_at(bootstrap), "tweets", ("hashtags",), "tweets.rejected")


def test_hashtag_is_encoded_with_its_avro_schema(tailrace_kafka: EmbeddedKafka, spark: SparkSession) -> None:
    """The fields of an output are those of its tweet, the hashtag in lower case."""
    import io

    import fastavro

    chosen, bootstrap = example("tweets"), tailrace_kafka.bootstrap_servers
    generator = load(chosen.generator)
    create_topics(bootstrap, generator.TOPICS)
    tweet = {
        "id": 10**9,
        "user": "ann",
        "text": "",
        "lang": "en",
        "created_at": 1_767_225_600_123,
        "hashtags": ["CaFé"],
    }
    feed(iter([generator.Message(b"ann", generator.encode(tweet))]), bootstrap, "tweets", count=1)
    run(chosen, bootstrap, spark)
    schema = fastavro.schema.load_schema(str(chosen.folder / "hashtag.avsc"))
    ours = [each.value or b"" for each in read(kafka_at(bootstrap), "hashtags") if each.key == b"1000000000#0"]
    assert len(ours) == 1
    found = fastavro.schemaless_reader(io.BytesIO(ours[0]), schema, None)
    assert isinstance(found, dict)
    at = found.pop("created_at")
    assert found == {"tag": "café", "tweet_id": 10**9, "position": 0, "user": "ann"}
    assert at.timestamp() == 1_767_225_600.123


def test_rich_events_go_to_two_topics(tailrace_kafka: EmbeddedKafka, spark: SparkSession) -> None:
    """Each event goes to the topic for its length, with its counts; invalid and empty ones are rejected."""
    chosen, bootstrap = example("rich-events"), tailrace_kafka.bootstrap_servers
    generator = load(chosen.generator)
    create_topics(bootstrap, generator.TOPICS)
    assert generator.generate(bootstrap, count=2000) == 2000
    run(chosen, bootstrap, spark)
    sinks = ("rich-events.brief", "rich-events.long")
    prove(chosen, kafka_at(bootstrap), "rich-events", sinks, "rich-events.rejected")


@pytest.mark.slow
def test_windowed_counts_survive_a_restart(tailrace_kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path) -> None:
    """Windows that span two runs count all their events, because the state is resumed."""
    chosen, bootstrap = example("windowed-counts"), tailrace_kafka.bootstrap_servers
    generator = load(chosen.generator)
    create_topics(bootstrap, generator.TOPICS)
    messages = generator.messages(0)
    for count in (1100, 1500):
        feed(itertools.islice(messages, count), bootstrap, "words", count=count)
        run(chosen, bootstrap, spark, TAILRACE_CHECKPOINT=f"file://{tmp_path}/state")
    prove(chosen, kafka_at(bootstrap), "words", ("word-counts",), "windowed-counts.rejected")
