"""The driver's knowledge of its pipeline: when it is stalled, what was counted, and what /status contains."""

from __future__ import annotations

import json

from support.boards import PLACE, Clock, batch, lag, progress
from tailrace.gateway import Written
from tailrace.progress.plan import SinkPartition
from tailrace.status.board import HISTORY, Board
from tailrace.status.events import (
    BatchPlanned,
    BrokersAway,
    BrokersBack,
    Idle,
    Ready,
    StandingBy,
    Started,
    Stopped,
    Warned,
)
from tailrace.status.port import health, readiness, targets
from tailrace.status.snapshots import Finished, LagSeen, totals
from tailrace.telemetry import metrics


def test_a_driver_without_progress_is_stalled(board: Board, clock: Clock) -> None:
    """There is lag, and no batch has finished for too long; a finished batch ends the stall."""
    board.lag(lag(clock, 7))
    clock.now += 60
    board.lag(lag(clock, 9))
    assert health(board).status == 200
    clock.now += 1
    assert "lag 9" in board.stalled()
    assert health(board).status == 503
    assert b'tailrace_driver_stalled{pipeline="p"} 1.0' in board.measures.text()
    board.finished(batch(clock))
    assert health(board).status == 200


def test_a_pipeline_without_work_is_not_stalled(board: Board, clock: Clock) -> None:
    """This holds however long no records arrive; when some do, the time starts then."""
    board.finished(batch(clock))
    board.lag(lag(clock, 0))
    clock.now += 10_000
    assert not board.stalled()
    board.lag(lag(clock, 3))
    clock.now += 59
    assert not board.stalled()


def test_a_batch_that_hangs_is_a_stall(board: Board, clock: Clock) -> None:
    """This holds even if the lag is unknown."""
    board.heard(BatchPlanned(0, 0, 0, replay=False))
    clock.now += 61
    assert board.stalled()


def test_batch_that_may_take_long_is_no_stall_for_twice_its_target(board: Board, clock: Clock) -> None:
    """The probe ended a healthy driver in it, and the next one in the same batch, for ever."""
    long = board.pipeline.batch.model_copy(update={"target": 100.0})
    board.pipeline = board.pipeline.model_copy(update={"batch": long})
    board.heard(BatchPlanned(0, 0, 0, replay=False))
    clock.now += 199
    assert health(board).status == 200
    clock.now += 2
    assert health(board).status == 503


def test_batch_that_failed_and_was_delivered_all_the_same_is_no_stall(board: Board, clock: Clock) -> None:
    """The driver starts over, finds its markers, and has nothing to do; no batch ends that it had planned."""
    board.heard(BatchPlanned(0, 0, 0, replay=False))
    board.heard(Started("p", "run", 1))
    board.heard(Ready("p", "run"))
    clock.now += 10_000
    assert not board.stalled()


def test_phase_keeps_the_time_at_which_it_began(board: Board, clock: Clock) -> None:
    """A driver that stops says so several times a second, until its batch is done."""
    board.stopping()
    began = board.status()["since"]
    clock.now += 7
    board.stopping()
    board.heard(Stopped("SIGTERM was received", 3))
    assert (board.status()["phase"], board.status()["since"]) == ("stopping", began)


def test_a_standby_is_ready_and_never_stalled(board: Board, clock: Clock) -> None:
    """It does not read, so lag does not concern it."""
    board.heard(StandingBy("p", "run", None, ()))
    board.lag(lag(clock, 7))
    clock.now += 1000
    assert not board.stalled()
    assert readiness(board).status == 200
    board.stopping()
    assert readiness(board).status == 503


def test_a_driver_that_starts_is_not_ready(clock: Clock, board: Board) -> None:
    """It is ready once it reads new records: until then it may refuse what the ledger holds."""
    fresh = Board(board.pipeline, "run", clock)
    assert readiness(fresh).status == 503
    assert health(fresh).status == 200
    fresh.heard(Started("p", "run", 0))
    assert readiness(fresh).status == 503
    fresh.heard(Ready("p", "run"))
    assert readiness(fresh).status == 200


def test_a_standby_stays_ready_while_it_takes_over(clock: Clock, board: Board) -> None:
    """It has said that it would succeed; a Deployment need not see it fail in between."""
    fresh = Board(board.pipeline, "run", clock)
    fresh.heard(StandingBy("p", "run", {"run": "other", "host": "there"}, ()))
    fresh.heard(Started("p", "run", 4))
    assert readiness(fresh).status == 200


