"""What becomes of rows whose partition or timestamp the sink topic does not take."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
)

from support.header_names import produce_named
from support.threads import Line
from tailrace import errors
from tailrace.testing import Record, consume, produce, wait_until

pytestmark = pytest.mark.integration

MakeLine = Callable[..., Line]

PLACED = """
import pyarrow as pa

def placed(batches):
    for batch in batches:
        numbers = pa.array([int(value) for value in batch.column("value").to_pylist()], pa.int32())
        yield pa.RecordBatch.from_arrays([batch.column("value"), numbers], names=["value", "partition"])
"""


def placed(one: Line) -> Mapping[str, Any]:
    """Return the sections of a pipeline whose function takes each value for the number of a partition."""
    (one.folder / "placed.py").write_text(PLACED)
    return {"process": {"arrow": "placed.py:placed"}}


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_row_whose_partition_the_topic_lacks_is_rejected(line: MakeLine, delivery: str) -> None:
    """It stopped every start, with the advice to create the topic; the other rows of its batch come out."""
    one = line(1)
    one.send([b"0", b"7", b"0", b"1"])
    one.run(**placed(one), sink={"delivery": delivery})
    assert one.values() == [b"0", b"0"]
    found = {each.value: dict(each.headers) for each in consume(one.kafka, f"{one.name}.rejected")}
    assert found.keys() == {b"1", b"7"}
    headers = found[b"7"]
    assert headers["tailrace.reason"] == b"no such partition"
    assert headers["tailrace.detail"] == f"partition 7 of the topic {one.sink!r}, which has 1".encode()
    assert (headers["tailrace.stage"], headers["tailrace.sink.topic"]) == (b"sink", one.sink.encode())


def test_row_goes_to_a_partition_that_was_added_to_its_topic(line: MakeLine) -> None:
    """What a producer knew of the topic before does not decide."""
    one = line(1)
    one.send([b"1"])
    one.run(**placed(one))
    assert one.rejected() == [b"1"]
    admin = AdminClient({"bootstrap.servers": one.kafka})
    admin.create_partitions([NewPartitions(one.sink, 2)])[one.sink].result(30)
    wait_until(lambda: len(admin.list_topics(one.sink).topics[one.sink].partitions) == 2, "the partition to exist", 30)
    one.send([b"1", b"0"])
    one.run(**placed(one))
    assert {(each.partition, each.value) for each in consume(one.kafka, one.sink)} == {(0, b"0"), (1, b"1")}
    assert one.rejected() == [b"1"]


EARLY = """
import pyarrow as pa

def early(batches):
    for batch in batches:
        moments = pa.array([int(value) for value in batch.column("value").to_pylist()], pa.timestamp("us", "UTC"))
        yield pa.RecordBatch.from_arrays([batch.column("value"), moments], names=["value", "timestamp"])
"""


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_timestamp_of_zero_is_written_as_one_millisecond(line: MakeLine, delivery: str) -> None:
    """The producer takes 0 for the time of writing, which is another one in each replay."""
    one = line(1)
    (one.folder / "early.py").write_text(EARLY)
    one.send([b"0", b"999", b"1000", b"2000"])
    one.run(process={"arrow": "early.py:early"}, sink={"delivery": delivery})
    found = {each.value: each.timestamp for each in consume(one.kafka, one.sink)}
    assert found == {b"0": 1, b"999": 1, b"1000": 1, b"2000": 2}


def test_record_whose_header_has_nul_in_its_name_is_rejected(line: MakeLine) -> None:
    """The producer cut the name silently; the other records come out, and no two read a name differently."""
    one = line(1)
    one.send([b"a"])
    produce_named(one.kafka, one.source, b"x", ((b"h\0i", b"1"), (b"j", b"2")))
    one.send([b"b"])
    one.run()
    assert one.values() == [b"a", b"b"]
    [found] = consume(one.kafka, f"{one.name}.rejected")
    headers = dict(found.headers)
    assert (found.value, headers["tailrace.reason"]) == (b"x", b"header key with NUL")
    assert (headers["h\\0i"], headers["j"], headers["tailrace.stage"]) == (b"1", b"2", b"encode")


def test_timestamp_of_zero_is_produced_by_a_test_as_one_millisecond(line: MakeLine) -> None:
    """A test would not find the record at the time that it says."""
    one = line(1)
    produce(one.kafka, one.source, [Record(b"a", timestamp=0), Record(b"b", timestamp=2)])
    assert [each.timestamp for each in consume(one.kafka, one.source)] == [1, 2]


HOUR = 3_600_000  # milliseconds
ANY = 2**63 - 1


@pytest.mark.parametrize("name", ["after", "before"])
@pytest.mark.parametrize("count", [1, 2])
def test_timestamp_that_the_sink_topic_refuses_is_named_with_the_way_out(line: MakeLine, name: str, count: int) -> None:
    """The advice was to correct the clock; brokers report one such record otherwise than two, and the others too."""
    one = line(1)
    one.source = one.topics("in", 1, message_timestamp_after_max_ms=ANY)
    one.sink = one.topics("out", 1, message_timestamp_before_max_ms=HOUR)  # after.max.ms is one hour by default
    now = int(time.time() * 1000)
    wrong = now + (2 if name == "after" else -2) * HOUR
    times = [now, *[wrong] * count, now]
    produce(one.kafka, one.source, [Record(b"%d" % at, partition=0, timestamp=at) for at in times])
    with pytest.raises(errors.KafkaFailed, match=f"topic {one.sink!r}.*timestamps of its rows") as caught:
        one.run()
    assert "column `timestamp`" in caught.value.then
    [(topic, option, value)] = re.findall(r"--entity-name (\S+) --add-config (\S+)=(\d+)", caught.value.then)
    assert (topic, option) == (one.sink, f"message.timestamp.{name}.max.ms")
    entry = ConfigEntry(option, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": one.kafka})
    admin.incremental_alter_configs([resource])[resource].result(30)
    one.run()
    assert one.values() == sorted(b"%d" % at for at in times)
