"""Bad input of every kind leads to a clear error with no data lost, or to the right continuation."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from support.pipelines import Bench, events_of, numbered
from support.registry import schema_registry
from tailrace import errors
from tailrace.config import Kafka
from tailrace.kafka.cluster import Cluster
from tailrace.testing import Record, consume, produce, wait_until

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]


@pytest.mark.takes(13)
def test_unreachable_broker_is_reported_before_spark_starts(bench: MakeBench) -> None:
    """The error names the address, and nothing was read."""
    with pytest.raises(errors.BrokerUnreachable, match=r"127\.0\.0\.1:1"):
        bench().run(kafka={"bootstrap.servers": "127.0.0.1:1"})


def test_unknown_topic_is_reported_with_the_closest_name(bench: MakeBench) -> None:
    """A typo does not create a topic."""
    one = bench()
    with pytest.raises(errors.TopicUnknown, match=f"the closest name is '{one.source}'"):
        one.run(source={"topics": [one.source + "x"]})
    with pytest.raises(errors.TopicUnknown, match=r"sink topic 'nowhere\.at\.all'"):
        one.run(sink={"topic": "nowhere.at.all"})


def test_schema_that_the_registry_refuses_is_reported_before_spark_starts(bench: MakeBench) -> None:
    """The error names the field that breaks the subject's level; not even the ledger's topic was made."""
    one = bench()
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    one.write("out.avsc", json.dumps({**schema, "fields": [*schema["fields"], {"name": "b", "type": "int"}]}))
    with schema_registry() as registry:
        registry.add(schema, f"{one.sink}-value")
        registry.refused.add(f"{one.sink}-value")
        sink = {"format": "avro", "schema": "out.avsc", "registry": {"url": registry.url}}
        with pytest.raises(errors.SchemaInvalid, match=r"`b` is in out\.avsc without a default") as refusal:
            one.run(sink=sink)
    assert refusal.value.kept == "nothing was read or written"
    assert one.pipeline().ledger.topic not in Cluster(Kafka(bootstrap_servers=one.kafka)).topics()


def test_pattern_that_matches_the_pipelines_own_topics_is_refused(bench: MakeBench) -> None:
    """The pipeline would read what it writes."""
    one = bench()
    with pytest.raises(errors.ConfigInvalid, match="which the pipeline writes to"):
        one.run(source={"topics": [], "pattern": f"{one.source}|{one.sink}"})


def test_pattern_reads_every_matching_topic(bench: MakeBench) -> None:
    """It also reads one that appears between two runs."""
    one = bench()
    first = one.topics("pat-a", 2)
    stem = first.rsplit("pat-a", 1)[0]
    pattern = f"{stem}.*|{first}" if stem else first
    produce(one.kafka, first, [Record(value) for value in numbered(0, 10)])
    one.run(source={"topics": [], "pattern": pattern})
    assert one.values() == numbered(0, 10)


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (None, errors.FunctionMissing, "f.py"),
        ("def g(frame):\n    return frame\n", errors.FunctionMissing, "f"),
        ("def f(frame):\n    raise ValueError('not today')\n", errors.FunctionInvalid, "not today"),
        ("def f(frame):\n    return 5\n", errors.FunctionInvalid, "int"),
        ("def f(frame):\n    return frame.select('nothing')\n", errors.FunctionInvalid, "nothing"),
        ("def f(frame):\n    return frame.selectExpr('1 AS value')\n", errors.SinkColumnsInvalid, "value"),
        ("def f(frame:\n", errors.FunctionMissing, r"f_\w+\.py"),
    ],
)
def test_missing_or_wrong_function_is_refused_before_a_record_is_read(
    bench: MakeBench, code: str | None, kind: type[errors.TailraceError], words: str
) -> None:
    """The file, name or column is missing, or the function raises, returns no frame or another schema."""
    one = bench()
    one.send(numbered(0, 3))
    if code is not None:
        one.write("f.py", code)
    with pytest.raises(kind, match=words):
        one.run(process={"function": "f.py:f"})
    assert one.values() == []


@pytest.mark.parametrize(
    "shuffle",
    [
        "repartition(4)",
        "repartitionByRange(2, 'value')",
        "repartition(3, F.rand())",
        "withColumn('r', F.rand()).repartition(3, 'r').drop('r')",
        "withColumn('r', F.current_timestamp()).repartition(3, 'r').drop('r')",
    ],
)
def test_shuffle_that_cannot_be_repeated_is_refused(bench: MakeBench, shuffle: str) -> None:
    """Round robin, by a sample, or random: a replay would distribute the records differently."""
    one = bench()
    one.write("deal.py", f"from pyspark.sql import functions as F\n\ndef deal(frame):\n    return frame.{shuffle}\n")
    with pytest.raises(errors.FunctionInvalid, match="cannot be cut the same way again"):
        one.run(process={"function": "deal.py:deal"})


def test_missing_topic_and_topic_column_of_the_wrong_type_are_refused(bench: MakeBench) -> None:
    """They are refused before anything runs."""
    one = bench()
    one.write("typed.py", "def typed(frame):\n    return frame.selectExpr('value', '1 AS topic')\n")
    one.write("plain.py", "def plain(frame):\n    return frame.select('value')\n")
    with pytest.raises(errors.SinkColumnsInvalid, match="topic"):
        one.run(process={"function": "typed.py:typed"}, sink={"topic": None})
    with pytest.raises(errors.SinkColumnsInvalid, match="topic"):
        one.run(process={"function": "plain.py:plain"}, sink={"topic": None})


def test_row_with_a_null_topic_is_rejected_with_its_reason(bench: MakeBench) -> None:
    """The other rows of the batch are delivered, each to its own topic."""
    one = bench()
    other = one.topics("other")
    one.write(
        "route.py",
        f"""
        from pyspark.sql import functions as F

        def route(frame):
            text = F.col("value").cast("string")
            topic = F.when(text.endswith("1"), {one.sink!r}).when(text.endswith("2"), {other!r})
            return frame.select("value", topic.alias("topic"))
        """,
    )
    one.send(numbered(0, 10))
    one.run(process={"function": "route.py:route"}, sink={"topic": None})
    assert one.values() == [b"000001"]
    assert one.values(other) == [b"000002"]
    rejected = one.rejected()
    assert len(rejected) == 8
    assert {headers["tailrace.reason"] for _, headers in rejected} == {b"no topic"}


ROUTE = """
from pyspark.sql import functions as F

