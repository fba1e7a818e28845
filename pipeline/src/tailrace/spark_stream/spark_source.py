"""Reading from Kafka with Spark's own source, and knowing exactly what each task reads.

What a task of a batch reads is asked from the physical plan, because Spark's numbering changes over a restart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tailrace import errors
from tailrace.config import OnDataLoss, Pipeline
from tailrace.kafka.clients import TopicPartitions
from tailrace.kafka.java_client import spark_options
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
