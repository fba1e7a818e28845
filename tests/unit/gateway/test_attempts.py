"""The conditions for a task attempt to commit."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.config import Delivery
from tailrace.errors import InputUnread, VerdictChanged
from tailrace.gateway import Assignment, ReadDone
from tailrace.gateway import attempts as module
from tailrace.gateway.attempts import Aside, Attempt, Attempts, completed
from tailrace.gateway.schemas import ROW_SCHEMA
from tailrace.gateway.verdicts import Verdicts
from tailrace.progress.plan import BatchId, Range, SinkPartition


def task(judges: bool) -> Assignment:
    """Return an attempt's assignment."""
    return Assignment(
        "p", BatchId(0), SinkPartition(0), 1, "d", Delivery.EXACTLY_ONCE, "ledger", "out", "rejected", "run",
        attempt="a", judges=judges,
    )  # fmt: skip


def rows(*values: bytes) -> pa.RecordBatch:
    """Return rejected rows."""
    return pa.RecordBatch.from_pylist([{"value": value, "reason": "bad"} for value in values], schema=ROW_SCHEMA)


def values(attempt: Attempt) -> list[bytes]:
    """Return the values of an attempt's rejected rows."""
    return [value for batch in attempt.aside.rows() for value in batch.column("value").to_pylist()]


@dataclass
class Clock:
    """A clock that the test moves."""

    now: float = 0.0

    def __call__(self) -> float:
        """Return the current time."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """Return a clock that the test moves."""
    return Clock()


@pytest.fixture
def attempts(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attempts]:
    """Return the attempts of a gateway that keeps every rejected row on disk."""
    monkeypatch.setattr(module, "IN_MEMORY", 0)
    made = Attempts(tmp_path, clock)
    yield made
    clock.now += 2 * module.FORGET_AFTER
    made.sweep()


def test_incomplete_attempt_may_not_commit(attempts: Attempts) -> None:
    """It must have read to the end and, if records may be rejected, judged every record."""
    with attempts.held("a") as attempt, pytest.raises(InputUnread, match="before it had read all"):
        completed(attempt, task(judges=False))
    attempt.read = ReadDone(3)
    with pytest.raises(InputUnread, match="before it had read all"):
        completed(attempt, task(judges=True))
    attempt.judged = True
    with attempts.ending("a") as again:
        assert completed(again, task(judges=True)).read == ReadDone(3)


def test_rejected_rows_beyond_the_bound_are_spilled_to_disk(
    attempts: Attempts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They keep their order, and nothing of them is left afterwards."""
    monkeypatch.setattr(module, "IN_MEMORY", 200)
    with attempts.ending("a") as attempt:
        for number in range(20):
            attempt.aside.add(rows(b"%03d" % number * 20))
        assert list(tmp_path.iterdir())
        assert values(attempt) == [b"%03d" % number * 20 for number in range(20)]
    assert list(tmp_path.iterdir()) == []


def test_attempt_is_forgotten_a_day_after_its_last_conversation(
    attempts: Attempts, clock: Clock, tmp_path: Path
) -> None:
    """A conversation that is open holds it, and each one that ends lets the day begin again."""
    with attempts.held("run/0/7") as attempt:
        attempt.aside.add(rows(b"bad"))
        clock.now += 2 * module.FORGET_AFTER
        attempts.sweep()
    clock.now += module.FORGET_AFTER - 1
    attempts.sweep()
    with attempts.held("run/0/7") as again:
        assert again is attempt
    clock.now += module.FORGET_AFTER - 1
    attempts.sweep()
    assert list(tmp_path.iterdir())
    clock.now += 2
    attempts.sweep()
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        with attempts.held("run/0/7") as late:
            late.read, late.judged = ReadDone(1), True
            late.aside.add(rows(b"more"))
            with pytest.raises(InputUnread, match="no conversation touched it for 24 hours"):
                completed(late, task(judges=True))
    assert list(tmp_path.iterdir()) == []


def test_attempt_of_an_earlier_batch_is_forgotten_when_a_later_one_begins(attempts: Attempts, tmp_path: Path) -> None:
    """One that a conversation holds is kept until that ends; other runs and names of another form are not affected."""
    for name in ("run/9/1", "run/10/2", "other/9/3", "plain"):
        with attempts.held(name) as attempt:
            attempt.aside.add(rows(name.encode()))
    assert len(list(tmp_path.iterdir())) == 3
    with attempts.held("run/10/2") as held, attempts.held("run/11/4"):
        attempts.sweep()
        assert values(held) == [b"run/10/2"]
    attempts.sweep()
    assert len(list(tmp_path.iterdir())) == 2
    for name in ("run/9/1", "run/10/2", "run/10/5"):
        with attempts.held(name) as late, pytest.raises(InputUnread, match="batch 11 of the same run has begun"):
            completed(late, task(judges=False))


def test_memory_of_a_run_without_end_is_bounded(attempts: Attempts, tmp_path: Path) -> None:
    """Neither attempts that were never written, nor the names of those that were, add up."""
    for batch in range(50):
        with attempts.held(f"run/{batch}/{2 * batch}") as attempt:
            attempt.aside.add(rows(b"bad"))
        with attempts.ending(f"run/{batch}/{2 * batch + 1}"):
            pass
    assert [len(each) for each in (attempts._kept, attempts._over, attempts._begun)] == [1, 1, 1]
    assert len(list(tmp_path.iterdir())) == 1


def test_rows_that_come_after_the_end_of_an_attempt_are_dropped(attempts: Attempts, tmp_path: Path) -> None:
    """The function stopped early, and the gate was still at work."""
    with attempts.held("run/0/7") as judging:
        judging.aside.add(rows(b"bad"))
        with attempts.ending("run/0/7") as writing:
            assert writing is judging
        judging.aside.add(rows(b"more"))
    assert list(tmp_path.iterdir()) == []


