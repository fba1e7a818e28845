"""Reading from Kafka with Spark's own source, and what exactly each task reads.

The ranges of a task come from the physical plan, because Spark's task numbers change across a restart.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tailrace import errors
from tailrace.config import OnDataLoss, Pipeline
from tailrace.driver.catalyst import items
from tailrace.kafka.clients import TopicPartitions
from tailrace.kafka.java_client import spark_options
from tailrace.progress.plan import Range
from tailrace.progress.stream_plan import Slice, offsets_json

# What a task reads already exists. By default, a consumer's prefetch waits 500 ms at the broker for records of the next
# batch, and the offset requests that Spark sends after each fetch queue behind it.
NO_WAIT = {"kafka.fetch.max.wait.ms": "5"}
# How Spark prints the range of a planned task.
_RANGED = re.compile(r"[A-Za-z0-9._-]+-\d+:\d+-\d+")  # how a slice names it
_RANGE = re.compile(r"KafkaOffsetRange\(([A-Za-z0-9._-]+)-(\d+),(\d+),(\d+),")
# Why Spark does not plan a batch. The other reason, a range that could not be read, is a task's.
_LOST = re.compile(r"data may have been lost because .*?\nReason: (?!Could not read)([^\n]+)", re.DOTALL)
_PLANNED = "DataSourceRDDPartition"
_SHOWN = (
    "pass the frame of the batch itself (df.cache() keeps its rows), broadcast the tables that it is joined with, "
    "union it with table.coalesce(1), or use coalesce(1) or repartition(n, column) by columns of the records"
)
_HIDDEN = "the frame no longer shows what its tasks read"


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
        reader = reader.option("subscribePattern", _whole(source.pattern))
    else:
        reader = reader.option("subscribe", ",".join(source.topics))
    if start:
        reader = reader.option("startingOffsets", offsets_json(start))
    return reader.load()


def _whole(pattern: str) -> str:
    """Return the pattern for whole names: Spark looks for it anywhere in a name."""
    end = "\n" if re.compile(pattern).flags & re.VERBOSE else ""  # a comment ends there
    return rf"\A(?:{pattern}{end})\z"


def doubted(said: str) -> errors.BrokerUnreachable:
    """Return the error for an answer to Spark that leaves out what was read; the next start asks until it is sure.

    Spark asks one broker, a few times within two seconds. That one may lag, or be cut off from the others.
    """
    return errors.BrokerUnreachable(
        f"what Spark was told of the topics leaves out what was read: {said}",
        kept="everything that was delivered; nothing more was read",
        then="start the pipeline again: it asks until the brokers agree",
    )


def planning_failure(error: BaseException) -> errors.BrokerUnreachable | None:
    """Return the error for a batch that Spark could not plan because offsets seem lost; None for another reason."""
    found = _LOST.search(str(error))
    return doubted(found[1]) if found is not None else None


def active_query(spark: SparkSession, number: str) -> Any:
    """Return Spark's object of an active query; None if none has this id."""
    jvm: Any = spark._jvm
    return spark._jsparkSession.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(number))


def cut(frame: DataFrame, stream: Any, *, new: bool) -> tuple[tuple[Range, ...], tuple[Slice, ...]]:
    """Return what Spark has planned for a batch: the source ranges in its order, and what each task reads.

    `stream` is the RDD of the stream's own plan. Raise FunctionInvalid if a replay may not recognise what a task reads,
    or may never find it again; the latter of a new batch only, since one that is planned has its slices to compare.
    """
    rdd = frame._jdf.queryExecution().toRdd()
    tasks = _Tasks(rdd, stream)
    slices = tuple(map(Slice, tasks.described(list(rdd.partitions()))))
    if new and tasks.merged and not rdd.context().isLocal():
        raise _unrepeatable(
            f"coalesce({tasks.merged}) merges tasks that read Kafka by the executors' hosts, which a restart changes",
            "use repartition(n, column) by columns of the records, or coalesce(1)",
        )
    return tuple(dict.fromkeys(part for each in slices for part in ranges_of(each))), slices


def ranges_of(each: Slice) -> list[Range]:
    """Return the ranges of Kafka that a slice names."""
    return list(map(Range.parse, _RANGED.findall(each)))


def read_by(frame: DataFrame, ends: TopicPartitions) -> tuple[Range, ...]:
    """Return the ranges that the reading tasks of a batch read, each once even if several tasks read it.

    What does not end within the batch's `ends` is a lookup table that Spark's newer reader takes from Kafka.
    """
    found: dict[Range, None] = {}
    for rdd in _lineage(frame._jdf.queryExecution().toRdd(), set()):
        partitions = rdd.partitions()
        if len(partitions) and _kind(partitions[0]) == _PLANNED:
            found |= {Range.parse(_range_of(each)): None for each in partitions if _of_kafka(each)}
    return tuple(sorted(each for each in found if each.end <= ends.get(each.place, -1)))


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
            found.append(Range.parse(_range_of(each)))
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


