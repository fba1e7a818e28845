"""Positions of the source that an answer of the brokers seems to contradict, although nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from support.pipelines import Bench, events_of
from support.threads import Line
from tailrace.startup.run import run
from tailrace.status.events import Event

pytestmark = pytest.mark.integration

MakeLine = Callable[..., Line]
MakeBench = Callable[..., Bench]


def opened(one: Line | Bench) -> Producer:
    """Begin a transaction of another producer in the source's only partition."""
    producer = Producer({"bootstrap.servers": one.kafka, "transactional.id": f"{one.name}.upstream"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(one.source, b"open", partition=0)
    producer.flush(30)
    return producer


@pytest.mark.parametrize("loss", ["stop", "reset"])
def test_position_behind_an_open_transaction_waits_for_its_end(line: MakeLine, loss: str) -> None:
    """A run that read uncommitted records stopped there; read_committed then sees an end before the position."""
    one = line(1)
    one.send([b"a"], partition=0)
    upstream = opened(one)
    one.send([b"b", b"c"], partition=0)
    one.run(source={"isolation": "read_uncommitted"})
    assert one.values() == [b"a", b"b", b"c", b"open"]
    committed: dict[str, Any] = {"isolation": "read_committed", "on_data_loss": loss}
    one.send([b"d"], partition=0)
    assert events_of(one.run(source=committed), "reset") == []
    assert one.values() == [b"a", b"b", b"c", b"open"]
    upstream.commit_transaction(30)
    one.run(source=committed)
    assert one.values() == [b"a", b"b", b"c", b"d", b"open"]


@pytest.mark.takes(15)
@pytest.mark.parametrize("loss", ["stop", "reset"])
def test_stateful_pipeline_behind_an_open_transaction_waits_for_its_end(bench: MakeBench, loss: str) -> None:
    """Spark would take the earlier end for lost data: it stops there, or reads the records again."""
    one = bench()
    sections: dict[str, Any] = {"checkpoint": str(one.folder / "state")}
    one.send([b"a"], 0)
    upstream = opened(one)
    one.send([b"b", b"c"], 0)
    one.run(source={"isolation": "read_uncommitted"}, **sections)
    one.send([b"d"], 0)
    events: list[dict[str, Any]] = []

    def emit(event: Event) -> None:
        events.append(event.as_dict())
        if "open transaction" in str(events[-1]):
            upstream.commit_transaction(30)

    pipeline = one.pipeline(source={"isolation": "read_committed", "on_data_loss": loss}, **sections)
    run(pipeline, one.folder, batch=True, emit=emit, spark=one.spark)
    assert events_of(events, "reset") == []
    assert one.values() == [b"a", b"b", b"c", b"d", b"open"]