def test_two_conversations_may_hand_over_rows_at_once(attempts: Attempts) -> None:
    """Neither loses one."""
    with attempts.ending("run/0/7") as attempt:

        def hand_over(first: int) -> None:
            for number in range(first, first + 300):
                attempt.aside.add(rows(b"%05d" % number))

        threads = [threading.Thread(target=hand_over, args=[1000 * number]) for number in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(30)
        wanted = [b"%05d" % (1000 * part + number) for part in range(4) for number in range(300)]
        assert sorted(values(attempt)) == wanted


def test_rejected_rows_are_discarded_although_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was buffered cannot be written, which does not matter any more."""
    monkeypatch.setattr(module, "IN_MEMORY", 0)
    (tmp_path / "aside").symlink_to("/dev/full")
    aside = Aside(tmp_path / "aside")
    aside.add(rows(b"bad"))
    aside.discard()
    assert list(tmp_path.iterdir()) == []


def verdicts(*offsets: int) -> Verdicts:
    """Return the verdicts of a reading that rejected these offsets."""
    named = [
        {
            "headers": [
                {"key": "tailrace.source.topic", "value": b"in"},
                {"key": "tailrace.source.partition", "value": b"3"},
                {"key": "tailrace.source.offset", "value": b"%d" % offset},
            ]
        }
        for offset in offsets
    ]
    found = Verdicts()
    list(found.rows(iter([pa.RecordBatch.from_pylist(named, schema=ROW_SCHEMA)])))
    return found


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ((1, 5), (1, 5), None),
        ((), (), None),
        ((1, 5), (1,), "in-3 offset 5 is now accepted"),
        ((1,), (1, 4), "in-3 offset 4 is now rejected"),
        (tuple(range(3000)), tuple(range(3000)), None),
        (tuple(range(0, 90_000, 31)), tuple(range(31, 90_000, 31)), "modulo 128"),
    ],
)
def test_verdict_mismatch_names_the_difference(
    before: tuple[int, ...], now: tuple[int, ...], words: str | None
) -> None:
    """The difference is a record if all verdicts fit into a marker, otherwise a stretch; a marker holds 4 KiB."""
    stored = verdicts(*before).text()
    assert len(stored) < 3000
    if words is None:
        verdicts(*now).check(stored, "p")
        return
    with pytest.raises(VerdictChanged, match=words):
        verdicts(*now).check(stored, "p")


@pytest.mark.parametrize(
    ("before", "now", "lost", "words"),
    [
        ((1, 5), (5,), (0, 4), None),
        ((1, 5), (), (0, 9), None),
        ((1, 5), (), (0, 4), "in-3 offset 5 is now accepted"),
        ((5,), (5, 7), (0, 4), "in-3 offset 7 is now rejected"),
        (tuple(range(0, 90_000, 31)), tuple(range(31, 90_000, 31)), (0, 1), None),
        (tuple(range(0, 90_000, 31)), tuple(range(31, 90_000, 31)), (1, 31), "modulo 128"),
        (tuple(range(0, 90_000, 31)), tuple(range(62, 90_000, 31)), (0, 62), None),
    ],
)
def test_lost_record_has_no_other_verdict(
    before: tuple[int, ...], now: tuple[int, ...], lost: tuple[int, int], words: str | None
) -> None:
    """A record that is still there must have the same one; of groups of offsets, only those without a lost one tell."""
    stored, ranges = verdicts(*before).text(), [Range("in", 3, *lost)]
    if words is None:
        verdicts(*now).check(stored, "p", ranges)
    else:
        with pytest.raises(VerdictChanged, match=words):
            verdicts(*now).check(stored, "p", ranges)


@pytest.mark.parametrize(
    ("before", "now", "left", "words"),
    [
        ((1, 5), (5,), (), None),
        ((1, 5), (), (), None),
        ((1, 5), (), (5,), "in-3 offset 5 is now accepted"),
        ((1, 5), (5, 7), (), "in-3 offset 7 is now rejected"),
    ],
)
def test_record_that_its_topic_has_no_more_has_no_other_verdict(
    before: tuple[int, ...], now: tuple[int, ...], left: tuple[int, ...], words: str | None
) -> None:
    """A compacted topic loses single records, which no range shows."""
    stored = verdicts(*before).text()

    def remaining(records: Set[tuple[str, int, int]]) -> Set[tuple[str, int, int]]:
        assert records == {("in", 3, offset) for offset in set(before) - set(now)}
        return {("in", 3, offset) for offset in left}

    if words is None:
        verdicts(*now).check(stored, "p", remaining=remaining)
    else:
        with pytest.raises(VerdictChanged, match=words):
            verdicts(*now).check(stored, "p", remaining=remaining)


def test_refusal_by_groups_of_offsets_says_that_compaction_may_be_the_reason() -> None:
    """More rejected records than a marker can list cannot be looked up."""
    stored = verdicts(*range(0, 90_000, 31)).text()
    with pytest.raises(VerdictChanged) as caught:
        verdicts(*range(31, 90_000, 31)).check(stored, "p", remaining=lambda records: set())
    assert "removed a rejected record from a compacted topic" in caught.value.then


def test_records_lost_elsewhere_excuse_no_other_verdict() -> None:
    """A task may read several source partitions."""
    with pytest.raises(VerdictChanged, match="in-3 offset 1 is now accepted"):
        verdicts().check(verdicts(1).text(), "p", [Range("in", 4, 0, 9), Range("other", 3, 0, 9)])
