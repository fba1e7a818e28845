"""History: speeds from looks at the offsets, sums by time, and a log; all in bounded memory."""

from __future__ import annotations

from tailrace.gateway import Written
from tailrace.progress.plan import SinkPartition
from tailrace.status.health import Speed
from tailrace.status.history import Course, Journal, Slots, rejected_lately
from tailrace.status.snapshots import Finished, LagSeen

PLACE, OTHER = ("in", 0), ("in", 1)


def looked(at: float, position: int, end: int) -> LagSeen:
    """Return a look at one partition."""
    return LagSeen(at, {PLACE: position}, {PLACE: end}, oldest=at - 2 if end > position else None)


def batch(at: float, out: int, rejected: int) -> Finished:
    """Return a batch with some rejected records."""
    written = Written(
        SinkPartition(0), False, out=out, rejected=rejected, reasons={"bad": rejected} if rejected else {}
    )
    return Finished(0, out + rejected, (written,), {"deliver": 0.5}, False, at)


def test_speeds_are_measured_over_the_last_minute() -> None:
    """A speed of long ago says nothing about when the lag is gone."""
    course = Course()
    assert course.speed is None
    for second in range(100):
        course.saw(looked(second, 10 * second, 1_000 * second))
    for second in range(100, 161):
        course.saw(looked(second, 1_000 + 30 * (second - 100), 100_000 + 20 * (second - 100)))
    assert course.speed == Speed(20.0, 30.0)


def test_new_partition_begins_the_course_again() -> None:
    """Its records would look like records that arrive all at once."""
    course = Course()
    for second in range(10):
        course.saw(looked(second, 0, second))
    course.saw(LagSeen(10, {PLACE: 0, OTHER: 0}, {PLACE: 10, OTHER: 5_000}))
    assert course.speed is None


def test_slots_sum_batches_and_keep_the_worst_lag() -> None:
    """A span without a batch has no slot, and the oldest slots are dropped."""
    slots = Slots(10.0, 3)
    slots.finished(batch(101.0, 5, 1), 0.5)
    slots.finished(batch(109.0, 4, 0), 2.0)
    slots.lag(looked(103.0, 0, 70))
    slots.lag(looked(105.0, 0, 30))
    slots.finished(batch(131.0, 1, 0), 0.1)
    shown = slots.as_dict(135.0)
    assert shown["seconds"] == 10.0
    first = {"at": 100.0, "batches": 2, "in": 10, "out": 9, "rejected": 1, "seconds": 2.0, "lag": 70, "age": 2.0}
    assert [each["at"] for each in slots.as_dict(129.0)["slots"]] == [100.0, 130.0]
    assert slots.as_dict(129.0)["slots"][0] == first
    assert [each["at"] for each in shown["slots"]] == [130.0]  # the span of three slots has moved on
    for number in range(10):
        slots.finished(batch(200.0 + 10 * number, 1, 0), 0.1)
    assert len(slots.since(0.0)) == 3


def test_clock_that_is_set_back_adds_to_the_newest_slot() -> None:
    """Slots stay in order whatever the clock does."""
    slots = Slots(10.0, 3)
    slots.finished(batch(200.0, 1, 0), 0.1)
    slots.finished(batch(20.0, 1, 0), 0.1)
    assert [(each.at, each.batches) for each in slots.since(0.0)] == [(200.0, 2)]


def test_rejections_are_judged_by_the_last_minutes() -> None:
    """What was rejected an hour ago does not make a pipeline unwell now."""
    slots = Slots(10.0, 1000)
    slots.finished(batch(100.0, 0, 90), 0.1)
    slots.finished(batch(4_000.0, 7, 3), 0.1)
    assert rejected_lately(slots, 4_001.0) == (10, 3, "bad")
    assert rejected_lately(slots, 9_000.0) == (0, 0, "")


def test_repeated_entry_is_counted_and_the_log_is_bounded() -> None:
    """A flapping executor would push everything else out; the last change outlives its entry."""
    journal = Journal()
    journal.write(1.0, "change", "two executors")
    for second in range(5):
        journal.write(second, "warning", "x" * 1_000)
    assert [(each["kind"], each["times"]) for each in journal.entries()] == [("change", 1), ("warning", 5)]
    for second in range(500):
        journal.write(second, "note", f"{second}")
    assert len(journal.entries()) <= 100
    assert all(len(each["text"]) <= 500 for each in journal.entries())
    change = journal.change
    assert change is not None
    assert change["text"] == "two executors"
