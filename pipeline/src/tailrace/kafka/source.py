"""The source topics as the brokers know them: their partitions, their ends, and a pipeline's start positions.

Spark's reader interprets `auto.offset.reset` in its own way; here it means what it means in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable

from tailrace import errors
from tailrace.config import Isolation, OnDataLoss, Pipeline, Reset
from tailrace.kafka.clients import TopicPartitions
from tailrace.kafka.cluster import Cluster


def partitions_of(pipeline: Pipeline, cluster: Cluster) -> list[tuple[str, int]]:
    """Return every topic partition that the pipeline reads now."""
    source = pipeline.source
    if source.pattern is None:
        counts = cluster.require(source.topics, "source topic")
    else:
        ours = {pipeline.rejected_topic, pipeline.ledger.topic, *pipeline.sink.named}
        counts = cluster.matching(source.pattern)
        overlap = sorted(topic for topic in counts if topic in ours)
        if overlap:
            raise errors.ConfigInvalid(
                f"source.pattern {source.pattern!r} matches {overlap[0]!r}, which the pipeline writes to",
                kept="nothing was read or written",
                then="narrow the pattern",
            )
        if not counts:
            raise errors.TopicUnknown(
                f"no topic matches source.pattern {source.pattern!r}",
                kept="nothing was read or written",
                then="create a topic that matches, or correct the pattern",
            )
    return [(topic, number) for topic, count in sorted(counts.items()) for number in range(count)]


def beginning(pipeline: Pipeline, cluster: Cluster) -> TopicPartitions:
    """Return where a pipeline without stored offsets begins."""
    places = partitions_of(pipeline, cluster)
    earliest = pipeline.source.auto_offset_reset is Reset.EARLIEST
    return cluster.earliest(places) if earliest else ends(pipeline, places, cluster)


def within(
    pipeline: Pipeline, stored: TopicPartitions, cluster: Cluster, where: str = "the ledger"
) -> tuple[TopicPartitions, list[str]]:
    """Return the stored positions and notes on changes: those out of range are moved, if the pipeline allows it."""
    present = set(partitions_of(pipeline, cluster))
    gone = sorted(place for place in stored if place not in present)
    reset = pipeline.source.on_data_loss is OnDataLoss.RESET
    if gone and not reset:
        names = ", ".join(f"{topic}-{number}" for topic, number in gone[:5])
        raise errors.SourceChanged(
            f"{where} has offsets for {names}, which no longer exist",
            kept="everything that was delivered; nothing more was read",
            then="restore the topic, or set source.on_data_loss: reset to continue without it",
        )
    here = {place: offset for place, offset in stored.items() if place in present}
    first, last = cluster.earliest(here), ends(pipeline, here, cluster)
    tops = last | beyond(here, last, cluster)
    notes = [f"{topic}-{number} no longer exists" for topic, number in gone]
    for place, offset in list(here.items()):
        if first[place] <= offset <= tops[place]:
            continue
        topic, number = place
        earliest = pipeline.source.auto_offset_reset is Reset.EARLIEST
        target = first[place] if earliest else last[place]
        held = f"the topic holds {first[place]} to {tops[place]}"
        what = f"{topic}-{number}: the next offset to read is {offset}, and {held}"
        if not reset:
            raise errors.OffsetsOutOfRange(
                what,
                kept="everything that was delivered; nothing more was read",
                then=f"set source.on_data_loss: reset to continue at {target} "
                f"(auto.offset.reset: {pipeline.source.auto_offset_reset.value}), or restore the topic",
            )
        here[place] = target
        notes.append(f"{what}; continuing at {target}")
    return here, notes


def ends(pipeline: Pipeline, places: Iterable[tuple[str, int]], cluster: Cluster) -> TopicPartitions:
    """Return where the source can read to now, at its isolation level."""
    return cluster.latest(places, pipeline.source.isolation is Isolation.READ_COMMITTED)


def beyond(positions: TopicPartitions, last: TopicPartitions, cluster: Cluster) -> TopicPartitions:
    """Return where the log itself ends, for the positions behind the end to which the source can read.

    A read_uncommitted run may stop behind an open transaction. A read_committed one waits there until it ends.
    """
    return cluster.latest([place for place, offset in positions.items() if offset > last.get(place, offset)])


def lag(pipeline: Pipeline, positions: TopicPartitions, cluster: Cluster) -> int:
    """Return the number of offsets between the positions and the ends of the topics."""
    last = ends(pipeline, positions, cluster)
    return sum(max(0, last[place] - offset) for place, offset in positions.items())
