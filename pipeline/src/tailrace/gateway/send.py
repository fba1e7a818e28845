"""Sending Arrow rows as records: by batch where possible, otherwise one by one.

librdkafka's batches carry only key and value. Rows with headers, a timestamp or a partition of their own, rejected
rows, and everything outside a transaction (where every delivery report counts) go one by one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import errors
from tailrace.gateway import Assignment
from tailrace.gateway.librdkafka import messages
from tailrace.gateway.producers import SinkProducer
from tailrace.gateway.sender import Sender
from tailrace.kafka.clients import sendable
from tailrace.kafka.rejected_headers import (
    HEADER_AT,
    HEADER_BATCH,
    HEADER_DETAIL,
    HEADER_PIPELINE,
    HEADER_REASON,
    HEADER_SINK_TOPIC,
    HEADER_STAGE,
    NOT_UTF8_IN_HEADER,
    NUL_IN_HEADER,
)

NO_TOPIC = "no topic"
BAD_TOPIC = "not a topic's name"
OTHER_TOPIC = "not among sink.topics"
NO_PARTITION = "no such partition"

_COLUMNS = ("topic", "partition", "key", "value", "headers", "timestamp", "reason")
_POLL_EVERY = 1000  # records between two polls for delivery reports
_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")


@dataclass
class Counts:
    """What was sent."""

    out: int = 0
    rejected: int = 0
    size: int = 0
    reasons: dict[str, int] = field(default_factory=dict)  # rejected records by reason


def send(sender: Sender, task: Assignment, batches: Iterator[Any]) -> Counts:
    """Hand over all rows, and return what was sent."""
    counts = Counts()
    for batch in batches:
        remaining = batch
        if isinstance(sender, SinkProducer) and sender.takes_batches:
            remaining = _by_batch(sender, task, batch, counts)
        _one_by_one(sender, task, remaining, counts)
        sender.poll()
    return counts


def refusal(topic: str | None, allowed: tuple[str, ...] = ()) -> str | None:
    """Return why no record can go to this topic; None if one can."""
    if topic is None:
        return NO_TOPIC
    if not _TOPIC.fullmatch(topic):
        return BAD_TOPIC
    return OTHER_TOPIC if allowed and topic not in allowed else None


def _by_batch(sender: SinkProducer, task: Assignment, batch: Any, counts: Counts) -> Any:
    """Hand over the rows that can go in one call, and return the others."""
    good = batch.column("reason").is_null().to_numpy(zero_copy_only=False)
    chosen = {topic: mask & good for topic, mask in _topics(task, batch).items()}
    for topic in chosen:
        sender.require(topic, task.topic)
    going = np.logical_or.reduce([*chosen.values(), np.zeros(batch.num_rows, dtype=bool)])
    if not going.any() or _particular(batch, going):
        return batch  # one particular row sends all one by one: the others would overtake it
    made = messages(batch.column("key"), batch.column("value"))
    for topic, mask in chosen.items():
        part = made[mask]
        sender.offer(topic, part)
        counts.out += len(part)
        counts.size += int(part["value_size"].sum() + part["key_size"].sum())
    return batch.filter(pa.array(~going)) if not going.all() else batch.slice(0, 0)


def _topics(task: Assignment, batch: Any) -> dict[str, Any]:
    """Return the valid topics of the batch's rows, each with a mask of its rows."""
    column = batch.column("topic")
    if column.null_count == len(column):
        return (
            {task.topic: np.ones(len(column), dtype=bool)} if task.topic is not None and not refusal(task.topic) else {}
        )
    if task.topic is not None:
        column = column.fill_null(task.topic)
    coded = pc.dictionary_encode(column)
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    names = coded.dictionary.to_pylist()
    return {name: codes == number for number, name in enumerate(names) if refusal(name, task.topics) is None}


def _particular(batch: Any, going: Any) -> bool:
    """Return whether any of these rows has headers, a timestamp or a partition of its own."""
    timestamps = batch.column("timestamp").is_valid().to_numpy(zero_copy_only=False)
    partitions = batch.column("partition").is_valid().to_numpy(zero_copy_only=False)
    lengths = pc.list_value_length(batch.column("headers")).fill_null(0).to_numpy(zero_copy_only=False)
    return bool(((timestamps | partitions | (lengths > 0)) & going).any())


def _one_by_one(sender: Sender, task: Assignment, batch: Any, counts: Counts) -> None:
    columns = [batch.column(name).to_pylist() for name in _COLUMNS]
    known: dict[str | None, str | None] = {}
    asked: set[str] = set()  # topics whose partitions were asked for, for a row that names another one
    for topic, partition, key, value, headers, timestamp, reason in zip(*columns, strict=True):
        place = topic if topic is not None else task.topic
        if place not in known:
            known[place] = refusal(place, task.topics)
            if place is not None and known[place] is None:
                sender.require(place, task.topic)
        why, detail = reason if reason is not None else known[place], None
        if why is None and place is not None and partition is not None and partition < 0:
            why, detail = NO_PARTITION, f"partition {partition} of the topic {place!r}"
        elif why is None and place is not None and partition is not None:
            count = sender.lacking(place, partition, again=place not in asked)
            if count is not None:
                asked.add(place)
                why, detail = NO_PARTITION, f"partition {partition} of the topic {place!r}, which has {count}"
        if why is None and any("\0" in (each["key"] or "") for each in headers or ()):
            why = NUL_IN_HEADER
        record: dict[str, Any] = {"topic": place, "key": key, "value": value}
        listed = [(each["key"], each["value"]) for each in headers] if headers else []
        if why is not None:
            record["topic"] = task.rejected
            if task.rejected is None:
                raise errors.SinkColumnsInvalid(
                    f"{task}: a row has {why} and no topic of rejected records is set",
                    kept="the batch's transaction was aborted; nothing of it was delivered",
                    then="give every row a topic, a partition that it has, and header keys in UTF-8 without NUL; or "
                    "set the option rejected.topic",
                )
            listed = [(key.replace("\0", "\\0"), content) for key, content in listed]
            listed += _where(task, why, place, detail, judged=reason is None)
            counts.rejected += 1
            counts.reasons[why] = counts.reasons.get(why, 0) + 1
        else:
            if partition is not None:
                record["partition"] = partition
            if timestamp is not None:
                record["timestamp"] = sendable(timestamp)
            counts.out += 1
        if listed:
            record["headers"] = listed
        sender.send(**record)
        counts.size += len(value or b"") + len(key or b"")
        if (counts.out + counts.rejected) % _POLL_EVERY == 0:
            sender.poll()


def _where(
    task: Assignment, reason: str, topic: str | None, detail: str | None, *, judged: bool
) -> list[tuple[str, bytes]]:
    """Return the headers of a rejected record that only the sink knows, which may have `judged` it."""
    known = {
        HEADER_PIPELINE: task.pipeline,
        HEADER_BATCH: str(task.batch),
        HEADER_AT: str(int(time.time() * 1000)),
    }
    if judged or reason in {NO_TOPIC, BAD_TOPIC, OTHER_TOPIC, NO_PARTITION, NOT_UTF8_IN_HEADER}:
        known |= {HEADER_REASON: reason, HEADER_STAGE: "sink"}
        known |= {HEADER_DETAIL: detail} if detail is not None else {}
        known |= {HEADER_SINK_TOPIC: topic} if topic is not None else {}
    return [(name, value.encode()) for name, value in known.items()]
