"""Where a topic's records of a time begin, for commands that choose offsets by it.

For a time, a broker also finds the end of a transaction, which may be younger than the records behind it, and records
that were aborted. What begins or ends there would leave out records of the range.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tailrace.config import Pipeline
from tailrace.kafka import source
from tailrace.kafka.cluster import Cluster, OffsetSpec
from tailrace.kafka.reader import Range, read_ranges
from tailrace.progress.positions import Place, Positions


def first_since(cluster: Cluster, places: Iterable[Place], seconds: float) -> Positions:
    """Return what a broker finds first at or after that time, even behind an open transaction, or the log's end."""
    asked = list(places)
    last = cluster.latest(asked)  # first: what arrives between the requests is newer than the answer
    found = cluster.offsets(asked, OffsetSpec.for_timestamp(int(seconds * 1000)))
    return {place: offset if offset >= 0 else last[place] for place, offset in found.items()}


def at_time(pipeline: Pipeline, cluster: Cluster, places: Iterable[Place], seconds: float) -> Positions:
    """Return the same, but no further than the pipeline can read now."""
    found = first_since(cluster, places, seconds)
    last = source.ends(pipeline, found, cluster)
    return {place: min(offset, last[place]) for place, offset in found.items()}


def records_since(pipeline: Pipeline, cluster: Cluster, found: Positions, seconds: float) -> Positions:
    """Return the first record at or after that time which the pipeline reads, from what a broker found on.

    If there is none, that is the log's end, which may lie behind an open transaction.
    """
    last = cluster.latest(found)
    stable = source.ends(pipeline, found, cluster)
    left = {place: Range(at, stable[place]) for place, at in found.items() if at < stable[place]}
    exact: Positions = {}
    for topic in sorted({topic for topic, _ in left}):
        ranges = {number: each for (name, number), each in left.items() if name == topic}
        # Mostly, what the broker has found is that record.
        exact |= _first(pipeline, topic, {each: Range(at, at + 1) for each, (at, _) in ranges.items()}, seconds)
        for number, each in ranges.items():
            if (topic, number) not in exact:
                exact |= _first(pipeline, topic, {number: each}, seconds)
    return {place: exact.get(place, last[place] if place in left else at) for place, at in found.items()}


def _first(pipeline: Pipeline, topic: str, ranges: Mapping[int, Range], seconds: float) -> Positions:
    """Return the first record at or after that time in each of these ranges that has one."""
    found: Positions = {}
    for message in read_ranges(pipeline.kafka, topic, ranges, isolation=pipeline.source.isolation):
        if message.timestamp >= int(seconds * 1000):
            found.setdefault((topic, message.partition), message.offset)
            if len(found) == len(ranges):
                break
    return found