def route(frame):
    topic = F.when(F.col("value").cast("string").endswith("1"), "no-such-topic").otherwise({sink!r})
    return frame.select("value", topic.alias("topic"))
"""


@pytest.mark.takes(6)
def test_topic_that_does_not_exist_is_named_at_once(bench: MakeBench) -> None:
    """It took minutes of retries, and the error named no topic; with `sink.topics`, such rows are rejected."""
    one = bench()
    one.write("route.py", ROUTE.format(sink=one.sink))
    one.send(numbered(0, 10))
    with pytest.raises(errors.TopicUnknown, match=r"names 'no-such-topic', which does not exist") as caught:
        one.run(process={"function": "route.py:route"}, sink={"topic": None})
    assert "sink.topics" in caught.value.then
    one.settle()
    one.run(process={"function": "route.py:route"}, sink={"topic": None, "topics": [one.sink]})
    assert one.values() == [value for value in numbered(0, 10) if value != b"000001"]
    [(value, headers)] = one.rejected()
    assert (value, headers["tailrace.reason"]) == (b"000001", b"not among sink.topics")
    assert headers["tailrace.sink.topic"] == b"no-such-topic"


def test_undecodable_record_is_rejected_unchanged_with_its_reason(bench: MakeBench) -> None:
    """It keeps its bytes, with its place, time and pipeline; a failed condition is a reason too."""
    one = bench(partitions=2)
    one.send([b'{"id": 1}', b"{broken", b'{"id": -5}', None], partition=1, key=b"k")
    one.run(
        source={"format": "json", "schema": "id long"},
        process={"validate": {"id is positive": "id > 0"}},
        sink={"format": "json"},
    )
    assert one.values() == [b'{"id":1}']
    found = {headers["tailrace.reason"]: (value, headers) for value, headers in one.rejected()}
    assert {reason: value for reason, (value, _) in found.items()} == {
        b"not json": b"{broken",
        b"id is positive": b'{"id": -5}',
        b"no value": None,
    }
    headers = found[b"not json"][1]
    assert headers["tailrace.source.topic"] == one.source.encode()
    assert (headers["tailrace.source.partition"], headers["tailrace.source.offset"]) == (b"1", b"1")
    assert headers["tailrace.pipeline"] == one.name.encode()
    assert headers["tailrace.batch"] == b"0"
    assert int(headers["tailrace.at"] or 0) > 1_600_000_000_000


def test_function_that_raises_stops_the_pipeline_and_loses_nothing(bench: MakeBench) -> None:
    """The message has the user's own line; once fixed, the pipeline continues with the same batch."""
    one = bench()
    one.send([b"1", b"x", b"3"])
    text = """
        from pyspark.sql import functions as F
        from pyspark.sql.types import StringType

        def number(frame):
            def parse(value):
                return str({expression})
            return frame.select(F.udf(parse, StringType())("value").alias("value"))
    """
    one.write("number.py", text.format(expression="int(value)"))
    with pytest.raises(errors.FunctionFailed, match=r"invalid literal for int\(\).*number_\w+\.py:\d+ in parse"):
        one.run(process={"function": "number.py:number"})
    assert one.values() == []
    one.write("mended.py", text.format(expression="bytes(value).decode()"))
    one.run(process={"function": "mended.py:number"})
    assert one.values() == [b"1", b"3", b"x"]


