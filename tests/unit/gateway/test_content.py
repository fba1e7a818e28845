"""How a task without a plan recognises rows that another one has delivered in an earlier run of the batch."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from tailrace.config import Delivery
from tailrace.errors import CutChanged, MarkerConflict
from tailrace.gateway import Assignment
from tailrace.gateway.content import Content, check_moved, check_replay
from tailrace.gateway.row_sample import SIZE, Sample
from tailrace.progress.marker import MAX_METADATA, Marker
from tailrace.progress.plan import BatchId, SinkPartition

Rows = Sequence[str]
Markers = dict[int, Marker]


def task(number: int, run: str) -> Assignment:
    """Return the assignment of a task of a query without a plan."""
    return Assignment(
        pipeline="query",
        batch=BatchId(0),
        partition=SinkPartition(number),
        sinks=0,
        digest="query",
        delivery=Delivery.EXACTLY_ONCE,
        ledger="ledger",
        topic="out",
        rejected=None,
        run=run,
        planned=False,
        by_content=True,
    )


def content(number: int, rows: Rows, run: str, markers: Markers) -> Content:
    """Return what a task finds in its rows."""
    found = Content(task(number, run), markers)
    for _ in found.rows(iter([pa.RecordBatch.from_pydict({"value": list(rows)})])):
        pass
    return found


def delivered(parts: dict[int, Rows], run: str = "first") -> Markers:
    """Return the markers of these sink partitions, as they are read back from the ledger."""
    markers: Markers = {}
    for number, rows in parts.items():
        marker = content(number, rows, run, {}).marker(task(number, run))
        read = Marker.read(marker.next, marker.metadata)
        assert read == marker
        markers[number] = read
    return markers


def refused(number: int, rows: Rows, markers: Markers, run: str = "second") -> bool:
    """Return whether a task without a marker of its own is refused."""
    assert number not in markers
    try:
        check_moved(task(number, run), content(number, rows, run, markers))
    except CutChanged:
        return True
    return False


def numbers(values: Iterable[int]) -> Rows:
    """Return rows that all differ."""
    return [str(value) for value in values]


def by_hash(rows: Rows, tasks: int) -> dict[int, Rows]:
    """Divide rows between tasks as a shuffle does."""
    return {
        number: [row for row in rows if random.Random(row).randrange(2**32) % tasks == number]
        for number in range(tasks)
    }


@pytest.mark.parametrize("size", [1, 2, 10, 5_000])
def test_task_that_contains_a_delivered_sink_partition_is_refused(size: int) -> None:
    """Spark has merged it with another one, before it, behind it, or record by record."""
    moved, others = numbers(range(size)), numbers(range(size, 3 * size))
    markers = delivered({7: moved})
    mixed = sorted([*moved, *others], key=lambda row: random.Random(row).random())
    assert all(refused(3, rows, markers) for rows in ([*others, *moved], [*moved, *others], mixed))
    assert not refused(3, others, markers)


@pytest.mark.parametrize("size", [2, 10, 5_000])
@pytest.mark.parametrize("step", [1, 2])
def test_task_that_is_a_part_of_a_delivered_sink_partition_is_refused(size: int, step: int) -> None:
    """It has the second half of the rows, or each second one, and neither the first nor the last one."""
    whole = numbers(range(2 * size))
    part = whole[size:] if step == 1 else whole[1::2]
    assert refused(1, part[:-1] if size > 2 else part, delivered({0: whole}))


@pytest.mark.parametrize(("before", "now"), [(8, 4), (8, 3), (2, 8), (5, 4), (7, 6)])
def test_each_task_with_delivered_rows_is_refused_behind_a_shuffle_into_another_number(before: int, now: int) -> None:
    """Its rows come from several sink partitions, of which only one is delivered."""
    rows = numbers(range(4_000))
    last = before - 1
    markers = delivered({last: by_hash(rows, before)[last]})
    found = {
        number: refused(number, part, markers) for number, part in by_hash(rows, now).items() if number not in markers
    }
    moved = set(by_hash(rows, before)[last])
    assert found == {number: bool(moved & set(part)) for number, part in by_hash(rows, now).items() if number in found}


def test_sink_partition_that_moved_as_a_whole_is_refused() -> None:
    """Spark has numbered the tasks in another order; the rows may all be equal."""
    assert refused(1, ["same"] * 5, delivered({0: ["same"] * 5}))
    assert not refused(1, [], delivered({0: []}))


def test_rows_that_were_delivered_in_the_same_run_are_not_refused() -> None:
    """They are other records of the same batch, with the same values."""
    rows = numbers(range(50))
    assert not refused(1, rows, delivered({0: rows}), run="first")


def test_marker_of_another_batch_is_no_reason_to_refuse() -> None:
    """The same rows may come again in a later batch."""
    rows = numbers(range(50))
    marker = replace(delivered({0: rows})[0], next=BatchId(0))
    assert not refused(1, rows, {0: marker})


@pytest.mark.parametrize("rows", [numbers(range(50)), ["a", "a", "b", "b"] * 10, []])
def test_marker_of_an_earlier_version_is_compared_by_its_digest_alone(rows: Rows) -> None:
    """It has no sample, and its digest depends on the order."""
    found = b"".join(repr({"value": row}).encode() for row in rows)
    digest = hashlib.blake2b(found, digest_size=16).hexdigest()
    markers = {0: Marker.of(BatchId(0), f"{digest}/first", 0)}
    check_replay(markers[0], task(0, "second"), content(0, rows, "second", markers))
    with pytest.raises(CutChanged):
        check_replay(markers[0], task(0, "second"), content(0, ["c", *rows], "second", markers))
    if rows:
        assert not refused(1, rows[:20], markers)
        assert refused(1, rows, markers)


@pytest.mark.parametrize(
    ("theirs", "mine"),
    [
        (["heartbeat", *numbers(range(9))], ["heartbeat", *numbers(range(10, 19))]),
        (["begin", *numbers(range(9)), "end"], ["begin", *numbers(range(10, 19)), "end"]),
        (["heartbeat", "1"], ["heartbeat", "2"]),
        (["ok"] * 70 + ["failed"] * 30, ["ok"] * 60 + ["failed"] * 20),
        (["ok"] * 5 + ["failed"], ["ok"] * 9 + ["failed", "failed"]),
    ],
)
def test_tasks_with_some_equal_rows_are_not_refused(theirs: Rows, mine: Rows) -> None:
    """The values are equal, and the records are not the same."""
    assert not refused(1, mine, delivered({0: theirs}))


def test_rows_that_several_tasks_of_a_run_have_delivered_prove_nothing() -> None:
    """Each was delivered for itself, so a third task may have them too."""
    common = numbers(range(20))
    markers = delivered({0: [*common, "a"], 1: [*common, "b"]})
    assert not refused(2, [*common, "c"], markers)
    assert refused(2, [*common, "c"], {0: markers[0]})
    assert refused(2, [*common, "b"], markers)


def test_marked_task_with_other_rows_is_refused() -> None:
    """The refusal says that other tasks may have been delivered, and names a way out of the open batch first."""
    markers = delivered({0: numbers(range(20))})
    with pytest.raises(CutChanged, match="already delivered, with other rows") as caught:
        check_replay(markers[0], task(0, "second"), content(0, numbers(range(10)), "second", markers))
    assert "other tasks of the batch may have been delivered" in caught.value.kept
    assert "another checkpoint folder and another id" in caught.value.then.partition("For later queries")[0]
    assert "by-number" in caught.value.then.partition("For later queries")[2]
    with pytest.raises(MarkerConflict, match="batch 4 is already written"):
        check_replay(Marker(BatchId(5), "x/y", 0), task(0, "second"), content(0, [], "second", markers))


def test_marker_of_many_rows_stays_within_the_limit_of_the_broker() -> None:
    """It holds a sample of them, and says of each whether the sink partition has it several times."""
    marker = delivered({0: numbers(value % 9_000 for value in range(10_000))})[0]
    assert len(marker.metadata) < MAX_METADATA / 2
    sample = Sample.of(marker.sample)
    assert len(sample.once) + len(sample.repeated) == SIZE
    assert 0 < len(sample.repeated) < len(sample.once)


def test_replay_of_the_same_rows_in_another_order_is_recognised() -> None:
    """Behind a shuffle they come as the executors answer; a task that was tried again was refused for good."""
    rows = [*numbers(range(50)), "twice", "twice"]
    markers = delivered({0: rows})
    shuffled = random.Random(1).sample(rows, len(rows))
    check_replay(markers[0], task(0, "second"), content(0, shuffled, "second", markers))
    for other in (rows[:-1], [*rows, "twice"], [*rows[:-1], "other"]):
        with pytest.raises(CutChanged):
            check_replay(markers[0], task(0, "second"), content(0, other, "second", markers))