def test_consumed_equals_produced_plus_rejected(board: Board, clock: Clock) -> None:
    """All three are counted at the same time, when Spark has reported."""
    board.finished(batch(clock))
    assert board.measures.value(metrics.PRODUCED_RECORDS, "p") == 0
    board.progressed(progress())
    assert board.measures.value(metrics.CONSUMED_RECORDS, "p") == 10
    assert board.measures.value(metrics.CONSUMED_BYTES, "p") == 100
    assert board.measures.value(metrics.PRODUCED_RECORDS, "p") == 9
    assert board.measures.value(metrics.REJECTED_RECORDS, "p", "bad") == 1
    # The source was read twice, so Spark's rates are twice the real ones.
    assert board.measures.value(metrics.INPUT_RATE, "p") == 20


def test_a_retried_task_is_counted_once(clock: Clock) -> None:
    """Its second attempt found everything delivered: the number of records at the sink shows how many there were."""
    done = batch(clock, 0, Written(SinkPartition(0), True), Written(SinkPartition(1), False, out=4))
    counted = totals(progress(), done)
    assert (counted.consumed, counted.produced, counted.reasons) == (10, 9, {metrics.OTHER: 1})


def test_a_row_without_a_topic_is_rejected_by_the_sink(clock: Clock) -> None:
    """Spark counted it as produced; the gateway knows better."""
    reasons = {"bad": 1, "no topic": 2}
    done = batch(clock, 0, Written(SinkPartition(0), False, out=7, rejected=3, reasons=reasons))
    counted = totals(progress(), done)
    assert (counted.produced, counted.reasons) == (7, reasons)


def test_an_idle_stream_does_not_count_as_a_batch(board: Board, clock: Clock) -> None:
    """While idle, Spark reports about the batch that is to come."""
    board.finished(batch(clock))
    board.progressed(progress())
    board.progressed(progress(1, durationMs={"latestOffset": 3, "triggerExecution": 3}, observedMetrics={}))
    board.finished(batch(clock, 1))
    board.progressed(progress(1))
    spread = board.measures.spread(metrics.BATCH_SECONDS, "p")
    assert spread is not None
    assert spread.count == 2
    assert board.measures.value(metrics.CONSUMED_RECORDS, "p") == 20


def test_unreadable_offsets_are_not_lag(board: Board, clock: Clock) -> None:
    """They are markers and aborted records after the last record that was read."""
    seen = LagSeen(clock.now, {PLACE: 100}, {PLACE: 103}, nothing={PLACE: 103}, oldest=5.0)
    assert (seen.records, seen.seconds) == (0, 0.0)
    more = LagSeen(clock.now, {PLACE: 100}, {PLACE: 104}, nothing={PLACE: 103}, oldest=clock.now - 2)
    assert (more.records, more.seconds) == (4, 2.0)
    board.lag(seen)
    assert board.measures.value(metrics.LAG, "p", "in", 0) == 0


def test_open_transaction_upstream_is_shown_as_long_as_it_holds_a_partition(board: Board, clock: Clock) -> None:
    """Lag 0 alone would look healthy; an end that moves is held by a younger transaction."""
    other = ("in", 1)
    ends = {PLACE: 100, other: 7}
    first = LagSeen(clock.now, ends, ends, tops={PLACE: 130, other: 7}).after(None)
    clock.now += 60
    second = LagSeen(clock.now, ends, ends, tops={PLACE: 150, other: 9}).after(first)
    assert (second.records, second.beyond(PLACE), second.beyond(other), second.unstable) == (0, 50, 2, 52)
    assert (first.unstable_seconds, second.unstable_seconds) == (0, 60)
    board.lag(second)
    assert board.measures.value(metrics.UNSTABLE, "p", "in", 0) == 50
    assert board.measures.value(metrics.UNSTABLE_SECONDS, "p") == 60
    lags = board.status()["lag"]
    assert (lags["beyond"], lags["beyond_seconds"], lags["partitions"][0]["beyond"]) == (52, 60, 50)
    clock.now += 60
    moved = LagSeen(clock.now, ends, {PLACE: 120, other: 9}, tops={PLACE: 150, other: 9}).after(second)
    assert (moved.unstable, moved.unstable_seconds) == (30, 0)
    clock.now += 60
    board.lag(LagSeen(clock.now, ends, {PLACE: 150, other: 9}, tops={PLACE: 150, other: 9}).after(moved))
    assert board.measures.value(metrics.UNSTABLE, "p", "in", 0) == 0
    assert board.measures.value(metrics.UNSTABLE_SECONDS, "p") == 0


