"""Reading from Kafka with Spark's own source, and knowing exactly what each task reads.

Three things Spark leaves open are settled here: where to begin (Kafka's meaning of `auto.offset.reset`), what a
task of a batch reads (asked from the physical plan, because Spark's numbering changes over a restart), and how the
same batch is read again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tailrace import errors
from tailrace.config import Isolation, OnDataLoss, Pipeline, Reset
from tailrace.javakafka import spark_options
from tailrace.kafka import Cluster, TopicPartitions
from tailrace.progress.plan import Range
from tailrace.progress.stream_plan import Slice, offsets_json

# What a task reads is there already. By default the fetch that a consumer sends ahead of need waits 500 ms at the
# broker, for records of the next batch, and the questions for offsets that Spark asks after each fetch stand behind it.
NO_WAIT = {"kafka.fetch.max.wait.ms": "5"}
# Spark's own words for the range of a planned task.
_RANGE = re.compile(r"KafkaOffsetRange\(([A-Za-z0-9._-]+)-(\d+),(\d+),(\d+),")


def reading(pipeline: Pipeline) -> dict[str, str]:
    """The options of Spark's reader, for the stream and for a batch that is read again."""
    source = pipeline.source
    options = NO_WAIT | spark_options(pipeline.kafka)
    options |= {f"kafka.{name}": value for name, value in source.options.items()}
    options["kafka.isolation.level"] = source.isolation.value
    options["includeHeaders"] = "true"
    options["failOnDataLoss"] = str(source.on_data_loss is OnDataLoss.STOP).lower()
    return options


def stream(spark: SparkSession, pipeline: Pipeline, start: TopicPartitions | None, limit: int) -> DataFrame:
    """The endless frame of source records; `start` says where the very first batch begins, `limit` how many it has."""
    source = pipeline.source
    reader = spark.readStream.format("kafka").options(**reading(pipeline))
    reader = reader.option("maxOffsetsPerTrigger", limit)
    if source.partitions is not None:
        reader = reader.option("minPartitions", source.partitions)
    if source.pattern is not None:
        reader = reader.option("subscribePattern", source.pattern)
    else:
        reader = reader.option("subscribe", ",".join(source.topics))
    if start:
        reader = reader.option("startingOffsets", offsets_json(start))
    return reader.load()


# -- the cut -------------------------------------------------------------------------------------


def cut(frame: DataFrame) -> tuple[tuple[Range, ...], tuple[Slice, ...]]:
    """What Spark has planned for a batch: the source ranges in its order, and what each task reads."""
    partitions = frame._jdf.queryExecution().toRdd().partitions()
    slices = tuple(Slice(_describe(each)) for each in partitions)
    seen: dict[Range, None] = {}
    for each in slices:
        for part in re.findall(r"[A-Za-z0-9._-]+-\d+:\d+-\d+", each):
            seen[Range.parse(part)] = None
    return tuple(seen), slices


def read_by(frame: DataFrame) -> tuple[Range, ...]:
    """Return what each task reads that reads for a batch; each range once, where several read it."""
    found: dict[Range, None] = {}
    for rdd in _lineage(frame._jdf.queryExecution().toRdd(), set()):
        partitions = rdd.partitions()
        if len(partitions) and partitions[0].getClass().getSimpleName() == "DataSourceRDDPartition":
            found |= {Range.parse(_describe(each)): None for each in partitions if each.inputPartition().isDefined()}
    return tuple(sorted(found))


def _lineage(rdd: Any, seen: set[int]) -> Iterator[Any]:
    if rdd.id() in seen:
        return
    seen.add(rdd.id())
    yield rdd
    dependencies = rdd.dependencies()
    for number in range(dependencies.size()):
        yield from _lineage(dependencies.apply(number).rdd(), seen)


