"""The sink for a job that uses nothing else of Tailrace: `format("tailrace")`, and `foreachBatch(exactly_once(...))`.

Option names follow Spark's Kafka sink, so that moving is one word. A batch job is exact within itself, and over its
repetitions when it is given an `id`. A streaming job keeps its own durable checkpoint folder; its query's id takes the
place of the pipeline's name. docs/decisions/0002 says what each of the two ways can promise.
"""

from __future__ import annotations

import difflib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tailrace import errors
from tailrace.config import (
    CONNECTION_OPTIONS,
    LEDGER_PARTITIONS,
    LEDGER_TOPIC,
    SINK_OPTIONS,
    Delivery,
    Kafka,
    contradictions,
)
from tailrace.driver import repeatable
from tailrace.driver.catalyst import Patterns
from tailrace.driver.input_end import whole
from tailrace.gateway import Assignment, Written, connect
from tailrace.gateway.schemas import SHAPE
from tailrace.kafka.clients import client_options
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.rights import Operation
from tailrace.progress import expiry
from tailrace.progress.ledger import LEDGER_SETTINGS, Ledger
from tailrace.progress.plan import BatchId, Plan, SinkPartition
from tailrace.progress.stream_plan import StreamPlan, assign
from tailrace.spark_stream import spark_source
from tailrace.spark_stream.sink import BatchWrite, deliver

if TYPE_CHECKING:
    Batches = Iterator[pa.RecordBatch]

_OWN = ("topic", "delivery", "rejected.topic", "ledger.topic", "id", "replay")
# Options that Spark itself adds to those of a sink.
_SPARKS = frozenset({"checkpointlocation", "path", "queryname"})
_TYPES: dict[str, tuple[str, ...]] = {
    "topic": ("string",),
    "partition": ("int",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "timestamp": ("bigint", "timestamp"),
    "headers": ("array<struct<key:string,value:binary>>",),
}


@dataclass(frozen=True)
class Target:
    """Where the sink writes, as its options say."""

    kafka: Kafka
    sink: dict[str, str]
    topic: str | None
    delivery: Delivery = Delivery.EXACTLY_ONCE
    rejected: str | None = None
    ledger: str = LEDGER_TOPIC
    id: str | None = None
    by_number: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Target:
        """The target that these options describe; one that is not known is refused."""
        given = {name.lower(): str(value) for name, value in options.items() if name.lower() not in _SPARKS}
        servers = given.pop("kafka.bootstrap.servers", None)
        if servers is None:
            raise errors.OptionRefused("the option kafka.bootstrap.servers is missing", then="name the brokers")
        clients = {name[6:]: given.pop(name) for name in list(given) if name.startswith("kafka.")}
        own = {name: given.pop(name, None) for name in _OWN}
        if given:
            raise _unknown(next(iter(given)), list(_OWN))
        for name in clients:
            if name not in CONNECTION_OPTIONS | SINK_OPTIONS:
                raise _unknown(f"kafka.{name}", sorted(f"kafka.{each}" for each in CONNECTION_OPTIONS | SINK_OPTIONS))
        sink = {name: value for name, value in clients.items() if name in SINK_OPTIONS}
        try:
            delivery = Delivery(own["delivery"] or Delivery.EXACTLY_ONCE)
            contradictions(sink, delivery)
        except ValueError as error:
            raise errors.OptionRefused(str(error), kept="nothing was written") from error
        if own["replay"] not in {None, "by-number", "by-content"}:
            raise errors.OptionRefused(f"replay is by-content or by-number, not {own['replay']!r}")
        connection = {name: value for name, value in clients.items() if name in CONNECTION_OPTIONS}
        return cls(
            kafka=Kafka(bootstrap_servers=servers, options=connection),
            sink=sink,
            topic=own["topic"],
            delivery=delivery,
            rejected=own["rejected.topic"],
            ledger=own["ledger.topic"] or LEDGER_TOPIC,
            id=own["id"],
            by_number=own["replay"] == "by-number",
        )

    def check(self, schema: StructType) -> None:
        """Refuse columns that no record can be made of."""
        found = {each.name: each.dataType.simpleString() for each in schema.fields}
        for name, kind in found.items():
            if name not in _TYPES:
                raise errors.SinkColumnsInvalid(
                    f"the sink takes no column {name!r}", then=f"its columns are {', '.join(_TYPES)}; drop the others"
                )
            if kind not in _TYPES[name]:
                raise errors.SinkColumnsInvalid(f"column {name!r} is {kind}, not {' or '.join(_TYPES[name])}")
        if "value" not in found:
            raise errors.SinkColumnsInvalid("there is no column `value`", then="name what is to be written `value`")
        if self.topic is None and "topic" not in found:
            raise errors.SinkColumnsInvalid("there is neither an option `topic` nor a column `topic`")

    def prepare(self) -> None:
        """Make sure, on the driver, that the topics are there."""
        cluster = Cluster(self.kafka)
        if self.topic is not None:
            cluster.require([self.topic], "sink topic", Operation.WRITE)
        if self.delivery is Delivery.EXACTLY_ONCE:
            cluster.ensure(self.ledger, LEDGER_PARTITIONS, -1, LEDGER_SETTINGS, Operation.READ)

    @property
    def options(self) -> dict[str, Any]:
        """What a producer is made with."""
        return client_options(self.kafka) | self.sink


def _unknown(name: str, known: list[str]) -> errors.OptionRefused:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(known)}"
    return errors.OptionRefused(f"the sink takes no option {name!r}; {hint}", kept="nothing was written")


