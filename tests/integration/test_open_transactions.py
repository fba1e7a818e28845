"""A batch left open at one isolation and finished at the other, while another producer's transaction is open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from support.pipelines import events_of
from support.threads import Line, first_part_only, nothing, run_in_threads
from tailrace import errors
from tailrace.driver import open_transactions
from tailrace.driver.shutdown import Stop
from tailrace.driver.thread_engine import ThreadEngine
from tailrace.progress.ledger import Ledger
from tailrace.status.events import Event

pytestmark = pytest.mark.integration

MakeLine = Callable[..., Line]
SENT = [b"a%d" % number for number in range(10)]
HELD = [b"t%d" % number for number in range(10)]


def opened(one: Line) -> Producer:
    """Write records in a transaction of another producer, and leave it open."""
    producer = Producer({"bootstrap.servers": one.kafka, "transactional.id": f"{one.name}.upstream"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in HELD:
        producer.produce(one.source, value, partition=0)
    producer.flush(30)
    return producer


def left_open(one: Line) -> Producer:
    """Plan a batch of uncommitted records and deliver nothing of it; return the producer of the transaction."""
    one.send(list(SENT), partition=0)
    upstream = opened(one)
    with pytest.raises(errors.QueryFailed):
        one.run(nothing, source={"isolation": "read_uncommitted"})
    return upstream


def finish(one: Line, meanwhile: Callable[[], object], stop: Stop | None = None, **source: Any) -> list[dict[str, Any]]:
    """Run at read_committed; call `meanwhile` once the run waits for the transaction; return the events."""
    pipeline, events = one.pipeline(source=source), list[dict[str, Any]]()

    def emit(event: Event) -> None:
        events.append(event.as_dict())
        if "open transaction" in str(events[-1]):
            meanwhile()

    def engine() -> ThreadEngine:
        return ThreadEngine(pipeline, one.folder, "finishing")

    run_in_threads(pipeline, one.folder, "finishing", engine, emit, stop=stop, until_read=True)
    return events


@pytest.mark.parametrize(("loss", "end"), [("stop", "commit"), ("reset", "commit"), ("reset", "abort")])
def test_open_batch_behind_an_open_transaction_waits_for_its_end(line: MakeLine, loss: str, end: str) -> None:
    """Its planned offsets are not lost: they are delivered once committed, and left out once aborted."""
    one = line(1)
    upstream = left_open(one)
    ended = upstream.commit_transaction if end == "commit" else upstream.abort_transaction
    events = finish(one, lambda: ended(30), on_data_loss=loss)
    assert events_of(events, "reset") == []
    (note,) = (each["what"] for each in events_of(events, "note"))
    assert f"{one.source}-0 at 10, before the end of batch 0, 20" in note
    assert one.values() == [*SENT, *(HELD if end == "commit" else [])]


def test_stop_ends_the_wait_for_an_open_transaction(line: MakeLine) -> None:
    """Nothing is delivered, and the next run finishes the batch."""
    one, stop = line(1), Stop()
    upstream = left_open(one)
    events = finish(one, lambda: stop("enough"), stop)
    assert (events_of(events, "planned"), one.values()) == ([], [])
    (stopped,) = events_of(events, "stopped")
    assert stopped["reason"] == "enough"
    upstream.commit_transaction(30)
    one.run()
    assert one.values() == [*SENT, *HELD]


def test_driver_that_waits_for_an_open_transaction_ends_when_another_takes_over(
    line: MakeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise both would deliver the batch once the transaction ends."""
    monkeypatch.setattr(open_transactions, "LEAD_EVERY", 0.0)
    one = line(1)
    upstream = left_open(one)
    taken_over = pytest.raises(errors.DriverFenced, match="a newer driver has taken over")
    with Ledger.of(one.pipeline()) as newer, taken_over:
        finish(one, newer.take)
    upstream.abort_transaction(30)


def test_batch_delivered_in_part_at_read_uncommitted_is_finished_once(line: MakeLine) -> None:
    """The sink partition that was delivered keeps its uncommitted records, and gets none of them again."""
    one = line(2)
    one.send(list(SENT), partition=1)
    upstream = opened(one)
    with pytest.raises(errors.QueryFailed):
        one.run(first_part_only, source={"isolation": "read_uncommitted"})
    assert one.values() == HELD
    finish(one, lambda: upstream.commit_transaction(30))
    one.run()
    assert one.values() == [*SENT, *HELD]


def test_batch_of_committed_records_is_finished_as_planned_at_read_uncommitted(line: MakeLine) -> None:
    """It ends before the open transaction, whose records follow in the next batch."""
    one = line(1)
    one.send(list(SENT), partition=0)
    upstream = opened(one)
    with pytest.raises(errors.QueryFailed):
        one.run(nothing)
    written = events_of(one.run(source={"isolation": "read_uncommitted"}), "written")
    assert [each["in"] for each in written] == [10, 10]
    assert one.values() == [*SENT, *HELD]
    upstream.commit_transaction(30)
    one.run()
    assert one.values() == [*SENT, *HELD]
