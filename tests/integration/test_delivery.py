"""Each record comes out once, unchanged and in order, whatever stopped the previous run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.pipelines import Bench, events_of, numbered
from tailrace import errors
from tailrace.progress.ledger import Ledger
from tailrace.testing import Record, consume, produce

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]

# Fails on source partition 1 while the file `broken` exists; if that has text, only after another part is delivered.
FAULTY = """
    from pathlib import Path
    from pyspark.sql import functions as F
    from pyspark.sql.types import BinaryType
    from tailrace.testing import consume, wait_until

    BROKEN = Path({folder!r}) / "broken"

    def faulty(frame):
        def check(value, partition):
            if partition == 1 and BROKEN.exists():
                if BROKEN.read_text():
                    wait_until(lambda: bool(consume({kafka!r}, {sink!r})), "the other part to be delivered", 30)
                raise ValueError("the fault of the test")
            return bytes(value)
        return frame.select(F.udf(check, BinaryType())("value", "kafka.partition").alias("value"))
"""


def faulty(bench: Bench) -> dict[str, object]:
    """Return a `process` section that fails on partition 1 while the file `broken` exists."""
    bench.write("faulty.py", FAULTY.format(folder=str(bench.folder), kafka=bench.kafka, sink=bench.sink))
    return {"function": "faulty.py:faulty"}


def break_in_the_middle(bench: Bench, **sections: Any) -> None:
    """Run a batch that fails after some of its sink partitions are delivered."""
    (bench.folder / "broken").write_text("once another part is delivered")
    with pytest.raises(errors.FunctionFailed, match="the fault of the test"):
        bench.run(process=faulty(bench), **sections)
    bench.settle()
    (bench.folder / "broken").unlink()


def test_record_passes_unchanged(bench: MakeBench) -> None:
    """Keys, headers, null values and empty values arrive as they were."""
    one = bench()
    one.write(
        "keep.py",
        """
        from pyspark.sql import functions as F

        def keep(frame):
            return frame.select(
                F.col("kafka.key").alias("key"), "value", F.col("kafka.headers").alias("headers"),
                F.col("kafka.timestamp").alias("timestamp"),
            )
        """,
    )
    sent = [
        Record(b"v", key=b"k", headers=(("a", b"1"), ("a", b"2"), ("none", None)), timestamp=1_700_000_000_123),
        Record(None, key=b"tombstone"),
        Record(b"", key=b""),
        Record(b"\xff\x00", key=None),
    ]
    produce(one.kafka, one.source, sent)
    one.run(process={"function": "keep.py:keep"})
    got = consume(one.kafka, one.sink)
    assert [(each.value, each.key, tuple(each.headers)) for each in got] == [
        (each.value, each.key, tuple(each.headers)) for each in sent
    ]
    assert got[0].timestamp == 1_700_000_000_123


def test_restart_continues_where_the_last_run_ended(bench: MakeBench) -> None:
    """The topic is never replayed: with earliest or latest, the second run reads only new records."""
    one = bench(partitions=2)
    one.send(numbered(0, 50), partition=0)
    one.run()
    one.send(numbered(50, 80), partition=1)
    second = one.run()
    assert [each["in"] for each in events_of(second, "written")] == [30]
    assert one.values() == numbered(0, 80)
    assert events_of(one.run(), "written") == []


def test_first_start_at_latest_reads_only_later_records(bench: MakeBench) -> None:
    """The second start continues from there, not from the new end."""
    one = bench()
    at_latest = {"auto.offset.reset": "latest"}
    one.send(numbered(0, 10))
    assert sum(each["in"] for each in events_of(one.run(source=at_latest), "written")) == 0
    one.run_until(one.pipeline(source=at_latest), lambda events: _send_when_idle(one, events))
    one.send(numbered(20, 25))
    one.run(source=at_latest)
    assert one.values() == numbered(10, 25)


def _send_when_idle(one: Bench, events: list[dict[str, object]]) -> bool:
    idle = [each for each in events if each["event"] == "idle"]
    if events[-1]["event"] == "idle" and len(idle) == 1:
        one.send(numbered(10, 20))
    return sum(int(str(each["in"])) for each in events if each["event"] == "written") == 10


@pytest.mark.parametrize("partitions", [2, 3, 6])
def test_partly_delivered_batch_is_finished_without_a_duplicate(bench: MakeBench, partitions: int) -> None:
    """This also holds with four or fewer source partitions, where Spark renumbers its tasks after a restart."""
    one = bench(partitions=partitions)
    for number in range(partitions):
        one.send(numbered(number * 100, number * 100 + 10 * (number + 1)), partition=number)
    break_in_the_middle(one)
    before = one.values()
    events = one.run(process=faulty(one))
    replayed = events_of(events, "written")[0]
    expected = [value for n in range(partitions) for value in numbered(n * 100, n * 100 + 10 * (n + 1))]
    assert one.values() == expected
    assert replayed["skipped"] + replayed["out"] > 0
    assert replayed["out"] == len(expected) - len(before)


def test_different_code_on_replay_still_delivers_each_record_once(bench: MakeBench) -> None:
    """What was delivered stays as the old code wrote it; the new code writes the remaining records."""
    one = bench(partitions=2)
    one.send(numbered(0, 10), partition=0)
    one.send(numbered(100, 110), partition=1)
    break_in_the_middle(one)
    one.write(
        "new.py",
        """
        from pyspark.sql import functions as F

        def new(frame):
            return frame.select(F.concat(F.lit("new "), F.col("value").cast("string")).alias("value"))
        """,
    )
    one.run(process={"function": "new.py:new"})
    numbers = sorted((value or b"").removeprefix(b"new ") for value in one.values())
    assert numbers == numbered(0, 10) + numbered(100, 110)


def test_write_partitions_merge_tasks_and_replay_the_same(bench: MakeBench) -> None:
    """Three source partitions go to two sink partitions, and the replay merges them like the first run."""
    one = bench(partitions=3)
    for number in range(3):
        one.send(numbered(number * 100, number * 100 + 20), partition=number)
    break_in_the_middle(one, sink={"partitions": 2})
    events = one.run(process=faulty(one), sink={"partitions": 2})
    assert events_of(events, "planned")[0]["sinks"] == 2
    assert one.values() == numbered(0, 20) + numbered(100, 120) + numbered(200, 220)


@pytest.mark.parametrize(
    "knobs",
    [
        {"process": {"partitions": 4}},
        {"source": {"partitions": 6}},
        {"source": {"partitions": 5}, "process": {"partitions": 3}, "sink": {"partitions": 2}},
    ],
)
def test_replay_is_exact_with_every_setting_of_parallelism(bench: MakeBench, knobs: dict[str, dict[str, Any]]) -> None:
    """The cases are split ranges, a shuffle, and a shuffle whose tasks are merged again."""
    one = bench(partitions=2)
    one.send(numbered(0, 40), partition=0)
    one.send(numbered(100, 160), partition=1)
    process = faulty(one) | knobs.get("process", {})
    others: dict[str, Any] = {name: section for name, section in knobs.items() if name != "process"}
    (one.folder / "broken").touch()
    with pytest.raises(errors.FunctionFailed, match="the fault of the test"):
        one.run(process=process, **others)
    one.settle()
    (one.folder / "broken").unlink()
    one.run(process=process, **others)
    assert one.values() == numbered(0, 40) + numbered(100, 160)


def test_open_batch_keeps_the_partitions_of_its_plan_whatever_the_settings(
    bench: MakeBench, record_property: Callable[[str, object], None]
) -> None:
    """Settings may change at any time: a planned batch is delivered as planned; the next one follows the settings."""
    one = bench(partitions=3)
    for number in range(3):
        one.send(numbered(number * 100, number * 100 + 20), partition=number)
    break_in_the_middle(one)
    events = one.run(process=faulty(one), sink={"partitions": 2})
    assert [(each["sinks"], each["replay"]) for each in events_of(events, "planned")] == [(3, True)]
    one.send(numbered(300, 320), partition=2)
    one.run(process=faulty(one), sink={"partitions": 2})
    assert one.values() == numbered(0, 20) + numbered(100, 120) + numbered(200, 220) + numbered(300, 320)
    record_property("records", len(one.values()))


def test_three_settings_of_parallelism_are_independent(bench: MakeBench) -> None:
    """About five tasks read two source partitions, four process and three write them."""
    one = bench(partitions=2)
    one.send(numbered(0, 100), partition=0)
    one.send(numbered(100, 200), partition=1)
    events = one.run(source={"partitions": 5}, process={"partitions": 4}, sink={"partitions": 3})
    assert events_of(events, "planned")[0]["sinks"] == 3
    assert one.values() == numbered(0, 200)


def test_order_is_kept_within_each_source_partition(bench: MakeBench) -> None:
    """Records of one source partition that go to one output partition arrive in their order."""
    one = bench(partitions=2)
    for number in range(2):
        one.send(numbered(number * 1000, number * 1000 + 500), partition=number)
    one.run(batch={"max_records": 200})
    got = [each.value or b"" for each in consume(one.kafka, one.sink)]
    for number in range(2):
        mine = [value for value in got if value.startswith(b"%03d" % number)]
        assert mine == numbered(number * 1000, number * 1000 + 500)


def test_empty_sink_partition_advances_its_marker(bench: MakeBench) -> None:
    """A batch whose rows are all filtered out is done: the next start does not replay it."""
    one = bench(partitions=2)
    one.write("none.py", "def none(frame):\n    return frame.where('false')\n")
    one.send(numbered(0, 10), partition=0)
    one.send(numbered(0, 10), partition=1)
    one.run(process={"function": "none.py:none"})
    assert events_of(one.run(), "planned") == []
    assert one.values() == []


def test_at_least_once_delivers_everything_and_leaves_no_marker(bench: MakeBench) -> None:
    """Without transactions, it writes plain records, and no marker to the ledger."""
    one = bench(partitions=2)
    one.send(numbered(0, 100), partition=0)
    one.run(sink={"delivery": "at-least-once", "options": {"acks": "1"}})
    assert set(one.values()) == set(numbered(0, 100))
    with Ledger.of(one.pipeline()) as ledger:
        assert ledger.markers() == {}


def test_clean_restart_at_least_once_repeats_nothing(bench: MakeBench) -> None:
    """The stored offsets show that the last batch was done; only an open batch is written again."""
    one = bench(partitions=2)
    sections: dict[str, Any] = {"sink": {"delivery": "at-least-once"}}
    one.send(numbered(0, 10), partition=0)
    one.run(**sections)
    assert events_of(one.run(**sections), "planned") == []
    one.send(numbered(10, 20), partition=0)
    one.send(numbered(20, 30), partition=1)
    break_in_the_middle(one, **sections)
    one.run(process=faulty(one), **sections)
    assert set(one.values()) == set(numbered(0, 30))
    assert one.values()[:10] == numbered(0, 10)


def test_key_goes_to_the_partition_that_java_chooses(bench: MakeBench) -> None:
    """Like Java's murmur2, the sink puts "orders" into partition 2 of 5, and "a" into 4."""
    one = bench(out=5)
    one.write(
        "keyed.py",
        """
        from pyspark.sql import functions as F

        def keyed(frame):
            return frame.select(F.col("kafka.key").alias("key"), "value")
        """,
    )
    keys = [f"key-{number}".encode() for number in range(40)]
    produce(one.kafka, one.source, [Record(b"v", key=key) for key in keys])
    one.run(process={"function": "keyed.py:keyed"})
    found = {each.key: each.partition for each in consume(one.kafka, one.sink)}
    assert found == {key: _murmur2(key) % 5 for key in keys}