def rows_of(batches: Batches) -> Batches:
    """The caller's columns in the shape that the gateway takes."""
    for batch in batches:
        have = {name: batch.column(number) for number, name in enumerate(batch.schema.names)}
        columns = []
        for name, kind in zip(SHAPE.names, SHAPE.types, strict=True):
            column = have.get(name)
            if column is None:
                columns.append(pa.nulls(batch.num_rows, kind))
            elif name == "timestamp" and pa.types.is_timestamp(column.type):
                columns.append(column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(kind))
            else:
                columns.append(column if name == "headers" else column.cast(kind))
        yield pa.RecordBatch.from_arrays(columns, names=SHAPE.names)


@dataclass
class Answer(WriterCommitMessage):
    """What a task tells the driver."""

    written: Written


class _Writing:
    """What both kinds of writers do in a task."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.run = uuid.uuid4().hex[:12]

    def _write(self, name: str, batch: int, digest: str, batches: Batches, content: str) -> Answer:
        context = TaskContext.get()
        if context is None:
            raise errors.InvariantBroken("the sink runs outside a task of Spark")
        task = Assignment(
            pipeline=name,
            batch=BatchId(batch),
            partition=SinkPartition(context.partitionId()),
            sinks=0,
            digest=digest,
            delivery=self.target.delivery,
            ledger=self.target.ledger,
            topic=self.target.topic,
            rejected=self.target.rejected,
            run=self.run,
            by_content=content == "by-content",
            options=self.target.options,
        )
        return Answer(connect().write(task, rows_of(whole(batches))))


class BatchWriter(_Writing, DataSourceArrowWriter):
    """`df.write.format("tailrace")`: one batch. With an `id`, a repetition skips what was delivered."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.name = target.id or f"batch-{self.run}"

    def write(self, iterator: Batches) -> Answer:
        """One sink partition."""
        content = "by-content" if self.target.id and not self.target.by_number else "by-number"
        return self._write(self.name, 0, f"batch {self.name}", iterator, content)


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """`df.writeStream.format("tailrace")`."""

    def write(self, iterator: Batches) -> Answer:
        """One sink partition of one batch."""
        context = TaskContext.get()
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        query = self.target.id or (context.getLocalProperty("sql.streaming.queryId") if context else None)
        if batch is None or query is None:
            raise errors.InvariantBroken("Spark does not say which batch of which query this is")
        content = "by-number" if self.target.by_number else "by-content"
        return self._write(query, int(batch), f"query {query}", iterator, content)


