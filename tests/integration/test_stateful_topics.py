"""Stateful pipelines whose source topic is deleted and created again: no offset of it means anything then."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.pipelines import Bench, as_json, events_of
from support.threads import deleted, recreated
from tailrace import errors
from tailrace.progress.ledger import Ledger
from tailrace.progress.stream_plan import StreamPlan
from tailrace.startup.run import run
from tailrace.testing import Record, produce

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("soon"), pytest.mark.takes(25)]

MakeBench = Callable[..., Bench]
FUNCTION = """
    import time
    from pathlib import Path
    from pyspark.sql import functions as F
    from pyspark.sql.types import LongType

    def first(frame):
        def check(number):
            if number == 4 and Path({folder!r}, "broken").exists():
                raise ValueError("the fault of the test")
            while number == 50 and Path({folder!r}, "held").exists():
                time.sleep(0.1)
            return number
        return frame.dropDuplicates(["id"]).select(F.udf(check, LongType())("id").alias("id"))
"""


@pytest.fixture
def one(bench: MakeBench) -> Bench:
    """Fill a source partition with ten records."""
    made = bench()
    made.write("keep.py", FUNCTION.format(folder=str(made.folder)))
    made.send(records(range(10)))
    return made


def records(numbers: range) -> list[bytes | None]:
    """Return a record for each of these ids."""
    return [b'{"id": %d}' % number for number in numbers]


def ids(one: Bench) -> list[int]:
    """Return what the sink has, sorted."""
    return sorted(json.loads(value or b"")["id"] for value in one.values())


def sections(one: Bench, loss: str = "stop") -> dict[str, Any]:
    """Return the sections of a stateful pipeline."""
    return {
        "source": {"format": "json", "schema": "id long", "partitions": None, "on_data_loss": loss},
        "process": {"function": "keep.py:first"},
        "sink": {"format": "json"},
        "checkpoint": str(one.folder / "state"),
    }


@pytest.mark.parametrize("count", [6, 15])
def test_topic_that_was_created_again_stops_a_stateful_pipeline_and_is_read_whole_with_reset(
    one: Bench, count: int
) -> None:
    """It has fewer records than were read, or more; from the old offset on, Spark would read only the rest."""
    one.run(**sections(one))
    recreated(one, one.source)
    one.send(records(range(100, 100 + count)))
    with pytest.raises(errors.PlanOfAnother, match="deleted and created again") as caught:
        one.run(**sections(one))
    assert "source.on_data_loss: reset" in caught.value.then
    events = one.run(**sections(one, "reset"))
    assert "reading it from its beginning" in events_of(events, "reset")[0]["what"]
    assert ids(one) == [*range(10), *range(100, 100 + count)]
    one.send(records(range(200, 203)))
    one.run(**sections(one))
    assert ids(one) == [*range(10), *range(100, 100 + count), *range(200, 203)]


def test_topic_that_is_created_again_after_an_upgrade_without_a_batch_is_noticed(one: Bench) -> None:
    """The plan of an earlier version names no ids; they are noted when the pipeline is idle."""
    one.run(**sections(one))
    with Ledger.of(one.pipeline(**sections(one))) as ledger:
        ledger.take()
        plan = ledger.latest()
        assert isinstance(plan, StreamPlan)
        ledger.settle(replace(plan, topics=None), plan.ends)
    one.run(**sections(one))
    recreated(one, one.source)
    one.send(records(range(100, 115)))
    with pytest.raises(errors.PlanOfAnother, match="deleted and created again"):
        one.run(**sections(one))
    assert ids(one) == list(range(10))


def test_open_batch_of_a_topic_that_was_created_again_is_not_finished_from_the_new_one(one: Bench) -> None:
    """Spark would read other records at the offsets of the batch, and take them for its own."""
    one.fail_in_part(**sections(one))
    before = ids(one)
    recreated(one, one.source)
    one.send(records(range(100, 115)))
    for loss in ("stop", "reset"):
        with pytest.raises(errors.PlanOfAnother, match="deleted and created again"):
            one.run(**sections(one, loss))
    assert ids(one) == before


def test_open_batch_of_a_topic_that_was_deleted_is_refused_with_a_way_out(one: Bench) -> None:
    """Spark would wait for it in each of its tries, and say that brokers are away."""
    other = one.topics(f"b{one.source}")
    produce(one.kafka, other, [Record(value) for value in records(range(20, 25))])
    made = {loss: sections(one, loss) for loss in ("stop", "reset")}
    for each in made.values():
        each["source"] |= {"topics": [], "pattern": f"{one.source}|{other}"}
    one.fail_in_part(**made["stop"])
    before = ids(one)
    deleted(one, other)
    with pytest.raises(errors.SourceChanged, match="no longer exist"):
        one.run(**made["stop"])
    with pytest.raises(errors.SourceChanged, match=f"reads {other}, which no longer exists") as caught:
        one.run(**made["reset"])
    assert "a new name and a new checkpoint" in caught.value.then
    assert ids(one) == before


def test_topic_that_is_created_again_while_a_stateful_pipeline_runs_stops_it(one: Bench) -> None:
    """It is idle meanwhile, and would go on at its old offset once the new topic has as many records."""
    idle = list[str]()

    def heard(event: dict[str, Any]) -> None:
        if event["event"] == "idle" and not idle:
            idle.append(event["event"])
            recreated(one, one.source)

    with pytest.raises(errors.PlanOfAnother, match="while the pipeline ran"):
        run(one.pipeline(**sections(one)), one.folder, emit=as_json(heard), spark=one.spark)
    assert ids(one) == list(range(10))


@pytest.mark.parametrize("crash", [True, False])
def test_batch_without_records_of_a_topic_that_was_created_again_is_finished(one: Bench, *, crash: bool) -> None:
    """It depends on nothing of that topic; refused, it would be lost with the state, and with nothing gained."""
    other = one.topics("other")
    both = {"topics": [one.source, other]}
    made = {loss: sections(one, loss) for loss in ("stop", "reset")}
    for each in made.values():
        each["source"] |= both
    one.run(**made["stop"])
    produce(one.kafka, other, [Record(each) for each in records(range(10, 13))])
    one.run(**made["stop"])
    one.send(records(range(50, 51)))
    held = Path(one.folder, "held")
    held.touch()

    def heard(event: dict[str, Any]) -> None:
        if event["event"] == "planned":
            recreated(one, other)
            produce(one.kafka, other, [Record(each) for each in records(range(100, 105))])
            if not crash:
                threading.Timer(3.0, held.unlink).start()

    stopped = made["stop"] | ({"batch": {"drain": 0.1}} if crash else {})
    with pytest.raises(errors.PlanOfAnother, match="while the pipeline ran"):
        run(one.pipeline(**stopped), one.folder, emit=as_json(heard), spark=one.spark)
    one.settle()
    if crash:
        held.unlink()
        with pytest.raises(errors.PlanOfAnother, match="which is finished now"):
            one.run(**made["reset"])
    assert ids(one) == [*range(13), 50]
    one.run(**made["reset"])
    assert ids(one) == [*range(13), 50, *range(100, 105)]
