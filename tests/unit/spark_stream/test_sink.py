"""What the tasks of a batch are given to write."""

from __future__ import annotations

import pytest

from tailrace.config import Delivery
from tailrace.errors import InvariantBroken
from tailrace.progress.plan import BatchId, SinkPartition
from tailrace.progress.stream_plan import Slice, StreamPlan
from tailrace.spark_stream.sink import BatchWrite


def test_task_that_the_plan_does_not_know_writes_nothing() -> None:
    """Spark may have planned more tasks than the batch has sink partitions."""
    slices = (Slice("in-0:0-5"), Slice("in-1:0-5"))
    plan = StreamPlan("clicks", "query", BatchId(3), (), slices, entry="")
    write = BatchWrite(
        plan=plan,
        assigned=(SinkPartition(1), SinkPartition(0)),
        delivery=Delivery.EXACTLY_ONCE,
        ledger="ledger",
        topic="out",
        rejected=None,
        run="run",
        options={},
    )
    assert [write.task(number).partition for number in range(2)] == [1, 0]
    with pytest.raises(InvariantBroken, match="batch 3 has 2 sink partitions for outputs, and Spark runs task 2"):
        write.task(2)
