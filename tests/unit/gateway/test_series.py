"""The number of Prometheus series does not grow with the batches: neither the driver's nor a gateway's."""

from __future__ import annotations

import json

import pytest

from support.boards import progress
from tailrace.config import Delivery, Pipeline
from tailrace.errors import CommitInDoubt
from tailrace.gateway import Assignment, Written
from tailrace.gateway.counting import Counting
from tailrace.gateway.send import Counts
from tailrace.gateway.statistics import Statistics
from tailrace.progress.plan import BatchId, SinkPartition
from tailrace.status.board import Board
from tailrace.status.events import Started
from tailrace.status.snapshots import Finished, LagSeen, Progress
from tailrace.telemetry import metrics
from tailrace.telemetry.measure import Measures

BATCHES = 10_000
WARM = 100
PARTITIONS = 64
LIVES = 500  # batches after which executors and producers are replaced
REASONS = ("not json", "bad tweet")


def series(measures: Measures) -> set[str]:
    """Return everything that a scrape finds, by name and labels."""
    return {line.rsplit(" ", 1)[0] for line in measures.text().decode().splitlines() if not line.startswith("#")}


def test_a_driver_has_as_many_series_after_10000_batches_as_after_100() -> None:
    """This holds although executors come and go, offsets grow, and parts of batches are skipped."""
    pipeline = Pipeline.model_validate(
        {"pipeline": "p", "source": {"topics": ["in"]}, "sink": {"topic": "out", "format": "raw"}}
    )
    now = [1000.0]
    board = Board(pipeline, "run", lambda: now[0])
    board.heard(Started("p", "run", 0))
    warm: set[str] = set()
    for number in range(BATCHES):
        now[0] += 0.5
        gateway = f"executor-{number // LIVES}"
        reasons = {REASONS[number % len(REASONS)]: 1}
        written = tuple(
            Written(SinkPartition(each), number % 7 == 0, out=9, rejected=1, gateway=gateway, reasons=reasons)
            for each in range(4)
        )
        board.finished(Finished(number, 40, written, {"cut": 0.1, "deliver": 0.2}, number % 7 == 0, now[0]))
        board.progressed(progress_of(number))
        places = {("in", each): number * 10 for each in range(PARTITIONS)}
        board.lag(LagSeen(now[0], places, {place: at + 3 for place, at in places.items()}, oldest=now[0] - 1))
        board.executors(2, 2)
        if number + 1 == WARM:
            warm = series(board.measures)
    assert len(warm) > PARTITIONS
    assert series(board.measures) == warm


def progress_of(number: int) -> Progress:
    """Return what Spark reports about a batch of forty records, with what its function observes."""
    observed = {
        metrics.READ: {"consumed": 40, "size": 400},
        metrics.WRITTEN: {"produced": 36, "rejected": 4},
        "mine": {"large": number},
    }
    return progress(number, numInputRows=40, observedMetrics=observed)


def test_a_gateway_has_as_many_series_after_10000_batches_as_after_100() -> None:
    """Each of 64 sink partitions has a producer that is replaced now and then, and a commit in doubt."""
    now = [0.0]
    measures = Measures(metrics.EXECUTOR)
    counting, statistics = Counting(measures, lambda: now[0]), Statistics(measures, 1.0)
    listener = statistics.listener("p")
    warm: set[str] = set()
    for number in range(BATCHES):
        now[0] += 0.5
        task = Assignment(
            "p", BatchId(number), SinkPartition(number % PARTITIONS), PARTITIONS, f"digest-{number}",
            Delivery.EXACTLY_ONCE, "ledger", "out", "rejected", f"run-{number // LIVES}",
        )  # fmt: skip
        with counting.task("p"), counting.transaction(task) as opened:
            counting.delivered(task, Counts(out=5, rejected=1, size=80, reasons={REASONS[number % len(REASONS)]: 1}))
            counting.committed(opened, 2.0)
        if number % 50 == 49:
            with pytest.raises(CommitInDoubt), counting.transaction(task):
                raise CommitInDoubt("no answer")
            counting.skipped(task)
        if number % LIVES == LIVES - 1:
            listener.forget()
            listener = statistics.listener("p")
        listener.heard(report(number))
        counting.sample()
        if number + 1 == WARM:
            warm = seen(measures, counting, statistics)
    assert any(metrics.TRANSACTION_SECONDS.name in each for each in warm)
    assert seen(measures, counting, statistics) == warm


def seen(measures: Measures, counting: Counting, statistics: Statistics) -> set[str]:
    """Return its series at a scrape."""
    counting.look({})
    statistics.look()
    return series(measures)


def report(requests: int) -> str:
    """Return the statistics of a producer that talks to three brokers."""
    window = {"cnt": 1, "p50": 1, "p99": 2, "max": 3}
    brokers = {
        f"b{each}": {"nodeid": each, "source": "learned", "tx": requests, "waitresp_cnt": 1, "rtt": window}
        for each in range(3)
    }
    return json.dumps({"msg_size": 10, "brokers": brokers, "eos": {"txn_state": "Ready", "epoch_cnt": 1}})