def test_state_and_observations_are_exported(board: Board, clock: Clock) -> None:
    """There is the state of a stateful pipeline, with its watermark, and what the function observes."""
    board.finished(batch(clock))
    board.progressed(
        progress(
            eventTime={"watermark": "2026-03-01T12:00:00.000Z"},
            stateOperators=[
                {"operatorName": "agg", "numRowsTotal": 5, "memoryUsedBytes": 64, "numRowsDroppedByWatermark": 2}
            ],
            observedMetrics={"orders": {"large": 3, "name": "x", "yes": True}},
        )
    )
    assert board.measures.value(metrics.WATERMARK, "p") == 1772366400
    assert board.measures.value(metrics.STATE_ROWS, "p", "0-agg") == 5
    assert board.measures.value(metrics.STATE_DROPPED, "p", "0-agg") == 2
    assert board.measures.values(metrics.OBSERVED) == {("p", "orders", "large"): 3}


def test_the_status_can_be_read_by_programs(board: Board, clock: Clock) -> None:
    """It is JSON, whatever has happened so far, and its size is bounded."""
    assert json.loads(json.dumps(board.status()))["batch"] is None
    for number in range(HISTORY + 20):
        board.finished(batch(clock, number))
        board.progressed(progress(number))
        board.heard(Warned(f"{number}"))
    board.lag(lag(clock, 3))
    board.executors(2, 1)
    found = json.loads(json.dumps(board.status()))
    assert len(found["batches"]) == HISTORY
    assert len(found["warnings"]) == 10
    assert found["batch"]["number"] == HISTORY + 19
    assert found["totals"]["produced"] == 9 * (HISTORY + 20)
    assert found["lag"]["partitions"] == [
        {"topic": "in", "partition": 0, "position": 100, "end": 103, "lag": 3, "beyond": 0}
    ]
    assert found["gateways"] == [{"name": "w", "address": "", "sinks": [0]}]


def test_prometheus_gets_the_addresses_of_the_gateways(board: Board, clock: Clock) -> None:
    """Each is listed once, however many sink partitions it has."""
    written = [Written(SinkPartition(n), False, gateway="w", address="127.0.0.1:9770") for n in range(3)]
    board.finished(batch(clock, 0, *written))
    assert json.loads(targets(board, "127.0.0.1:9760").body) == [
        {"targets": ["127.0.0.1:9760"], "labels": {"component": "driver"}},
        {"targets": ["127.0.0.1:9770"], "labels": {"component": "gateway"}},
    ]


def rates(board: Board) -> tuple[float, float]:
    """Return the arrival rate and the possible rate, in records a second."""
    found = board.status()["rates"]
    return found["input"], found["processed"]


def counted(clock: Clock, number: int, read: int, seconds: float) -> Finished:
    """Return a batch of the driver's own that finished now."""
    written = (Written(SinkPartition(0), False, out=read, read=read, gateway="w"),)
    return Finished(number, read, written, {"deliver": seconds}, False, clock.now, seconds=seconds)


def test_arriving_records_are_counted_over_the_time_between_two_batches(board: Board, clock: Clock) -> None:
    """With a trigger of 10 s, 1,000 records that take half a second arrive at 100 a second and are done at 2,000."""
    board.counted(counted(clock, 0, 1_000, 0.5))
    assert rates(board) == (2_000, 2_000)  # nothing more is known after the first batch
    clock.now += 10
    board.counted(counted(clock, 1, 1_000, 0.5))
    assert rates(board) == (100, 2_000)


def test_nothing_arrives_at_an_idle_pipeline(board: Board, clock: Clock) -> None:
    """The rates of its last batch are not shown for the rest of the night."""
    board.counted(counted(clock, 0, 1_000, 0.5))
    board.heard(Idle(0))
    assert rates(board) == (0, 0)


def test_liveness_probe_spares_a_driver_that_waits_for_brokers(board: Board, clock: Clock) -> None:
    """Its alert fires all the same; once the brokers answer, it has the usual time for a batch."""
    board.heard(Started("p", "run", 0))
    board.heard(Ready("p", "run"))
    board.lag(lag(clock, 10))
    board.heard(BrokersAway("timed out"))
    clock.now += 590
    assert board.stalled()
    assert health(board).status == 200
    board.heard(BrokersBack())
    board.lag(lag(clock, 10))
    clock.now += 40
    assert health(board).status == 200
    clock.now += 40
    assert health(board).status == 503


def test_liveness_probe_spares_no_driver_for_longer_than_its_patience(board: Board, clock: Clock) -> None:
    """Whatever was missed: brokers that are said to be away for ever must not keep a stuck driver alive."""
    board.heard(Started("p", "run", 0))
    board.heard(Ready("p", "run"))
    board.lag(lag(clock, 10))
    board.heard(BrokersAway("timed out"))
    clock.now += board.pipeline.kafka.patience + board.pipeline.metrics.stalled + 1
    assert health(board).status == 503
