"""The wait for other producers' transactions: what the driver waits for, what it says, and what it leaves to tasks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace import errors
from tailrace.config import Pipeline
from tailrace.driver import open_transactions
from tailrace.driver.shutdown import Stop
from tailrace.kafka.clients import TopicPartitions
from tailrace.kafka.source import CERTAIN_AFTER
from tailrace.progress.plan import BatchId

SECTIONS = {"pipeline": "p", "source": {"topics": ["in"]}, "sink": {"topic": "out"}}


@dataclass
class Cluster:
    """A cluster that gives one answer after another; the last one is repeated."""

    readable: list[int]  # to which offset committed records can be read
    log: list[int]  # where the log ends
    asked: list[bool] = field(default_factory=list)

    def latest(self, places: Any, committed: bool = False) -> TopicPartitions:
        """Return the ends; a question without partitions counts too."""
        answers = self.readable if committed else self.log
        self.asked.append(committed)
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return dict.fromkeys(places, answer)


class Unhurried(Stop):
    """A stop that nobody requests, and that takes no time to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.event.wait = lambda timeout=None: False  # type: ignore[method-assign]


def seconds() -> Iterator[float]:
    """Yield a clock that advances by a second with each look."""
    return map(float, itertools.count())


def waited(cluster: Cluster, *, overtaken: bool = False) -> list[str]:
    """Wait for the offset 20 of one partition; return what was said."""
    said, clock = list[str](), seconds()
    context: Any = SimpleNamespace(
        pipeline=Pipeline.model_validate(SECTIONS),
        cluster=cluster,
        stop=Unhurried(),
        emit=lambda event: said.append(event.what),
        ledger=SimpleNamespace(overtaken=lambda sure: overtaken),
        watcher=SimpleNamespace(tick=lambda: None),
    )
    assert open_transactions.wait(context, {("in", 0): 20}, BatchId(7), "the end of batch 7", lambda: next(clock))
    return said


def test_driver_says_once_which_transaction_it_waits_for() -> None:
    """It continues when the end can be read."""
    said = waited(Cluster(readable=[10, 10, 10, 21], log=[25]))
    ends = "ends in-0 at 10, before the end of batch 7, 20"
    assert said == [f"an open transaction of another producer {ends}: waiting for its end"]


def test_readable_end_is_not_waited_for() -> None:
    """Only one question is asked about it."""
    cluster = Cluster(readable=[20], log=[25])
    assert waited(cluster) == []
    assert cluster.asked.count(True) == 1


def test_log_that_certainly_ends_before_the_batch_is_not_waited_for() -> None:
    """Whether that is a loss is decided where the batch is read."""
    cluster = Cluster(readable=[10], log=[10])
    assert waited(cluster) == []
    assert cluster.asked.count(True) == CERTAIN_AFTER + 1


def test_log_that_seems_shorter_for_a_moment_is_waited_for() -> None:
    """A broker that lags knows less of it than there is."""
    cluster = Cluster(readable=[5, 5, 10, 20], log=[5, 5, 25])
    assert len(waited(cluster)) == 1


def test_driver_that_was_replaced_stops_waiting() -> None:
    """A long transaction leaves enough time for that."""
    with pytest.raises(errors.DriverFenced, match=r"batch 7 .* a newer driver has taken over"):
        waited(Cluster(readable=[10], log=[25]), overtaken=True)
