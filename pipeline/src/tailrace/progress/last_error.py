"""The last error that ended a driver of a pipeline, with the end of its log, kept in Kafka to outlive the driver.

It is for people: no decision reads it. It is the metadata of an offset in a consumer group of its own, so what reads
plans and markers, in this version or another, does not see it. It is committed in a transaction of the driver's
producer, so a driver that was fenced cannot overwrite what its successor wrote. The brokers forget it like other
offsets, after a week by default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from tailrace import errors
from tailrace.config import Pipeline
from tailrace.kafka.clients import client_options, committed
from tailrace.kafka.rights import on_groups
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import MAX_METADATA, errors_group

# When, of which kind (a warning, a change, …), and the text.
Line = tuple[float, str, str]
Lines = Sequence[Line]

_WRITE_LIMIT = 5.0  # seconds; the driver is about to end, and a supervisor or a standby waits for that
_READ_LIMIT = 10.0
_SHORTEST = 40  # characters that a part is cut to, at least
_PARTS: Final = ("what", "next", "kept", "title")  # shortened in this order
# After these the brokers would not answer, or not accept it.
_HOPELESS = (errors.BrokerUnreachable, errors.CommitInDoubt, errors.DriverFenced)


def packed(error: Mapping[str, Any], lines: Lines = (), most: int = MAX_METADATA) -> str:
    """Return an error as text of at most this number of bytes, its parts shortened, with as many last lines as fit."""
    found = dict(error) | {"log": []}
    for part in _PARTS:
        text = str(found.get(part, ""))
        while len(_text(found).encode()) > most and len(text) > _SHORTEST:
            text = text[: max(_SHORTEST, len(text) * 9 // 10)]
            found[part] = f"{text}…"
    for line in reversed(lines):
        longer = found | {"log": [line, *found["log"]]}
        if len(_text(longer).encode()) > most:
            break
        found = longer
    return _text(found)


def _text(error: Mapping[str, Any]) -> str:
    text = json.dumps(error, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace").decode()  # half a character, in a record's text, has no bytes


def write(ledger: Ledger, pipeline: Pipeline, error: errors.TailraceError, run: str, at: float, lines: Lines) -> None:
    """Write the error that ends this run; raise an error if the brokers do not accept it."""
    if not isinstance(error, _HOPELESS):
        text = packed(error.as_dict() | {"run": run, "at": at}, lines)
        ledger.note(errors_group(pipeline.pipeline), text, _WRITE_LIMIT)


def read(pipeline: Pipeline) -> dict[str, Any] | None:
    """Return the last error, with `run`, `at` and the lines before it in `log`; None if this version can read none."""
    name = pipeline.pipeline
    consumer = Consumer(client_options(pipeline.kafka) | {"group.id": errors_group(name), "enable.auto.commit": False})
    try:
        place = TopicPartition(pipeline.ledger.topic, 0)
        found = committed(consumer, [place], "reading the last error", [on_groups(name)], _READ_LIMIT)
    finally:
        consumer.close()
    return unpacked(found[0].metadata) if found and found[0].offset >= 0 else None


def unpacked(text: str | None) -> dict[str, Any] | None:
    """Return the error in a text; None for anything else."""
    try:
        error = json.loads((text or "").rstrip("\0"))
    except ValueError:
        return None
    if not isinstance(error, dict) or not isinstance(error.get("at"), int | float):
        return None
    if not all(isinstance(error.get(part), str) for part in ("error", "title", "what", "kept", "next", "run")):
        return None
    lines = error.get("log")
    return error | {"log": [tuple(each) for each in lines if _is_line(each)] if isinstance(lines, list) else []}


def _is_line(found: object) -> bool:
    return (
        isinstance(found, list)
        and len(found) == 3
        and isinstance(found[0], int | float)
        and all(isinstance(each, str) for each in found[1:])
    )
