"""Stateful pipelines that union branches of the records: each branch has sink partitions of its own, in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.pipelines import Bench, numbered
from tailrace import errors
from tailrace.progress.ledger import Ledger
from tailrace.progress.stream_plan import StreamPlan

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]

# Branches in the order of a file, which the code's digest does not cover; the record 4 of the low ones fails, late
# enough for the other branch to be delivered.
FUNCTION = """
    import time
    from functools import reduce
    from pathlib import Path
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F
    from pyspark.sql.types import BinaryType, BooleanType

    def check(value):
        if int(value) == 4 and Path({folder!r}, "broken").exists():
            time.sleep(4)
            raise ValueError("the fault of the test")
        return value

    def split(frame, state=False, own=False):
        rows = frame.dropDuplicates(["value"]) if state else frame
        number = F.col("value").cast("string").cast("int")
        low = F.udf(lambda value: int(value) % 4 < 2, BooleanType())("value") if own else number % 4 < 2
        branches = {{"low": rows.where(low), "high": rows.where(~low)}}
        order = Path({folder!r}, "order").read_text().split()
        found = reduce(DataFrame.union, [branches[name] for name in order])
        return found.select(F.udf(check, BinaryType())("value").alias("value"))
"""


def prepared(bench: MakeBench, **arguments: object) -> tuple[Bench, dict[str, Any]]:
    """Return a pipeline with twenty records, ten in each source partition."""
    one = bench(partitions=2)
    one.write("split.py", FUNCTION.format(folder=str(one.folder)))
    for partition in range(2):
        one.send(numbered(10 * partition, 10 * partition + 10), partition)
    sections: dict[str, Any] = {
        "source": {"format": "raw", "partitions": None},
        "process": {"function": "split.py:split", "arguments": arguments},
        "checkpoint": str(one.folder / "state"),
        "spark": {"spark.sql.shuffle.partitions": "2"},
    }
    return one, sections


@pytest.mark.takes(20)
@pytest.mark.parametrize("arguments", [{}, {"own": True}, {"state": True}])
def test_batch_that_was_delivered_in_part_is_not_finished_with_its_branches_in_another_order(
    bench: MakeBench, arguments: dict[str, object]
) -> None:
    """The records of one branch would be lost, and those of the other delivered again."""
    one, sections = prepared(bench, **arguments)
    order = one.folder / "order"
    order.write_text("low high")
    one.fail_in_part(**sections)
    before = one.values()
    assert 0 < len(before) < 20
    order.write_text("high low")
    with pytest.raises(errors.CutChanged, match="begun with the branches of a union in another order"):
        one.run(**sections)
    assert one.values() == before
    order.write_text("low high")
    one.run(**sections)
    assert one.values() == numbered(0, 20)


@pytest.mark.takes(20)
def test_batch_of_an_earlier_version_that_did_not_note_branches_is_finished(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its markers name the plan as that version has written it."""
    one, sections = prepared(bench)
    (one.folder / "order").write_text("low high")
    with monkeypatch.context() as earlier:
        earlier.setattr("tailrace.spark_stream.stream_cut.with_branches", lambda shuffles, branches: shuffles)
        one.fail_in_part(**sections)
    assert 0 < len(one.values()) < 20
    one.run(**sections)
    assert one.values() == numbered(0, 20)
    with Ledger.of(one.pipeline(**sections)) as ledger:
        plan = ledger.latest()
    assert isinstance(plan, StreamPlan)
    assert plan.cut == ()


@pytest.mark.takes(20)
def test_order_of_branches_may_change_between_two_batches(bench: MakeBench) -> None:
    """Nothing of the next batch is delivered yet."""
    one, sections = prepared(bench)
    for number, order in enumerate(["low high", "high low"]):
        (one.folder / "order").write_text(order)
        one.run(**sections)
        one.send(numbered(20 + number, 21 + number))
    one.run(**sections)
    assert one.values() == numbered(0, 22)