class _Tasks:
    """What each task of a batch reads, as a replay finds it again, independent of the task's number."""

    def __init__(self, rdd: Any, stream: Any) -> None:
        self._rdd = rdd
        self._stream = stream
        self.merged = 0  # into how many tasks Spark merges those that read Kafka

    def described(self, partitions: list[Any], *, alone: bool = False) -> list[str]:
        """Describe all partitions of an RDD. If it has only one (`alone`), this holds all its rows on any replay."""
        alone = alone or len(partitions) == 1
        kind = _kind(partitions[0]) if partitions else ""
        if kind == "UnionPartition":
            # The branch of the union does not matter: the first task that reads a range is always in the same branch.
            branches: dict[int, list[int]] = {}  # a coalesced union mixes them
            for place, each in enumerate(partitions):
                branches.setdefault(each.parentRddIndex(), []).append(place)
            found: dict[int, str] = {}
            for places in branches.values():
                branch = [partitions[place].parentPartition() for place in places]
                found |= zip(places, self.described(branch, alone=alone), strict=True)
            return [found[place] for place in range(len(partitions))]
        if kind == "CoalescedRDDPartition":
            merged = [items(each.parents()) for each in partitions]
            names = self.described([parent for each in merged for parent in each], alone=alone)
            if len(set(names)) < len(names) and not alone:
                raise _unrepeatable("coalesce() merges branches of a union that read the same")
            if not alone and any(len(each) > 1 for each in merged) and any(map(_RANGED.search, names)):
                self.merged = len(partitions)
            following = iter(names)
            if alone:  # how many parts a table or a file has may depend on the number of cores
                read = [[name for name in (next(following) for _ in each) if _RANGED.search(name)] for each in merged]
                return ["+".join(own) or f"#{each.index()}" for own, each in zip(read, partitions, strict=True)]
            return ["+".join(next(following) for _ in each) for each in merged]
        if kind == "PartitionwiseSampledRDDPartition":
            return self.described([each.prev() for each in partitions], alone=alone)
        if kind == "ZippedPartitionsPartition":
            return self._joined(partitions, [items(each.partitions()) for each in partitions], alone)
        if kind == "PartitionerAwareUnionRDDPartition":
            return self._joined(partitions, [list(each.parents()) for each in partitions], alone)
        return [self._leaf(each, alone) for each in partitions]

    def _joined(self, partitions: list[Any], parents: list[list[Any]], alone: bool) -> list[str]:
        """Describe partitions that each hold a partition of several RDDs, by what these have in common."""
        sides = [list(side) for side in zip(*parents, strict=True)]
        # A bucketed table has no shuffle. Its rows are where the keys of the other side are.
        sides = [side for side in sides if _kind(side[0]) != "FilePartition"] or sides
        names = zip(*(self.described(side, alone=alone) for side in sides), strict=True)
        return [
            each[0] if len(set(each)) == 1 else self._number(partition, alone, _HIDDEN)
            for partition, each in zip(partitions, names, strict=True)
        ]

    def _leaf(self, partition: Any, alone: bool) -> str:
        kind = _kind(partition)
        if _of_kafka(partition):
            return _range_of(partition)
        if kind == "ShuffledRowRDDPartition":  # hashing determines its number
            return f"#{partition.index()}"
        if kind == _PLANNED:
            reads = partition.inputPartition().isDefined()
            return self._number(partition, alone or not reads, "it reads a source other than Kafka")
        if kind == "FilePartition" and not alone and kind in self._trusted:
            return _files_of(partition)
        return self._number(partition, alone or kind in self._trusted or _constant(partition), _HIDDEN)

    def _number(self, partition: Any, known: bool, why: str) -> str:
        if known:
            return f"#{partition.index()}"
        raise _unrepeatable(f"{why} ({_kind(partition)})")

    @cached_property
    def _trusted(self) -> frozenset[str]:
        """Return the kinds of partitions that only the stream's own sources have, which a replay plans again."""
        own: set[int] = set()
        within = {_kind(each) for rdd in _lineage(self._stream, own) for each in _read(rdd)}
        beyond = {_kind(each) for rdd in _lineage(self._rdd, set(own)) for each in _read(rdd)}
        return frozenset(within - beyond)


def _unrepeatable(why: str, then: str = _SHOWN) -> errors.FunctionInvalid:
    return errors.FunctionInvalid(
        f"the query's rows cannot be cut the same way again: {why}", kept="nothing was written", then=then
    )


def _read(rdd: Any) -> list[Any]:
    """Return the first partition of an RDD that reads something itself."""
    return [] if rdd.dependencies().size() else list(rdd.partitions())[:1]


def _kind(partition: Any) -> str:
    return str(partition.getClass().getSimpleName())


def _constant(partition: Any) -> bool:
    """Return whether a partition is one of spark.range(), or of a list without rows."""
    if _kind(partition) != "ParallelCollectionPartition":
        return False
    values = partition.values()  # rows, or for spark.range() the numbers of its partitions
    return bool(values.isEmpty()) or values.getClass().getName().startswith("scala.collection.immutable.Range")


def _of_kafka(partition: Any) -> bool:
    kind = _kind(partition)
    planned = partition.inputPartition() if kind == _PLANNED else None
    if planned is not None and planned.isDefined():
        partition = planned.get()
        kind = _kind(partition)
    if kind not in {"KafkaBatchInputPartition", "KafkaSourceRDDPartition"}:
        return False
    return bool(partition.offsetRange().untilOffset() >= 0)  # a table may be read to whatever the end is then


def _range_of(partition: Any) -> str:
    """Describe what a partition of Kafka's reads."""
    # Only the range is read: other parts of what Spark planned hold the connection's secrets.
    planned = partition.inputPartition().get() if _kind(partition) == _PLANNED else partition
    return _span(planned.offsetRange().toString())


def _files_of(partition: Any) -> str:
    """Describe what a partition reads of files: how Spark divides them depends on the number of cores it has then."""
    read = [(each.filePath().toString(), each.start(), each.length()) for each in partition.files()]
    return f"file:{hashlib.sha256(repr(read).encode()).hexdigest()[:16]}"


def _span(text: str) -> str:
    found = _RANGE.match(text)
    if found is None:
        raise errors.InvariantBroken(f"Spark describes a range of offsets in an unknown format: {text}")
    return str(Range(found[1], int(found[2]), int(found[3]), int(found[4])))
