"""What the tasks of a batch ask the gateway for."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.config import Pipeline
from tailrace.driver.engine import WAYS
from tailrace.driver.tasks import BatchInfo, Tasks
from tailrace.gateway import ReadRequest
from tailrace.gateway.consuming import settings
from tailrace.progress.plan import BatchId, Plan, Range

PREFETCH_KB = 65_536  # what a pipeline may prefetch in one executor


Parts = tuple[tuple[Range, ...], ...]


def made(parts: Parts, **source: Any) -> tuple[Tasks, BatchInfo]:
    """Return the tasks of a pipeline that reads `in`, and a batch with these parts."""
    pipeline = Pipeline.model_validate(
        {
            "pipeline": "p",
            "kafka": {"bootstrap.servers": "127.0.0.1:1"},
            "source": {"topics": ["in"], **source},
            "sink": {"topic": "out", "format": "raw"},
        }
    )
    ends = {(each.topic, each.partition): each.end for part in parts for each in part}
    plan = Plan("p", BatchId(0), "out", {"in": "id"}, parts, len(parts), ends)
    tasks = Tasks.of(pipeline, ("value",), shuffles=False, judges=False)
    return tasks, BatchInfo.of(plan, "run", {}, frozenset())


def requests(parts: Parts, **source: Any) -> list[ReadRequest]:
    """Return the requests of a batch with these parts."""
    tasks, info = made(parts, **source)
    return [tasks.request(info, number) for number in range(len(parts))]


def pieces(count: int) -> Parts:
    """Return the parts of a batch that reads one source partition with several tasks."""
    return tuple((Range("in", 0, number * 100, number * 100 + 100),) for number in range(count))


def prefetched(requests: list[ReadRequest]) -> int:
    """Return what the consumers of these requests may prefetch, each of one partition, in kB."""
    return sum(
        settings({}, each.isolation, each.share)["queued.max.messages.kbytes"]
        for each in {one.key: one for one in requests}.values()
    )


@pytest.mark.parametrize("asked", [12, None])
def test_consumers_of_one_partition_share_the_bound_on_prefetched_data(asked: int | None) -> None:
    """Each had the whole of it; this holds for a batch from before `source.partitions` was removed, too."""
    found = requests(pieces(12), partitions=asked)
    assert len({each.key for each in found}) == 12
    assert prefetched(found) <= PREFETCH_KB


def test_batch_with_fewer_pieces_needs_no_other_consumers() -> None:
    """A few records are split into fewer pieces; a consumer for each such number would be held for minutes."""
    few, many = requests(pieces(3), partitions=12), requests(pieces(12), partitions=12)
    assert {each.key for each in few} < {each.key for each in many}


def test_partitions_that_are_not_split_have_one_consumer() -> None:
    """It prefetches each as before, whatever `source.partitions` says."""
    parts = tuple((Range("in", number, 0, 100),) for number in range(4))
    found = requests(parts, partitions=2)
    assert {each.key for each in found} == {found[0].key}
    assert (found[0].share, found[0].lane) == (4, 0)


def test_jobs_that_look_for_a_faulty_record_share_the_bound_on_prefetched_data() -> None:
    """They read pieces of the same part in lanes of their own."""
    tasks, info = made(pieces(1))
    found = [tasks.request(info.probing(part, lane), 0) for lane, part in enumerate(pieces(WAYS))]
    assert len({each.key for each in found}) == WAYS
    assert prefetched(found) <= PREFETCH_KB
