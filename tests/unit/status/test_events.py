"""Events: each has its JSON form, a line in the terminal or a row, and listeners in an order."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from tailrace.status import events
from tailrace.status.event_lines import line
from tailrace.status.events import BatchPlanned, BatchWritten, Event, Noted, to_each

WRITTEN = BatchWritten(
    batch=3, read=10, limit=100, out=9, rejected=1, skipped=0, sinks=2, producers=1, seconds=0.5, commit_ms=3.1, lag=7
)
EXAMPLES: list[Event] = [
    events.Starting("orders"),
    events.Serving("http://127.0.0.1:9760/"),
    events.Started("orders", "ab", 4),
    events.Ready("orders", "ab"),
    events.StandingBy("orders", "ab", {"run": "cd", "host": "/127.0.0.1"}, ("workers: lost",)),
    BatchPlanned(4, 10, 2, replay=True),
    WRITTEN,
    events.Idle(4),
    events.OffsetsReset("in-0: gone"),
    events.OffsetStoreReport("zookeeper is written again"),
    events.Warned("sink.partitions has no effect"),
    Noted("a note"),
    events.Changed("the function"),
    events.LeaseProblem("denied"),
    events.BrokersAway("no broker answered"),
    events.BrokersBack(),
    events.ExecutorsWanted(3, 2, 12_000),
    events.Stopped("SIGTERM was received", 4),
]


def test_every_kind_of_event_has_an_example_here() -> None:
    """So that the tests below speak of all of them; names are unique."""
    assert {type(each) for each in EXAMPLES} == set(get_args(Event))
    assert len({each.event for each in EXAMPLES}) == len(EXAMPLES)


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.event)
def test_event_is_one_json_object_that_names_its_kind(event: Event) -> None:
    """Programs read it from `tailrace run --output json`."""
    found = json.loads(json.dumps(event.as_dict()))
    assert next(iter(found)) == "event"
    assert found["event"] == event.event


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.event)
def test_terminal_shows_every_event_but_a_plan(event: Event) -> None:
    """A batch has its row when it is written; what has no line would be hidden in text mode."""
    if isinstance(event, BatchPlanned | BatchWritten):
        assert line(event) is None
    else:
        assert line(event)


def test_scaling_of_executors_is_shown_with_its_numbers() -> None:
    """Text mode once hid it, because its name had no case."""
    assert line(events.ExecutorsWanted(3, 2, 12_000)) == "executors: 3 wanted, 2 present, 12,000 records wait"


def test_standby_that_never_led_says_so_when_it_stops() -> None:
    """It has no last batch."""
    assert line(events.Stopped("SIGTERM was received", None)) == (
        "stopped: SIGTERM was received; this standby had not taken over"
    )


def test_written_batch_calls_what_it_has_read_in() -> None:
    """The JSON name is older than the type, and public."""
    found = WRITTEN.as_dict()
    assert (found["in"], found["limit"]) == (10, 100)
    assert "read" not in found


def test_replayed_batch_has_no_limit() -> None:
    """The run that chose it is gone."""
    assert "limit" not in BatchWritten(**{**vars(WRITTEN), "limit": None}).as_dict()


def test_listeners_hear_an_event_in_their_order() -> None:
    """The user's function is the first."""
    heard: list[str] = []
    to_each(lambda event: heard.append("first"), lambda event: heard.append("second"))(Noted("a note"))
    assert heard == ["first", "second"]
