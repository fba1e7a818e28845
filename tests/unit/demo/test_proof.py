"""The demo's proof finds planted faults, its kills land inside batches, and its events add up."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter

import psutil
import pytest

from tailrace.demo.batches import Batches
from tailrace.demo.kills import KillSchedule, family, kill_tree
from tailrace.demo.proof import Expected, Place, Verdict, compare, source_of
from tailrace.kafka.reader import Message
from tailrace.kafka.rejected_headers import HEADER_OFFSET, HEADER_PARTITION, HEADER_TOPIC
from tailrace.testing import wait_until

OUTPUTS = Counter({"1#0": 1, "1#1": 1, "2#0": 1})
PLACES = Counter({Place("tweets", 0, 5): 1, Place("tweets", 1, 9): 1})


def judge(outputs: Counter[str] = OUTPUTS, rejected: Counter[Place] = PLACES) -> Verdict:
    """Compare with what three tweets and two broken records must give."""
    return compare(5, Expected(Counter(OUTPUTS), Counter(PLACES)), Counter(outputs), Counter(rejected))


def test_a_complete_result_is_verified() -> None:
    """With each output and each rejected record once, and nothing else, the demo prints the line that it promises."""
    verdict = judge()
    assert verdict.holds
    assert verdict.line() == "verified: 5 in, 3 out, 0 lost, 0 duplicated, 2 rejected"


def test_a_lost_output_is_found() -> None:
    """A missing output is counted and named."""
    verdict = judge(outputs=OUTPUTS - Counter(["1#1"]))
    assert (verdict.lost, verdict.duplicated, verdict.holds) == (1, 0, False)
    assert verdict.wrong == ("lost: output 1#1",)
    assert verdict.line().startswith("not verified: 5 in, 2 out, 1 lost, 0 duplicated")


def test_a_duplicated_output_is_found() -> None:
    """Every copy beyond the first counts."""
    verdict = judge(outputs=OUTPUTS + Counter({"2#0": 2}))
    assert (verdict.lost, verdict.duplicated, verdict.written, verdict.holds) == (0, 2, 5, False)


def test_a_loss_is_not_hidden_by_a_duplicate() -> None:
    """The proof is not fooled by an equal total."""
    verdict = judge(outputs=OUTPUTS - Counter(["1#1"]) + Counter(["1#0"]))
    assert (verdict.lost, verdict.duplicated) == (1, 1)


def test_an_output_without_an_input_is_found() -> None:
    """An unexpected output fails the proof, and is neither lost nor duplicated."""
    verdict = judge(outputs=OUTPUTS + Counter(["3#0"]))
    assert (verdict.unexpected, verdict.lost, verdict.duplicated, verdict.holds) == (1, 0, 0, False)
    assert verdict.line().endswith("1 unexpected")


@pytest.mark.parametrize(
    ("rejected", "counts"),
    [
        (PLACES - Counter([Place("tweets", 0, 5)]), (1, 0, 0)),
        (PLACES + Counter([Place("tweets", 0, 5)]), (0, 1, 0)),
        (PLACES + Counter([Place("tweets", 0, 6)]), (0, 0, 1)),
    ],
)
def test_rejected_records_are_proved_too(rejected: Counter[Place], counts: tuple[int, int, int]) -> None:
    """A rejected record that is missing, duplicated or was never broken is found by its source position."""
    verdict = judge(rejected=rejected)
    assert (verdict.lost, verdict.duplicated, verdict.unexpected) == counts


def test_a_rejected_record_names_its_source() -> None:
    """The headers give its place; without them the record matches no input record."""
    headers = ((HEADER_TOPIC, b"tweets"), (HEADER_PARTITION, b"3"), (HEADER_OFFSET, b"42"))
    assert source_of(Message("r", 0, 1, 0, None, b"", headers)) == Place("tweets", 3, 42)
    assert source_of(Message("r", 0, 1, 0, None, b"")).partition == -1


def planned(batch: int, records: int) -> dict[str, object]:
    """Return the event of a planned batch."""
    return {"event": "planned", "batch": batch, "records": records, "replay": False}


def written(batch: int, records: int) -> dict[str, object]:
    """Return the event of a written batch."""
    return {"event": "written", "batch": batch, "in": records, "out": records, "skipped": 2}


def test_a_replayed_batch_is_counted_once() -> None:
    """A batch that a killed driver left open, and its successor wrote, adds its records once."""
    batches = Batches()
    for event in (planned(0, 10), written(0, 10), planned(1, 20)):
        batches.apply(event)
    left_open = batches.open
    assert (left_open, batches.consumed) == (1, 10)
    batches.ended()
    for event in (planned(1, 20), written(1, 20)):
        batches.apply(event)
    assert (batches.open, batches.consumed, batches.skipped) == (None, 30, 4)


def test_a_batch_without_an_end_event_counts_when_the_next_is_written() -> None:
    """A driver killed after its last commit had no time to report it; the next batch proves it."""
    batches = Batches()
    batches.apply(planned(0, 10))
    batches.ended()
    batches.apply(planned(1, 5))
    assert batches.consumed == 0
    batches.apply(written(1, 5))
    assert batches.consumed == 15


def after_batches(schedule: KillSchedule, now: float, count: int, length: float = 1.0) -> float:
    """Let the schedule see batches of this length, and return the time after them."""
    for _ in range(count):
        schedule.planned(now)
        now += length
        schedule.written(now)
    return now


def test_no_kill_is_armed_before_it_is_due() -> None:
    """Kills are spread over the run: the first of two waits for a quarter of it."""
    schedule = KillSchedule(2, 100.0, random.Random(0))
    schedule.began(0.0)
    now = after_batches(schedule, 0.0, 24)
    assert schedule.at is None
    after_batches(schedule, now, 2)
    schedule.planned(26.0)
    assert schedule.at is not None


@pytest.mark.parametrize("seed", range(20))
def test_an_armed_kill_falls_inside_the_batch(seed: int) -> None:
    """The moment is after the plan, and before the end of a batch of the usual length."""
    schedule = KillSchedule(1, 1.0, random.Random(seed))
    schedule.began(0.0)
    now = after_batches(schedule, 0.0, 5, length=0.4)
    schedule.planned(now)
    assert schedule.at is not None
    assert now < schedule.at < now + 0.4


def test_a_kill_that_came_too_late_is_postponed_and_not_counted() -> None:
    """A written batch disarms the kill, and a kill between two batches does not count."""
    schedule = KillSchedule(1, 1.0, random.Random(0))
    schedule.began(0.0)
    now = after_batches(schedule, 0.0, 5)
    schedule.planned(now)
    schedule.written(now + 0.01)
    assert schedule.at is None
    schedule.killed(in_batch=False)
    assert not schedule.done
    schedule.killed(in_batch=True)
    assert schedule.done


def test_no_kill_is_armed_without_kills() -> None:
    """A demo without kills never arms one."""
    schedule = KillSchedule(0, 1.0, random.Random(0))
    schedule.began(0.0)
    schedule.planned(after_batches(schedule, 0.0, 10))
    assert schedule.at is None


GRANDPARENT = """
import subprocess, sys, time
child = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)']); {}"
subprocess.Popen([sys.executable, "-c", child.format("time.sleep(300)")])
subprocess.Popen([sys.executable, "-c", child.format("sys.exit()")]).wait()  # leaves an orphan behind
print("orphaned", flush=True)
time.sleep(300)
"""


def test_a_kill_takes_the_entire_process_tree() -> None:
    """Children, grandchildren and orphans of the driver's session are gone after one kill."""
    root = subprocess.Popen([sys.executable, "-c", GRANDPARENT], start_new_session=True, stdout=subprocess.PIPE)
    who = (root.pid, psutil.Process(root.pid).create_time())
    try:
        # Until this line is read, the orphan's short-lived parent may be counted in place of the grandchild.
        assert root.stdout is not None
        assert root.stdout.readline() == b"orphaned\n"
        wait_until(lambda: len(family(*who)) == 4, "the driver, its child, its grandchild and the orphan", limit=30)
        processes = family(*who)
        assert kill_tree(*who) == 4
        assert root.wait(10) == -9
        wait_until(lambda: not any(map(alive, processes)), "the process tree to end", limit=10)
    finally:
        kill_tree(*who)
        root.communicate(timeout=10)


def test_a_reused_pid_is_left_alone() -> None:
    """The pid of a driver that ended long ago may belong to any process by now."""
    other = psutil.Process()
    assert other in family(other.pid, other.create_time())
    assert family(other.pid, other.create_time() - 60) == []
    assert kill_tree(other.pid, other.create_time() - 60) == 0


def alive(process: psutil.Process) -> bool:
    """Return whether the process runs; one that nothing has waited for yet does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
