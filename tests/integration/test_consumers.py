"""Spark's consumers are kept between batches, whatever the number of partitions (docs/decisions/0025)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil
import pytest

from support.pipelines import Bench, events_of
from tailrace.testing import Record, produce

pytestmark = pytest.mark.integration

PARTITIONS = 70  # more than the 64 consumers that Spark keeps by default


@pytest.mark.takes(13)
def test_stateful_pipeline_keeps_its_consumers_with_more_than_64_partitions(
    bench: Callable[..., Bench],
) -> None:
    """The connections of the partitions' consumers exist after the second batch, and still after the fourth."""
    one = bench(partitions=PARTITIONS)
    java: Any = one.spark._jvm
    jvm = psutil.Process(int(java.java.lang.ProcessHandle.current().pid()))
    broker = int(one.kafka.rpartition(":")[2])
    seen: list[set[int]] = []

    def connections() -> set[int]:
        return {each.laddr.port for each in jvm.net_connections("tcp") if each.raddr and each.raddr.port == broker}

    def four_batches(events: list[dict[str, Any]]) -> bool:
        if events[-1]["event"] == "written":
            seen.append(connections())
            fill(one)
        return len(events_of(events, "written")) == 4

    fill(one)
    others = connections()  # of earlier tests: Spark closes those when they have been idle for five minutes
    one.run_until(one.pipeline(sink={"partitions": 4}, checkpoint=str(one.folder / "state")), four_batches)
    own = seen[1] - others
    assert len(own) > PARTITIONS
    gone = own - seen[3]
    assert len(gone) < PARTITIONS / 10  # a consumer's first connection, to the bootstrap broker, may end


def fill(one: Bench) -> None:
    """Send one record to each partition."""
    produce(one.kafka, one.source, [Record(b"x", partition=number) for number in range(PARTITIONS)])
