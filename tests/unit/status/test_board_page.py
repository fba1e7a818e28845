"""What the page shows besides figures: states, searches, starts, earlier errors and logs, changes."""

from __future__ import annotations

import json

from support.boards import Clock, batch, lag
from tailrace.gateway import Written
from tailrace.progress.plan import SinkPartition
from tailrace.status.board import HISTORY, Board
from tailrace.status.events import (
    BatchPlanned,
    BrokersAway,
    BrokersBack,
    Changed,
    ExecutorsWanted,
    Noted,
    Ready,
    StandingBy,
    Started,
    Starting,
)
from tailrace.status.port import health

FAILURE = {"error": "TR-401", "title": "function failed", "what": "ValueError", "kept": "all", "next": "look"}


def state(board: Board) -> tuple[str, float]:
    """Return the state in the status document, and since when it is."""
    found = board.status()["health"]
    return found["state"], found["since"]


def test_state_keeps_its_beginning_while_the_figures_move(board: Board, clock: Clock) -> None:
    """The brokers go away for a while, and the pipeline is well again from then on."""
    board.heard(Ready("p", "run"))
    board.finished(batch(clock))
    assert state(board) == ("well", 1000)
    clock.now += 50
    board.heard(BrokersAway("timed out"))
    clock.now += 7
    assert state(board) == ("stuck", 1050)
    board.heard(BrokersBack())
    clock.now += 7
    board.lag(lag(clock, 0))
    assert state(board) == ("well", 1057)
    said = [entry["text"] for entry in board.status()["log"] if entry["kind"] == "health"]
    assert [text.partition(":")[0] for text in said] == ["starting → well", "well → stuck", "stuck → well"]


def test_search_for_faulty_records_is_a_state_until_its_batch_is_delivered(board: Board, clock: Clock) -> None:
    """The driver's note begins it, another note does not end it, and the liveness probe waits for its end."""
    board.heard(Ready("p", "run"))
    board.heard(BatchPlanned(7, 0, 0, replay=False))
    board.heard(Noted("batch 7: ValueError: no; looking for the records, for up to 300 s"))
    clock.now += 299
    board.heard(Noted("something else"))
    board.lag(lag(clock, 9_000))
    assert state(board) == ("searching", 1000)
    assert health(board).status == 200
    clock.now += 62
    assert state(board)[0] == "stuck"
    assert health(board).status == 503
    board.finished(batch(clock, 7))
    board.lag(lag(clock, 0))
    assert state(board)[0] == "well"


def test_standby_names_the_driver_that_leads(board: Board) -> None:
    """A person who opened the wrong page finds the right one."""
    board.heard(StandingBy("p", "run", {"run": "ab12", "host": "10.1.2.3"}, ()))
    assert board.status()["health"]["why"] == "Run ab12 on 10.1.2.3 leads; this driver can take over at once."
    board.heard(StandingBy("p", "run", None, ()))
    assert board.status()["health"]["why"].startswith("No driver leads; ")


def test_start_says_what_it_is_doing(board: Board, clock: Clock) -> None:
    """A page that only says that it starts is of no use when it does not end."""
    fresh = Board(board.pipeline, "run", clock)
    assert "asks for the brokers" in fresh.status()["health"]["why"]
    fresh.heard(Starting("p"))
    assert "starts Spark" in fresh.status()["health"]["why"]
    fresh.heard(Started("p", "run", 4))
    assert "finishes the open batch" in fresh.status()["health"]["why"]


def test_error_of_the_run_before_is_shown_with_its_explanation(board: Board) -> None:
    """It arrives after the driver has begun; a later error replaces it, an earlier one does not."""
    board.failed(FAILURE | {"run": "before", "at": 900.0})
    shown = board.status()["error"]
    assert (shown["run"], shown["at"]) == ("before", 900.0)
    assert shown["explanation"].startswith("The pipeline's function raised")
    board.failed(FAILURE | {"run": "older", "at": 800.0})
    assert board.status()["error"]["run"] == "before"
    board.failed(FAILURE | {"error": "XX-1", "run": "run", "at": 1000.0})
    assert (board.status()["error"]["run"], board.status()["error"]["explanation"]) == ("run", None)
    assert [entry["at"] for entry in board.status()["log"]] == sorted(entry["at"] for entry in board.status()["log"])


def test_log_of_the_run_before_precedes_that_of_this_one(board: Board, clock: Clock) -> None:
    """Its last lines are kept with its error; what changed last is this run's change."""
    board.heard(Changed("the function has changed"))
    log = [(890.0, "warning", "slow"), (891.0, "change", "one executor")]
    board.failed(FAILURE | {"run": "before", "at": 900.0, "log": log})
    status = board.status()
    assert [entry["text"] for entry in status["log"]][:2] == ["slow", "one executor"]
    assert status["change"]["text"] == "the function has changed"
    assert "log" not in status["error"]
    assert [line for line in board.lines() if line[0] < 900] == log


def test_last_change_is_the_code_the_executors_or_the_gateways(board: Board, clock: Clock) -> None:
    """Each is written down with its time; a report without news is not."""

    def changed() -> str:
        return str(board.status()["change"]["text"])

    board.heard(Changed("the function has changed"))
    assert changed() == "the function has changed"
    board.executors(2, 2)
    board.executors(2, 2)
    assert changed() == "the function has changed"
    board.executors(2, 1)
    assert changed() == "executors: 1 present, 2 before, 2 wanted"
    board.heard(ExecutorsWanted(3, 1, 9_000))
    assert changed().startswith("executors: 3 wanted")
    board.finished(batch(clock, 0))
    assert changed().startswith("executors: 3 wanted")
    board.finished(batch(clock, 1, Written(SinkPartition(0), False, out=1, gateway="x")))
    assert changed() == "sink partitions moved to gateway x"


def test_history_reaches_further_back_than_the_batches(board: Board, clock: Clock) -> None:
    """A day in slots of minutes: 100 batches may be ten seconds."""
    for number in range(1_000):
        board.finished(batch(clock, number))
        clock.now += 60
    found = board.history()
    assert len(board.status()["batches"]) == HISTORY
    assert sum(slot["batches"] for slot in found["coarse"]["slots"]) == 1_000
    assert len(found["fine"]["slots"]) == 60
    assert json.loads(json.dumps(found)) == found
