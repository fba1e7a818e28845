"""Committed records of a topic from a place that a person names: its start, its end, an offset or a time."""

from __future__ import annotations

import re
import time
from collections.abc import Generator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tailrace.admin.since import first_since
from tailrace.config import Isolation, Kafka, units
from tailrace.errors import OptionRefused
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.reader import Message, Range, follow, read_ranges

START: Final = "start"
END: Final = "end"
FORMS: Final = f"{START}, {END}, PARTITION:OFFSET, or a time such as 2026-11-20T10:00:00Z"
_PLACE = re.compile(r"(\d{1,9}):(\d{1,18})")
_KEPT = "nothing was read"
_EVERY = 0.2  # seconds between two looks at the end


@dataclass(frozen=True)
class Beginning:
    """Where the records begin: a word, a partition and its offset, or a time."""

    word: str = START
    place: tuple[int, int] | None = None
    at: datetime | None = None


def parse(text: str) -> Beginning:
    """Return the place that the text names."""
    if text in {START, END}:
        return Beginning(text)
    found = _PLACE.fullmatch(text)
    if found is not None:
        return Beginning("", (int(found[1]), int(found[2])))
    at = units.moment(text)
    if at is None:
        raise OptionRefused(f"--from {text!r} is no place to begin", kept=_KEPT, then=f"name one of these: {FORMS}")
    return Beginning("", at=at)


def records(kafka: Kafka, topic: str, beginning: Beginning, wait: float) -> Generator[Message]:
    """Yield the records from there to the end of each partition, and go on until `wait` seconds bring nothing.

    With a partition and an offset, only that partition is read.
    """
    if beginning.word:
        with follow(kafka, topic, newest=beginning.word == END, wait=wait) as found:
            yield from found
        return
    cluster = Cluster(kafka)
    reached = _starts(cluster, topic, beginning)
    # The broker may find a transaction's marker, which may be younger than the records that follow it.
    since = beginning.at.timestamp() * 1000 if beginning.at is not None else 0.0
    heard = time.monotonic()
    while True:
        ends = cluster.latest(reached, committed=True)
        ranges = {place[1]: Range(start, ends[place]) for place, start in reached.items() if ends[place] > start}
        for message in read_ranges(kafka, topic, ranges, isolation=Isolation.READ_COMMITTED):
            if message.timestamp >= since:
                yield message
            heard = time.monotonic()  # the time that the caller takes does not count
        reached = {place: max(start, ends[place]) for place, start in reached.items()}
        if time.monotonic() - heard >= wait:
            return
        time.sleep(min(wait, _EVERY))


def _starts(cluster: Cluster, topic: str, beginning: Beginning) -> dict[tuple[str, int], int]:
    places = [(topic, number) for number in range(cluster.require([topic], "topic")[topic])]
    if beginning.at is not None:
        return dict(first_since(cluster, places, beginning.at.timestamp()))
    number, offset = beginning.place or (0, 0)
    place = (topic, number)
    if place not in places:
        raise OptionRefused(
            f"{topic} has no partition {number}: it has {len(places)}, from 0 on", kept=_KEPT, then="name one of them"
        )
    low, high = cluster.earliest([place])[place], cluster.latest([place])[place]
    if not low <= offset <= high:
        raise OptionRefused(
            f"{topic}-{number} has no offset {offset}: it holds {low} to {high}", kept=_KEPT, then="name one of these"
        )
    return {place: offset}