def test_record_over_the_limit_stops_the_pipeline_until_the_limit_is_raised(bench: MakeBench) -> None:
    """The record has 5 MB, the producer allows 1 MB: nothing of the batch is lost, and a higher limit delivers it."""
    one = bench()
    big = one.topics("big", 1, **{"max.message.bytes": 8_000_000})
    large = b"x" * 5_000_000
    admin_in = one.topics("large-in", 1, **{"max.message.bytes": 8_000_000})
    _produce(one.kafka, admin_in, [b"small", large])
    sections: dict[str, Any] = {"source": {"topics": [admin_in]}, "sink": {"topic": big}}
    with pytest.raises(errors.RecordTooLarge, match="5000000 bytes"):
        one.run(**sections)
    assert one.values(big) == []
    sections["sink"]["options"] = {"message.max.bytes": 8_000_000}
    one.run(**sections)
    assert one.values(big) == [b"small", large]


def test_record_that_the_topic_refuses_stops_the_pipeline(bench: MakeBench) -> None:
    """The broker's own limit is reported like the producer's."""
    one = bench()
    tight = one.topics("tight", 1, **{"max.message.bytes": 1000})
    one.send([b"small", b"\x00\x01\x02" + bytes(range(256)) * 40])
    with pytest.raises(errors.RecordTooLarge, match=tight):
        one.run(sink={"topic": tight, "options": {"compression.type": "none"}})
    assert one.values(tight) == []


def _produce(bootstrap: str, topic: str, values: list[bytes | None], partition: int = 0) -> None:
    """Use a separate producer, which accepts large records and has no stale metadata of the topic."""
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 8_000_000})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0


@lru_cache(maxsize=1)
def _client(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})  # a client that is garbage-collected ends its requests


def _admin(one: Bench) -> AdminClient:
    return _client(one.kafka)


def _forget(one: Bench, before: int) -> None:
    """Delete the records of the source topic's only partition before an offset, as retention does."""
    place = TopicPartition(one.source, 0, before)
    _admin(one).delete_records([place])[place].result(timeout=30)


