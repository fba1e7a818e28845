"""What a person reads of an event of a run: its line on the terminal, and its entry in the log on the page."""

from __future__ import annotations

from typing import assert_never

from tailrace.status.events import (
    BatchPlanned,
    BatchWritten,
    BrokersAway,
    BrokersBack,
    Changed,
    Event,
    ExecutorsWanted,
    Idle,
    LeaseProblem,
    Noted,
    OffsetsReset,
    OffsetStoreReport,
    Ready,
    Serving,
    StandingBy,
    Started,
    Starting,
    Stopped,
    Warned,
)


def line(event: Event) -> str | None:
    """Return the line that the terminal shows for an event; None for one that has a row, or none of its own."""
    match event:
        case BatchPlanned() | BatchWritten():
            return None
        case Starting():
            return f"pipeline {event.pipeline}: starting Spark"
        case Serving():
            return f"status page: {event.url}"
        case Started():
            return f"pipeline {event.pipeline}: it leads; its next new batch is {event.batch}"
        case Ready():
            return "ready: reading new records"
        case StandingBy():
            who = f"run {event.leader['run']} on {event.leader['host']} leads" if event.leader else "nobody leads"
            return f"standby: ready, {who}{''.join(f'; not warm: {each}' for each in event.cold)}"
        case Idle():
            return f"batch {event.batch}: drained, waiting for records"
        case BrokersAway():
            return f"the brokers do not answer; delivered records are safe, waiting: {event.what}"
        case BrokersBack():
            return "the brokers answer again"
        case OffsetsReset():
            return f"offsets out of range: {event.what}"
        case Warned():
            return f"warning: {event.what}"
        case OffsetStoreReport() | Noted() | Changed():
            return event.what
        case LeaseProblem():
            return f"no standby can see this driver: {event.what}"
        case ExecutorsWanted():
            return f"executors: {event.wanted} wanted, {event.present} present, {event.waiting:,} records wait"
        case Stopped(batch=None):
            return f"stopped: {event.reason}; this standby had not taken over"
        case Stopped():
            return f"stopped: {event.reason}; the last batch was {event.batch}"
    assert_never(event)


def entry(event: Event) -> tuple[str, str] | None:
    """Return the kind and the text of an event in the log of the page; None for one that the log leaves out."""
    text = line(event) if not isinstance(event, Idle) else None
    if text is None:
        return None
    match event:
        case Warned() | OffsetsReset() | BrokersAway() | LeaseProblem():
            return "warning", text
        case Changed() | Started() | ExecutorsWanted():
            return "change", text
    return "note", text
