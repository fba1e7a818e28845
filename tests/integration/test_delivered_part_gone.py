"""Records of a delivered sink partition that are gone before the rest of its batch is finished."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from integration.test_delivery import break_in_the_middle, faulty
from support.expiry import expire
from support.pipelines import Bench, events_of
from support.threads import Line, Torn, deleted, first_part_only, recreated
from tailrace import errors
from tailrace.driver.thread_engine import ThreadEngine
from tailrace.gateway import Written
from tailrace.progress.plan import Plan, SinkPartition
from tailrace.testing import Record, produce

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]
MakeLine = Callable[..., Line]
RESET: dict[str, Any] = {"source": {"on_data_loss": "reset"}}


def half_delivered(one: Line) -> str:
    """Leave a batch open that reads two topics, each for a part of its own; return the one that is delivered."""
    other = one.topics("in2", 1)
    one.send([b"a1"])
    produce(one.kafka, other, [Record(b"x1")])

    def its_part(
        engine: ThreadEngine, plan: Plan, owners: Mapping[SinkPartition, str], gone: frozenset[str]
    ) -> list[Written]:
        [number] = [number for number, part in enumerate(plan.parts) if part[0].topic == other]
        engine.part(plan, number, owners, gone)
        raise Torn

    with pytest.raises(errors.QueryFailed):
        one.run(its_part, source={"topics": [one.source, other], "partitions": 2})
    assert one.values() == [b"x1"]
    return other


@pytest.mark.parametrize("allowed", [{}, RESET])
@pytest.mark.parametrize("lose", [deleted, recreated])
def test_delivered_part_does_not_miss_a_topic_that_is_gone_and_taken_out(
    line: MakeLine, lose: Callable[[Line, str], None], allowed: dict[str, Any]
) -> None:
    """The other part is delivered, no record is reported as lost, and the next batch follows."""
    one = line(1)
    lose(one, half_delivered(one))
    assert events_of(one.run(**allowed), "reset") == []
    assert one.values() == [b"a1", b"x1"]
    one.send([b"a2"])
    one.run()
    assert one.values() == [b"a1", b"a2", b"x1"]


@pytest.mark.parametrize("allowed", [{}, RESET])
def test_delivered_part_does_not_miss_records_that_expired(line: MakeLine, allowed: dict[str, Any]) -> None:
    """Later records of the same partition are read on."""
    one = line(1)
    other = half_delivered(one)
    expire(one.kafka, other, 1)
    produce(one.kafka, other, [Record(b"x2")])
    both = {"topics": [one.source, other], "partitions": 2}
    assert events_of(one.run(source=both | allowed.get("source", {})), "reset") == []
    assert one.values() == [b"a1", b"x1", b"x2"]


def test_part_that_is_not_delivered_misses_records_that_expired(line: MakeLine) -> None:
    """What is delivered of the batch says nothing of its other part."""
    one = line(1)
    other = half_delivered(one)
    expire(one.kafka, one.source, 1)
    both: dict[str, Any] = {"source": {"topics": [one.source, other], "partitions": 2}}
    with pytest.raises(errors.OffsetsOutOfRange):
        one.run(**both)
    assert one.values() == [b"x1"]


@pytest.mark.parametrize("form", ["raw", "json"])
def test_delivered_part_of_a_batch_of_spark_does_not_miss_records_that_expired(bench: MakeBench, form: str) -> None:
    """Its task reads nothing; one that may reject records waits for no verdict."""
    one = bench(partitions=2)
    sections: dict[str, Any] = {}
    if form == "json":
        sections = {"source": {"format": "json", "schema": "value binary"}}
    coded = (b"MA==", b"MQ==")
    values: list[list[bytes | None]] = [[b"0"], [b"1"]]
    if form == "json":
        values = [[b'{"value": "%s"}' % each, b"no"] for each in coded]
    for number, each in enumerate(values):
        one.send(each, partition=number)
    break_in_the_middle(one, **sections)
    assert one.values() == [b"0"]
    expire(one.kafka, one.source, len(values[0]))
    events = one.run(process=faulty(one), **sections)
    assert events_of(events, "reset") == []
    [written] = events_of(events, "written")
    assert (written["skipped"], written["out"]) == (1, 1)
    assert sorted(filter(None, one.values())) == [b"0", b"1"]
    assert len(one.rejected()) == (2 if form == "json" else 0)


# Each peeks at its input. On the records of source partition 1 it fails while the file `broken` exists, as soon as
# the other part is delivered.
PEEKING = """
    from pathlib import Path
    from pyspark.sql.types import BinaryType, StructField, StructType
    from tailrace.testing import consume, wait_until

    BROKEN = Path({folder!r}) / "broken"

    def arrow(batches):
        first = next(batches)
        if first.column("value")[0].as_py() == b"1" and BROKEN.exists():
            wait_until(lambda: bool(consume({kafka!r}, {sink!r})), "the other part to be delivered", 30)
            raise ValueError("the fault of the test")
        yield first.select(["value"])
        for each in batches:
            yield each.select(["value"])

    def frame(rows):
        return rows.select("value").mapInArrow(arrow, StructType([StructField("value", BinaryType())]))
"""


@pytest.mark.parametrize("expired", [False, True], ids=["kept", "expired"])
@pytest.mark.parametrize("kind", ["arrow", "function"])
def test_function_of_spark_is_not_called_for_a_delivered_part(bench: MakeBench, kind: str, expired: bool) -> None:
    """It would see a part without records, which no function needs to expect, at each start."""
    one = bench(partitions=2)
    one.write("peeking.py", PEEKING.format(folder=str(one.folder), kafka=one.kafka, sink=one.sink))
    process = {kind: "peeking.py:arrow" if kind == "arrow" else "peeking.py:frame"}
    for number in range(2):
        one.send([b"%d" % number], partition=number)
    (one.folder / "broken").touch()
    with pytest.raises(errors.FunctionFailed, match="the fault of the test"):
        one.run(process=process)
    one.settle()
    (one.folder / "broken").unlink()
    assert one.values() == [b"0"]
    if expired:
        expire(one.kafka, one.source, 1)
    events = one.run(process=process)
    assert events_of(events, "reset") == []
    [written] = events_of(events, "written")
    assert (written["sinks"], written["skipped"], written["out"]) == (2, 1, 1)
    assert one.values() == [b"0", b"1"]


@pytest.mark.parametrize("on_error", ["stop", "reject"])
def test_function_in_a_thread_is_not_called_for_a_delivered_part(line: MakeLine, on_error: str) -> None:
    """The open part is delivered, and the next batch follows."""
    one = line(2)
    (one.folder / "peeking.py").write_text(
        textwrap.dedent(PEEKING.format(folder=str(one.folder), kafka=one.kafka, sink=one.sink))
    )
    process: dict[str, Any] = {"process": {"arrow": "peeking.py:arrow", "on_error": on_error}}
    for number in range(2):
        one.send([b"%d" % number], partition=number)
    with pytest.raises(errors.QueryFailed):
        one.run(first_part_only, **process)
    assert one.values() == [b"0"]
    [written] = events_of(one.run(**process), "written")
    assert (written["sinks"], written["skipped"], written["out"]) == (2, 1, 1)
    one.send([b"2"], partition=0)
    one.run(**process)
    assert one.values() == [b"0", b"1", b"2"]