def test_offsets_out_of_range_are_reported_and_never_skipped_silently(bench: MakeBench) -> None:
    """Retention has removed the next records: the pipeline stops and names their offsets."""
    one = bench()
    one.send(numbered(0, 10))
    one.run()
    one.send(numbered(10, 30))
    _forget(one, 20)
    with pytest.raises(errors.OffsetsOutOfRange, match="the next offset to read is 10, and the topic holds 20 to 30"):
        one.run()
    assert one.values() == numbered(0, 10)


def test_pipeline_with_reset_reports_the_gap_and_continues(bench: MakeBench) -> None:
    """It continues at the earliest remaining offset, as auto.offset.reset says."""
    one = bench()
    one.send(numbered(0, 10))
    one.run()
    one.send(numbered(10, 30))
    _forget(one, 20)
    events = one.run(source={"on_data_loss": "reset"})
    assert [each["what"] for each in events_of(events, "reset")] == [
        f"{one.source}-0: the next offset to read is 10, and the topic holds 20 to 30; continuing at 20"
    ]
    assert one.values() == numbered(0, 10) + numbered(20, 30)
    one.send(numbered(30, 33))
    one.run()
    assert one.values() == numbered(0, 10) + numbered(20, 33)


def test_topic_that_grows_while_the_pipeline_runs_is_read_completely(bench: MakeBench) -> None:
    """The new partition is read too, from its beginning."""
    one = bench()
    one.send(numbered(0, 10))

    def enough(events: list[dict[str, Any]]) -> bool:
        written = events_of(events, "written")
        if events[-1]["event"] == "written" and len(written) == 1:
            _admin(one).create_partitions([NewPartitions(one.source, 2)])[one.source].result(timeout=30)
            wait_until(lambda: _grown(one), "the new partition")
            _produce(one.kafka, one.source, numbered(10, 20), partition=1)
        return bool(sum(each["in"] for each in written) >= 20)

    options = {"source": {"options": {"request.timeout.ms": "20000"}}}
    one.run_until(one.pipeline(**options), enough)
    assert one.values() == numbered(0, 20)


def _grown(one: Bench) -> bool:
    partitions = _admin(one).list_topics(one.source, timeout=10).topics[one.source].partitions
    return bool(len(partitions) == 2)


def test_topic_deleted_while_the_pipeline_is_down_is_reported(bench: MakeBench) -> None:
    """If it was recreated, its offsets are out of range; if not, it is unknown."""
    one = bench()
    one.send(numbered(0, 10))
    one.run()
    _admin(one).delete_topics([one.source])[one.source].result(timeout=30)
    wait_until(lambda: one.source not in _admin(one).list_topics(timeout=10).topics, "the deletion of the topic")
    with pytest.raises(errors.TopicUnknown, match=one.source):
        one.run()


def test_topic_deleted_while_the_pipeline_runs_stops_it(bench: MakeBench) -> None:
    """What was delivered stays, and the error names the topic."""
    one = bench(partitions=2)
    one.send(numbered(0, 10), partition=0)

    def enough(events: list[dict[str, Any]]) -> bool:
        if events[-1]["event"] == "written" and len(events_of(events, "written")) == 1:
            _admin(one).delete_topics([one.source])[one.source].result(timeout=30)
        return False

    with pytest.raises(errors.KafkaError) as caught:
        one.run_until(one.pipeline(), enough)
    assert one.source in str(caught.value)
    assert isinstance(caught.value, errors.SourceChanged | errors.TopicUnknown)
    assert one.values() == numbered(0, 10)


def test_stateful_pipeline_on_the_ledger_is_refused_before_its_first_commit(bench: MakeBench) -> None:
    """The ledger holds no state; the message names the setting."""
    one = bench()
    one.send(numbered(0, 10))
    one.write(
        "count.py",
        """
        def count(frame):
            return frame.groupBy("value").count().selectExpr("CAST(count AS STRING) AS value")
        """,
    )
    with pytest.raises(errors.ConfigInvalid, match=r"stateful \(it aggregates\)"):
        one.run(process={"function": "count.py:count"})
    assert one.values() == []
    assert consume(one.kafka, f"{one.name}.ledger") == []