def _murmur2(data: bytes) -> int:
    """Hash like Kafka's default partitioner in Java, from its definition: MurmurHash2 without the sign bit."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(data)) & mask
    aligned = len(data) // 4 * 4
    for place in range(0, aligned, 4):
        k = int.from_bytes(data[place : place + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    tail = data[aligned:]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF


def test_sink_partition_that_fails_at_a_late_row_delivers_nothing(bench: MakeBench) -> None:
    """The rows before the failure have reached the sink, and must not be taken for all of them."""
    one = bench()
    one.write(
        "late.py",
        """
        from pyspark.sql import functions as F

        def late(frame):
            bad = F.col("value").cast("string") == "024000"
            return frame.select(F.when(bad, F.raise_error(F.lit("late"))).otherwise(F.col("value")).alias("value"))
        """,
    )
    one.send(numbered(0, 25_000))
    with pytest.raises(errors.FunctionFailed, match="late"):
        one.run(process={"function": "late.py:late"})
    one.settle()
    assert one.values() == []
    one.run()
    assert one.values() == numbered(0, 25_000)


def test_conditions_may_change_while_a_batch_is_open(bench: MakeBench) -> None:
    """Each sink partition accepts or rejects each record once: a replay may decide differently, but loses none."""
    one = bench(partitions=2)
    one.send([b'{"id": 1}', b'{"id": 2}'], partition=0)
    one.send([b'{"id": 3}'], partition=1)
    one.write(
        "part.py",
        f"""
        from pathlib import Path
        from pyspark.sql import functions as F

        def part(frame):
            wrong = F.lit(Path({str(one.folder / "broken")!r}).exists()) & (F.col("id") == 3)
            return frame.select(F.when(wrong, F.raise_error(F.lit("wrong"))).otherwise(F.col("id")).alias("id"))
        """,
    )
    sections: dict[str, Any] = {"source": {"format": "json", "schema": "id long"}, "sink": {"format": "json"}}
    (one.folder / "broken").touch()
    with pytest.raises(errors.FunctionFailed, match="wrong"):
        one.run(process={"function": "part.py:part"}, **sections)
    one.settle()
    (one.folder / "broken").unlink()
    one.run(process={"function": "part.py:part", "validate": {"small": "id < 2"}}, **sections)
    # Whether 2 was accepted in the first run depends on the progress of its sink partition.
    aside = sorted((value or b"").replace(b" ", b"") for value, _ in one.rejected())
    assert sorted([*filter(None, one.values()), *aside]) == [b'{"id":1}', b'{"id":2}', b'{"id":3}']
    assert b'{"id":1}' in one.values()
    assert b'{"id":3}' in aside


def test_arrow_function_runs_from_gateway_to_gateway(bench: MakeBench) -> None:
    """Its records come out once over several batches; undecodable ones are rejected."""
    one = bench(partitions=2)
    one.write(
        "sums.py",
        """
        import pyarrow.compute as pc

        def sums(batches, by):
            for batch in batches:
                yield batch.select(["id"]).set_column(0, "id", pc.multiply(batch.column("id"), by))
        """,
    )
    for partition in range(2):
        values = [b'{"id": %d}' % number for number in range(partition * 100, partition * 100 + 100)]
        one.send([*values, b"broken"], partition=partition)
    events = one.run(
        source={"format": "json", "schema": "id long"},
        process={"arrow": "sums.py:sums", "arguments": {"by": 2}},
        sink={"format": "json"},
        batch={"max_records": 60},
    )
    assert len(events_of(events, "written")) >= 3
    assert one.values() == sorted(b'{"id":%d}' % (2 * number) for number in range(200))
    assert [value for value, _ in one.rejected()] == [b"broken"] * 2