def _describe(partition: Any) -> str:
    """What one planned task reads, whatever number it has."""
    kind = partition.getClass().getSimpleName()
    if kind == "DataSourceRDDPartition":
        # Only the range is looked at: the rest of what Spark has planned holds the connection's secrets.
        planned = partition.inputPartition()
        return _span(planned.get().offsetRange().toString()) if planned.isDefined() else f"#{partition.index()}"
    if kind == "KafkaSourceRDDPartition":  # a batch read again
        return _span(partition.offsetRange().toString())
    if kind == "CoalescedRDDPartition":
        parents = partition.parents()
        return "+".join(_describe(parents.apply(i)) for i in range(parents.size()))
    if kind == "UnionPartition":
        # Which branch of the union does not matter: the first task that reads a range is always the same branch's.
        return _describe(partition.parentPartition())
    return f"#{partition.index()}"  # behind a shuffle: its number, which hashing fixes


def _span(text: str) -> str:
    found = _RANGE.match(text)
    if found is None:
        raise errors.InvariantBroken(f"Spark describes a range of offsets in words that are not known: {text}")
    return str(Range(found[1], int(found[2]), int(found[3]), int(found[4])))


# -- where to begin ------------------------------------------------------------------------------


def partitions_of(pipeline: Pipeline, cluster: Cluster) -> list[tuple[str, int]]:
    """Every topic partition that the pipeline reads now."""
    source = pipeline.source
    if source.pattern is None:
        counts = cluster.require(source.topics, "source topic")
    else:
        ours = {pipeline.rejected_topic, pipeline.ledger.topic, pipeline.sink.topic}
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
    """Where a pipeline that has nothing stored begins."""
    places = partitions_of(pipeline, cluster)
    earliest = pipeline.source.auto_offset_reset is Reset.EARLIEST
    return cluster.earliest(places) if earliest else ends(pipeline, places, cluster)


def within(
    pipeline: Pipeline, stored: TopicPartitions, cluster: Cluster, where: str = "the ledger"
) -> tuple[TopicPartitions, list[str]]:
    """The stored positions, moved where they are out of range and the pipeline allows it; what was moved is said."""
    present = set(partitions_of(pipeline, cluster))
    gone = sorted(place for place in stored if place not in present)
    reset = pipeline.source.on_data_loss is OnDataLoss.RESET
    if gone and not reset:
        names = ", ".join(f"{topic}-{number}" for topic, number in gone[:5])
        raise errors.SourceChanged(
            f"{where} has offsets for {names}, which no longer exist",
            kept="everything that was delivered; nothing more was read",
            then="restore the topic, or set source.on_data_loss: reset to go on without it",
        )
    here = {place: offset for place, offset in stored.items() if place in present}
    first, last = cluster.earliest(here), ends(pipeline, here, cluster)
    notes = [f"{topic}-{number} no longer exists" for topic, number in gone]
    for place, offset in list(here.items()):
        if first[place] <= offset <= last[place]:
            continue
        topic, number = place
        earliest = pipeline.source.auto_offset_reset is Reset.EARLIEST
        target = first[place] if earliest else last[place]
        held = f"the topic holds {first[place]} to {last[place]}"
        what = f"{topic}-{number}: the next offset to read is {offset}, and {held}"
        if not reset:
            raise errors.OffsetsOutOfRange(
                what,
                kept="everything that was delivered; nothing more was read",
                then=f"set source.on_data_loss: reset to go on at {target} "
                f"(auto.offset.reset: {pipeline.source.auto_offset_reset.value}), or restore the topic",
            )
        here[place] = target
        notes.append(f"{what}; going on at {target}")
    return here, notes


def ends(pipeline: Pipeline, places: Iterable[tuple[str, int]], cluster: Cluster) -> TopicPartitions:
    """Where the source can read to now, at its isolation."""
    return cluster.latest(places, pipeline.source.isolation is Isolation.READ_COMMITTED)


def lag(pipeline: Pipeline, positions: TopicPartitions, cluster: Cluster) -> int:
    """How many offsets are between the positions and the ends of the topics."""
    last = ends(pipeline, positions, cluster)
    return sum(max(0, last[place] - offset) for place, offset in positions.items())
