"""An open batch of a stateful pipeline begins where it was planned, whatever the source or the checkpoint has lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from support.expiry import expire
from support.pipelines import Bench, events_of
from tailrace import errors

pytestmark = [pytest.mark.integration, pytest.mark.takes(20)]

MakeBench = Callable[..., Bench]

# Fails for one id while the file `broken` exists; only `first` keeps state and shuffles.
FUNCTION = """
    from pathlib import Path
    from pyspark.sql import functions as F
    from pyspark.sql.types import LongType

    def plain(frame):
        def check(number):
            if number == 4 and Path({folder!r}, "broken").exists():
                raise ValueError("the fault of the test")
            return number
        return frame.select(F.udf(check, LongType())("id").alias("id"))

    def first(frame):
        return plain(frame.dropDuplicates(["id"]))

    def raw(frame):
        found = plain(frame.select(F.get_json_object(frame["value"].cast("string"), "$.id").cast("long").alias("id")))
        return found.select(F.to_json(F.struct("id")).cast("binary").alias("value"))

    def joined(frame):
        one = frame.select(F.get_json_object(frame["value"].cast("string"), "$.id").cast("long").alias("a"))
        both = one.join(one.withColumnRenamed("a", "id"), F.col("a") == F.col("id")).select("id")
        return plain(both).select(F.to_json(F.struct("id")).cast("binary").alias("value"))
"""


def prepared(bench: MakeBench, function: str) -> tuple[Bench, dict[str, Any]]:
    """Return a pipeline that reads JSON, or the bytes of it, from a source with one partition."""
    one = bench()
    one.write("keep.py", FUNCTION.format(folder=str(one.folder)))
    reads = {"format": "raw"} if function in {"raw", "joined"} else {"format": "json", "schema": "id long"}
    return one, {
        "source": {**reads, "partitions": None},
        "process": {"function": f"keep.py:{function}"},
        "sink": {"format": reads["format"]},
        "checkpoint": str(one.folder / "state"),
    }


def lines(numbers: range) -> list[bytes | None]:
    """Return records with these ids."""
    return [b'{"id": %d}' % number for number in numbers]


def send(one: Bench, values: list[bytes | None], partition: int) -> None:
    """Write records with a producer that knows all partitions of the source."""
    producer = Producer({"bootstrap.servers": one.kafka})
    for value in values:
        producer.produce(one.source, value, partition=partition)
    assert producer.flush(30) == 0


def ids(one: Bench) -> list[int]:
    """Return the ids of the delivered records, sorted."""
    return sorted(json.loads(value or b"{}")["id"] for value in one.values())


@pytest.mark.parametrize(
    ("function", "before"),
    [("first", 3), ("first", 11), ("plain", 3), ("plain", 11), ("raw", 3)],
)
def test_partition_that_is_new_in_an_open_batch_and_loses_records_is_finished_with_reset(
    bench: MakeBench, function: str, before: int
) -> None:
    """Spark's log does not say where the partition began, and its first records are gone."""
    one, sections = prepared(bench, function)
    one.send(lines(range(20, 30)))
    one.run(**sections)
    one.grow(2)
    send(one, lines(range(30, 40)), 0)
    send(one, lines(range(10)), 1)
    rejected = [] if function == "raw" else [b"broken"]
    send(one, [*rejected] or lines(range(10, 11)), 1)
    one.fail_in_part(**sections)
    delivered = ids(one)
    expire(one.kafka, one.source, before, 1)
    with pytest.raises(errors.OffsetsOutOfRange):
        one.run(**sections)
    one.settle()
    sections["source"]["on_data_loss"] = "reset"
    (replay, *_) = events_of(one.run(**sections), "written")
    assert (replay["batch"], replay["skipped"] > 0) == (1, True)
    left = [*range(before, 10 if rejected else 11)]
    assert ids(one) == sorted({*delivered, *range(30, 40), *left})
    assert [value for value, _ in one.rejected()] == rejected
    send(one, lines(range(50, 51)), 1)
    one.run(**sections)
    assert ids(one) == sorted({*delivered, *range(30, 40), *left, 50})


@pytest.mark.parametrize("function", ["raw", "first", "joined"])
def test_first_batch_whose_beginning_the_checkpoint_has_lost_is_finished_where_it_began(
    bench: MakeBench, function: str
) -> None:
    """Spark would begin it at the latest offset, deliver nothing of the rest, and note it as done."""
    one, sections = prepared(bench, function)
    one.send(lines(range(10)))
    one.fail_in_part(**sections)
    shutil.rmtree(one.folder / "state" / "sources")
    one.run(**sections)
    assert ids(one) == list(range(10))
    one.send(lines(range(20)))
    one.run(**sections)
    expected = list(range(20)) if function == "first" else sorted([*range(10), *range(20)])
    assert ids(one) == (expected if function != "joined" else sorted([*range(10), *range(10), *range(10), *range(20)]))