class TailraceSource(DataSource):
    """`format("tailrace")`, for writing."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._target = Target.of(options)

    @classmethod
    def name(cls) -> str:
        """The word in `format(...)`."""
        return "tailrace"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """The writer of a batch job."""
        if overwrite:
            raise errors.OptionRefused("a topic cannot be overwritten", then='use mode("append")')
        return BatchWriter(self._ready(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - PySpark's name
        """The writer of a streaming query."""
        return StreamWriter(self._ready(schema))

    def _ready(self, schema: StructType) -> Target:
        self._target.check(schema)
        self._target.prepare()
        return self._target


def register(spark: SparkSession) -> None:
    """Make `format("tailrace")` known to a session."""
    spark.dataSource.register(TailraceSource)


# -- with a plan ---------------------------------------------------------------------------------


@dataclass
class ExactlyOnce:
    """A function for `foreachBatch` that writes each batch by a plan in the ledger."""

    target: Target
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    _ledger: Ledger | None = None
    _plan: StreamPlan | None = None
    _name: str = ""

    def __call__(self, frame: DataFrame, number: int) -> None:
        """Write one batch."""
        spark = frame.sparkSession
        self.target.check(frame.schema)
        name = self.target.id or spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        if name is None:
            raise errors.InvariantBroken("Spark does not say which query this is")
        _check_cut(frame, known=self._ledger is not None)
        if self._ledger is None:
            self._take(name)
        if name != self._name:
            raise errors.OptionRefused(
                f"one exactly_once(...) writes one query: it has written {self._name!r} and is now called by {name!r}",
                then="make one for each query, or give each the option id",
            )
        ranges, slices = spark_source.cut(frame)
        plan, known = self._plan, self._plan.batch if self._plan else -1
        if plan is None or number > known:
            plan = StreamPlan(
                name,
                name,
                BatchId(number),
                ranges,
                slices,
                entry="",
                run=self.run,
                at=time.time(),
                delivery=self.target.delivery,
            )
            self._held.write(plan, {})
            self._plan = plan
        elif number < known:
            raise errors.CheckpointMismatch(
                f"the ledger says that batch {known} of {name!r} was planned, and the checkpoint begins batch {number}",
                kept="nothing was written",
                then="use the checkpoint folder that the query used before, or give the sink another id",
            )
        else:
            self._check_age(plan)
        write = BatchWrite(
            plan=plan,
            assigned=assign(plan, slices),
            delivery=self.target.delivery,
            ledger=self.target.ledger,
            topic=self.target.topic,
            rejected=self.target.rejected,
            run=self.run,
            options=self.target.options,
        )
        deliver(frame, write, rows_of)

    def _check_age(self, plan: StreamPlan) -> None:
        """Refuse to deliver a batch again of which a marker is missing that the brokers may have forgotten."""
        markers = self._held.markers()
        if expiry.missing(plan, markers):
            expiry.check(
                plan,
                markers,
                time.time(),
                expiry.retention(Cluster(self.target.kafka).admin),
                then="look at the output for what the batch has delivered; then go on with another checkpoint folder "
                "and another id, from the startingOffsets that you choose",
            )

    @property
    def _held(self) -> Ledger:
        if self._ledger is None:
            raise errors.InvariantBroken("the ledger was not taken")
        return self._ledger

    def _take(self, name: str) -> None:
        self.target.prepare()
        ledger = Ledger(name, self.target.ledger, self.target.kafka, LEDGER_PARTITIONS, -1)
        ledger.take()
        known = ledger.latest()
        if isinstance(known, Plan):
            raise errors.OptionRefused(
                f"the ledger {self.target.ledger!r} has plans of a pipeline {name!r}",
                kept="nothing was written",
                then="give the sink another id",
            )
        self._plan = known
        ledger.fence(self._plan.sinks if self._plan else 0)
        if self._plan is None and ledger.markers():
            raise errors.ProgressMissing(
                f"the ledger {self.target.ledger!r} has markers of {name!r} and no plan",
                kept="nothing was written",
                then="restore the ledger topic, or give the sink another id",
            )
        self._ledger, self._name = ledger, name


def _check_cut(frame: DataFrame, *, known: bool) -> None:
    """Refuse rows that a replay would deal out otherwise: by the batch's plan, and the query's unless it is known."""
    spark = frame.sparkSession
    patterns = Patterns(spark._jvm)
    try:
        if not known:
            repeatable.check_stream(_query(spark).logicalPlan(), patterns, clock=False)
        repeatable.check_batch(frame._jdf.queryExecution().analyzed(), patterns)
    except errors.FunctionInvalid as refused:
        raise errors.FunctionInvalid(
            refused.what.replace("the function's rows", "the query's rows", 1),
            kept="nothing was written",
            then="use repartition(n, column) by columns of the records",
        ) from None


def _query(spark: SparkSession) -> Any:
    """Spark's own object for the query whose batch this is; its session is another one than the batch's."""
    number = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    jvm: Any = spark._jvm
    active = spark._jsparkSession.sharedState().activeStreamingQueries()
    query = active.get(jvm.java.util.UUID.fromString(number)) if number else None
    if query is None:
        raise errors.InvariantBroken(f"Spark has no query {number!r} among those that are active")
    return query


def exactly_once(**options: str) -> Callable[[DataFrame, int], None]:
    """For `df.writeStream.foreachBatch(exactly_once(**{"kafka.bootstrap.servers": …, "topic": …}))`.

    Unlike `format("tailrace")` it plans each batch in the ledger, so a replay is exact whatever the function computes.
    """
    return ExactlyOnce(Target.of(options))
