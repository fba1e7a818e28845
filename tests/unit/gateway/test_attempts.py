"""The conditions for a task attempt to commit."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.config import Delivery
from tailrace.errors import InputUnread, VerdictChanged
from tailrace.gateway import Assignment, ReadDone
from tailrace.gateway import attempts as module
from tailrace.gateway.attempts import Attempts, completed
from tailrace.gateway.schemas import ROW_SCHEMA
from tailrace.gateway.verdicts import Verdicts
from tailrace.progress.plan import BatchId, SinkPartition


def task(judges: bool) -> Assignment:
    """Return an attempt's assignment."""
    return Assignment(
        "p", BatchId(0), SinkPartition(0), 1, "d", Delivery.EXACTLY_ONCE, "ledger", "out", "rejected", "run",
        attempt="a", judges=judges,
    )  # fmt: skip


def rows(*values: bytes) -> pa.RecordBatch:
    """Return rejected rows."""
    return pa.RecordBatch.from_pylist([{"value": value, "reason": "bad"} for value in values], schema=ROW_SCHEMA)


def test_incomplete_attempt_may_not_commit(tmp_path: Path) -> None:
    """It must have read to the end and, if records may be rejected, judged every record."""
    attempts = Attempts(tmp_path)
    with pytest.raises(InputUnread):
        completed(attempts.finish("a"), task(judges=False))
    attempts.read("a", ReadDone(3))
    with pytest.raises(InputUnread):
        completed(attempts.finish("a"), task(judges=True))
    attempts.read("a", ReadDone(3))
    attempts.judged("a")
    assert completed(attempts.finish("a"), task(judges=True)).read == ReadDone(3)


def test_rejected_rows_beyond_the_bound_are_spilled_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They keep their order, and nothing of them is left afterwards."""
    monkeypatch.setattr(module, "IN_MEMORY", 200)
    attempts = Attempts(tmp_path)
    for number in range(20):
        attempts.aside("a", rows(b"%03d" % number * 20))
    assert list(tmp_path.iterdir())
    attempt = attempts.finish("a")
    assert attempt is not None
    found = [value for batch in attempt.aside.rows() for value in batch.column("value").to_pylist()]
    assert found == [b"%03d" % number * 20 for number in range(20)]
    attempt.aside.discard()
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
