"""Records of the source topics, for a preview: a bounded number of them, without a group, and nothing is committed.

Offsets are no count of records: transactions end with a marker, and compaction leaves gaps. So a window of offsets is
read in each partition, and a larger one as long as too few records were in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from tailrace.admin.since import at_time
from tailrace.config import Pipeline, units
from tailrace.errors import OptionRefused
from tailrace.kafka import source
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.reader import Message, Range, read_ranges
from tailrace.progress.plan import Place

NEWEST: Final = "newest"
OLDEST: Final = "oldest"
_KEPT = "nothing was read or written"
_FORMS = f"{NEWEST}, {OLDEST}, TOPIC:PARTITION:OFFSET, a time such as 2026-11-20T10:00:00Z, or a file"
_PLACE = re.compile(r"([A-Za-z0-9._-]+):(\d{1,9}):(\d{1,18})")
_WINDOWS = (1, 4, 16, 64, 256)  # offsets of a partition that are read for each record that is wanted
_SILENCE = 10.0  # seconds without any record


@dataclass(frozen=True)
class Start:
    """Where the records begin; exactly one field is set, but for `newest` and `oldest`."""

    word: str = ""
    place: tuple[str, int, int] | None = None
    at: datetime | None = None
    file: Path | None = None


def parse(text: str) -> Start:
    """Return what the text names; a file that exists goes first, then the other forms."""
    if text in {NEWEST, OLDEST}:
        return Start(word=text)
    if Path(text).is_file():
        return Start(file=Path(text))
    # A time before a place: 2026-11-20T10:00:00 could be one of the topic 2026-11-20T10.
    at = units.moment(text)
    if at is not None:
        return Start(at=at)
    found = _PLACE.fullmatch(text)
    if found is None:
        raise OptionRefused(
            f"{text!r} is no place to begin: no such file, and none of the other forms",
            kept=_KEPT,
            then=f"name one of these: {_FORMS}",
        )
    return Start(place=(found[1], int(found[2]), int(found[3])))


def window(low: int, high: int, size: int, *, backwards: bool) -> Range:
    """Return at most `size` offsets of a partition, from its start or its end."""
    return Range(max(low, high - size), high) if backwards else Range(low, min(high, low + size))


def read(pipeline: Pipeline, start: Start, count: int) -> list[Message]:
    """Return up to `count` records of the source topics, in the order of their timestamps."""
    cluster = Cluster(pipeline.kafka)
    lows, highs = _bounds(pipeline, cluster, start)
    backwards = start.word == NEWEST
    found: list[Message] = []
    for factor in _WINDOWS:
        chosen = {place: window(lows[place], highs[place], count * factor, backwards=backwards) for place in lows}
        found = _read(pipeline, chosen)
        if start.at is not None:  # a broker also finds a transaction's marker, which may be younger than its records
            since = int(start.at.timestamp() * 1000)
            found = [each for each in found if each.timestamp >= since]
        everything = all(each == (lows[place], highs[place]) for place, each in chosen.items())
        if len(found) >= count or everything:
            break
    found.sort(key=lambda each: (each.timestamp, each.topic, each.partition, each.offset))
    return found[-count:] if backwards else found[:count]


def _bounds(pipeline: Pipeline, cluster: Cluster, start: Start) -> tuple[Mapping[Place, int], Mapping[Place, int]]:
    """Return the offsets between which records may be chosen, for each partition."""
    places = source.partitions_of(pipeline, cluster)
    if start.place is not None:
        topic, partition, offset = start.place
        if (topic, partition) not in places:
            raise OptionRefused(
                f"{topic}-{partition} is no partition that {pipeline.pipeline!r} reads",
                kept=_KEPT,
                then="tailrace offsets show FILE",
            )
        places = [(topic, partition)]
    lows, highs = cluster.earliest(places), source.ends(pipeline, places, cluster)
    if start.place is not None:
        place, offset = places[0], start.place[2]
        if not lows[place] <= offset < highs[place]:
            raise OptionRefused(
                f"{place[0]}-{place[1]} has no offset {offset}: it holds {lows[place]} to {highs[place]}",
                kept=_KEPT,
                then="name an offset in between; the last is excluded",
            )
        return {place: offset}, highs
    if start.at is not None:
        return at_time(pipeline, cluster, places, start.at.timestamp()), highs
    return lows, highs


def _read(pipeline: Pipeline, chosen: Mapping[Place, Range]) -> list[Message]:
    found: list[Message] = []
    for topic in sorted({topic for topic, _ in chosen}):
        ranges = {number: each for (name, number), each in chosen.items() if name == topic and each.end > each.start}
        found += read_ranges(pipeline.kafka, topic, ranges, isolation=pipeline.source.isolation, limit=_SILENCE)
    return found
