"""Reading from Kafka with Spark's own source, and what exactly each task reads.

The ranges of a task come from the physical plan, because Spark's task numbers change across a restart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tailrace import errors
from tailrace.config import OnDataLoss, Pipeline
from tailrace.kafka.clients import TopicPartitions
from tailrace.kafka.java_client import spark_options
from tailrace.progress.plan import Range
from tailrace.progress.stream_plan import Slice, offsets_json

# What a task reads already exists. By default, a consumer's prefetch waits 500 ms at the broker for records of the next
# batch, and the offset requests that Spark sends after each fetch queue behind it.
NO_WAIT = {"kafka.fetch.max.wait.ms": "5"}
# How Spark prints the range of a planned task.
_RANGE = re.compile(r"KafkaOffsetRange\(([A-Za-z0-9._-]+)-(\d+),(\d+),(\d+),")


def reading(pipeline: Pipeline) -> dict[str, str]:
    """Return the options of Spark's reader, for the stream and for a replayed batch."""
    source = pipeline.source
    options = NO_WAIT | spark_options(pipeline.kafka)
    options |= {f"kafka.{name}": value for name, value in source.options.items()}
    options["kafka.isolation.level"] = source.isolation.value
    options["includeHeaders"] = "true"
    options["failOnDataLoss"] = str(source.on_data_loss is OnDataLoss.STOP).lower()
    return options


def stream(spark: SparkSession, pipeline: Pipeline, start: TopicPartitions | None, limit: int) -> DataFrame:
    """Return the unbounded frame of source records; the very first batch begins at `start` with at most `limit`."""
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


def cut(frame: DataFrame) -> tuple[tuple[Range, ...], tuple[Slice, ...]]:
    """Return what Spark has planned for a batch: the source ranges in its order, and what each task reads."""
    partitions = frame._jdf.queryExecution().toRdd().partitions()
    slices = tuple(Slice(_describe(each)) for each in partitions)
    seen: dict[Range, None] = {}
    for each in slices:
        for part in re.findall(r"[A-Za-z0-9._-]+-\d+:\d+-\d+", each):
            seen[Range.parse(part)] = None
    return tuple(seen), slices


def read_by(frame: DataFrame) -> tuple[Range, ...]:
    """Return the ranges that the reading tasks of a batch read, each once even if several tasks read it."""
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


def read_from_kafka(frame: DataFrame) -> tuple[Range, ...]:
    """Return what a batch reads, however its tasks share it; nothing if it also reads from elsewhere than Kafka."""
    found: list[Range] = []
    for rdd in _lineage(frame._jdf.queryExecution().toRdd(), set()):
        for each in rdd.partitions() if not rdd.dependencies().size() else ():
            if not _of_kafka(each):
                return ()
            found.append(Range.parse(_describe(each)))
    return joined(found)


def joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Join ranges that touch or overlap."""
    found: list[Range] = []
    for each in sorted(ranges):
        if found and found[-1].place == each.place and each.start <= found[-1].end:
            found[-1] = replace(found[-1], end=max(found[-1].end, each.end))
        else:
            found.append(each)
    return tuple(found)


def _of_kafka(partition: Any) -> bool:
    kind = partition.getClass().getSimpleName()
    planned = partition.inputPartition() if kind == "DataSourceRDDPartition" else None
    if planned is not None and planned.isDefined():
        kind = planned.get().getClass().getSimpleName()
    return kind in {"KafkaBatchInputPartition", "KafkaSourceRDDPartition"}


def _describe(partition: Any) -> str:
    """Describe what one planned task reads, independent of its number."""
    kind = partition.getClass().getSimpleName()
    if kind == "DataSourceRDDPartition":
        # Only the range is read: other parts of what Spark planned hold the connection's secrets.
        planned = partition.inputPartition()
        return _span(planned.get().offsetRange().toString()) if planned.isDefined() else f"#{partition.index()}"
    if kind == "KafkaSourceRDDPartition":  # a replayed batch
        return _span(partition.offsetRange().toString())
    if kind == "CoalescedRDDPartition":
        parents = partition.parents()
        return "+".join(_describe(parents.apply(i)) for i in range(parents.size()))
    if kind == "UnionPartition":
        # The branch of the union does not matter: the first task that reads a range is always in the same branch.
        return _describe(partition.parentPartition())
    return f"#{partition.index()}"  # after a shuffle: its number, which hashing determines


def _span(text: str) -> str:
    found = _RANGE.match(text)
    if found is None:
        raise errors.InvariantBroken(f"Spark describes a range of offsets in an unknown format: {text}")
    return str(Range(found[1], int(found[2]), int(found[3]), int(found[4])))
