"""How `exactly_once` delivers frames that end in a limit or an offset, which Spark plans in another way at the root."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from support import dropin
from support.dropin import Change, fill, read
from support.pipelines import Bench
from tailrace.progress.plan import SinkPartition
from tailrace.progress.stream_plan import UNNAMED, Slice, StreamPlan
from tailrace.spark_stream import planned_sink

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]
LIMITS: dict[str, tuple[Change, int]] = {
    "limit": (lambda frame: frame.limit(10), 10),
    "offset": (lambda frame: frame.offset(30), 10),
    "offset and limit": (lambda frame: frame.offset(5).limit(10), 10),
    "column of limited rows": (lambda frame: frame.limit(10).withColumn("value", F.concat("value", F.lit(b""))), 10),
}


def deliver(one: Bench, folder: Path, then: Change) -> None:
    """Deliver what `then` makes of each batch; fail on every number while the file `broken` exists."""
    flag = str(folder / "broken")

    def check(value):  # type: ignore[no-untyped-def]  # PySpark reads hints as another kind of function
        from pathlib import Path

        if Path(flag).exists():
            raise ValueError("the fault of the test")
        return bytes(value)

    rows = read(one).select(F.udf(check, "binary")("value").alias("value"))
    dropin.deliver(rows, one, folder / "c", then)


def fail(one: Bench, folder: Path, then: Change) -> None:
    """Fail in the first batch, after it was planned."""
    (folder / "broken").touch()
    with pytest.raises(Exception, match="the fault of the test"):
        deliver(one, folder, then)
    one.settle()
    (folder / "broken").unlink()
    assert one.values() == []


def repeat(one: Bench, folder: Path, then: Change) -> None:
    """Run again as if Spark had ended before it noted that the last batch is done."""
    for each in (folder / "c" / "commits").iterdir():
        each.unlink()
    deliver(one, folder, then)


@pytest.mark.takes(12)
@pytest.mark.parametrize(
    ("name", "partitions"),
    [("limit", 1), ("limit", 3), ("offset", 3), ("offset and limit", 1), ("column of limited rows", 3)],
)
def test_frame_that_ends_in_a_limit_is_delivered_once(
    bench: MakeBench, tmp_path: Path, name: str, partitions: int
) -> None:
    """A single task writes the limited rows of a batch, in the first attempt or in a later one."""
    one, (change, count) = bench(partitions=partitions), LIMITS[name]
    fill(one, 0, 40)
    fail(one, tmp_path, change)
    deliver(one, tmp_path, change)
    assert len(set(one.values())) == len(one.values()) == count
    repeat(one, tmp_path, change)
    assert len(one.values()) == count
    fill(one, 40, 80)
    deliver(one, tmp_path, change)
    assert len(set(one.values())) == len(one.values()) == 2 * count


def noted_formerly(*values: Any, **noted: Any) -> StreamPlan:
    """Note what an earlier version did: what the limit reads, if that is one partition, and no shuffle."""
    plan = StreamPlan(*values, **noted)
    slices = (Slice(str(plan.ranges[0])),) if len(plan.ranges) == 1 else plan.slices
    return replace(plan, slices=slices, code="", settings=None, mixes=False, version=UNNAMED)


@pytest.mark.takes(12)
@pytest.mark.parametrize(("partitions", "finished"), [(1, False), (1, True), (3, False)])
def test_limited_batch_of_an_earlier_version_is_finished(
    bench: MakeBench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    partitions: int,
    finished: bool,
) -> None:
    """Its only sink partition holds all that the batch delivers, whatever the plan calls it."""
    one, (change, count) = bench(partitions=partitions), LIMITS["limit"]
    fill(one, 0, 40)
    with monkeypatch.context() as earlier:
        earlier.setattr(planned_sink, "StreamPlan", noted_formerly)
        earlier.setattr(planned_sink, "assign", lambda plan, slices: (SinkPartition(0),))
        (deliver if finished else fail)(one, tmp_path, change)
    if finished:
        repeat(one, tmp_path, change)
    else:
        deliver(one, tmp_path, change)
    assert len(one.values()) == count
    fill(one, 40, 80)
    deliver(one, tmp_path, change)
    assert len(set(one.values())) == len(one.values()) == 2 * count
