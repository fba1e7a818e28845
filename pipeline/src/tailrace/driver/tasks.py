"""What runs in Spark's Python workers: reading a part of the batch, judging its records, writing its rows.

What differs between batches travels in the job's local properties, so that a frame that was planned once serves all of
them. Constants and all secrets travel in the closure.
"""

from __future__ import annotations

import collections
import itertools
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator

from tailrace.config import Delivery, Pipeline
from tailrace.driver.arrow_rows import rows
from tailrace.driver.batch_property import of_task
from tailrace.driver.engine import NO_FAULTS, WAYS, Faults, Parts
from tailrace.driver.faultless import without
from tailrace.driver.input_end import InputEnd
from tailrace.errors import FunctionFailed
from tailrace.gateway import Assignment, ReadDone, ReadRequest, Written, client
from tailrace.gateway.answers import answer
from tailrace.gateway.message_protocol import Judging
from tailrace.gateway.schemas import as_rows
from tailrace.kafka.clients import client_options
from tailrace.progress.plan import BatchId, Plan, Range, SinkPartition
from tailrace.stages.arrow_rows import RECORD
from tailrace.stages.arrow_stages import ArrowSpec, stages_of
from tailrace.stages.rules import Judged, aside, tally, total

if TYPE_CHECKING:
    Batches = Iterator[pa.RecordBatch]

T = TypeVar("T")

PROPERTY = "tailrace.batch"
WARMING = BatchId(-1)  # an empty batch that writes nothing; it warms up the JVM and the workers
_HOLD = 0.2  # seconds that a warming task keeps its worker, so that each slot gets one of its own


@dataclass(frozen=True)
class BatchInfo:
    """What the tasks of one batch need to know about it."""

    batch: BatchId
    digest: str
    sinks: int
    outputs: int
    parts: tuple[tuple[Range, ...], ...]
    topics: Mapping[str, str]  # with their ids
    run: str
    owners: Mapping[SinkPartition, str]
    share: int
    delivery: Delivery
    faults: Faults = field(default_factory=dict)
    at: float = 0.0  # when it was planned
    gone: tuple[tuple[Range, ...], ...] = ()  # by part, what is not read because its topic is gone; empty if nothing
    seen: Parts = frozenset()  # the start has read a marker of these
    numbers: tuple[int, ...] = ()  # by task, its part, if the delivered ones have no task; empty: all have one
    lane: int | None = None  # of a job that only tries its part: it writes nothing

    @classmethod
    def of(
        cls,
        plan: Plan,
        run: str,
        owners: Mapping[SinkPartition, str],
        gone: frozenset[str],
        faults: Faults = NO_FAULTS,
        seen: Parts = frozenset(),
    ) -> BatchInfo:
        """Build it from the plan; ranges of topics that are gone are not read."""
        parts = (
            tuple(tuple(each for each in part if each.topic not in gone) for part in plan.parts) if gone else plan.parts
        )
        share = max(1, len(plan.ends))
        return cls(
            batch=plan.batch,
            digest=plan.digest,
            sinks=plan.sinks,
            outputs=plan.outputs,
            parts=parts,
            topics=dict(plan.topics),
            run=run,
            owners=dict(owners),
            share=share,
            delivery=plan.delivery,
            faults=faults,
            at=plan.at,
            gone=tuple(tuple(each for each in part if each.topic in gone) for part in plan.parts) if gone else (),
            seen=seen,
            numbers=plan.open if plan.delivered else (),
        )

    def probing(self, part: tuple[Range, ...], lane: int) -> BatchInfo:
        """Return the same for a job that only tries these ranges."""
        return replace(self, parts=(part,), numbers=(), lane=lane)

    @property
    def probe(self) -> bool:
        """Whether the records are processed, and nothing is written."""
        return self.lane is not None

    def refuse_repetition(self) -> None:
        """Let a failed probe of several records end: Spark tries a task four times, and once tells enough."""
        context = TaskContext.get()
        several = sum(each.end - each.start for part in self.parts for each in part) > 1
        if self.probe and several and context is not None and context.attemptNumber() > 0:
            raise FunctionFailed("the function raised at one of these records", kept="nothing was written")

    def faulty(self, part: int) -> bool:
        """Return whether one of a part's ranges has faulty records."""
        return any(each.place in self.faults for each in self.parts[part])

    @property
    def split(self) -> bool:
        """Whether several tasks read parts of one source partition."""
        places = [each.place for part in self.parts for each in part]
        return len(places) > len(set(places))


@dataclass(frozen=True)
class Tasks:
    """One pipeline's tasks: everything that is the same in all batches."""

    pipeline: str
    isolation: str
    reset: bool
    ledger: str
    topic: str | None
    topics: tuple[str, ...]
    rejected: str
    idle: float
    shuffles: bool
    judges: bool  # records may be rejected before the function
    columns: tuple[str, ...]
    # With a shuffle, reading tasks cannot return rows; they report here what they have written and read.
    answers: Accumulator[list[Written]] | None
    reads: Accumulator[list[tuple[int, ReadDone]]] | None
    judged: Accumulator[list[tuple[int, Judged]]] | None
    rules: int
    consumer: dict[str, Any] = field(repr=False)
    producer: dict[str, Any] = field(repr=False)
    end: InputEnd = field(default_factory=InputEnd)
    lanes: int = 1  # the most in which a batch is read that splits partitions

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        columns: tuple[str, ...],
        *,
        shuffles: bool,
        judges: bool,
        answers: Accumulator[list[Written]] | None = None,
        reads: Accumulator[list[tuple[int, ReadDone]]] | None = None,
        judged: Accumulator[list[tuple[int, Judged]]] | None = None,
    ) -> Tasks:
        """Build the tasks from the configuration."""
        connection = client_options(pipeline.kafka)
        return cls(
            pipeline=pipeline.pipeline,
            isolation=pipeline.source.isolation.value,
            reset=pipeline.source.on_data_loss.value == "reset",
            ledger=pipeline.ledger.topic,
            topic=pipeline.sink.topic,
            topics=pipeline.sink.allowed,
            rejected=pipeline.rejected_topic,
            idle=pipeline.sink.idle,
            shuffles=shuffles,
            judges=judges,
            columns=columns,
            answers=answers,
            reads=reads,
            judged=judged,
            rules=len(pipeline.process.validate_),
            consumer=connection | pipeline.source.options,
            producer=connection | pipeline.sink.options,
            lanes=pipeline.source.partitions or 1,
        )

    def records(
        self,
        info: BatchInfo,
        part: int,
        records: Generator[Any, None, T],
        take: Callable[[pa.RecordBatch], object],
    ) -> Generator[Any, None, T]:
        """Return a part's records; the faulty ones become rows that are taken aside."""
        return without(records, info.faults, self.columns, take) if info.faulty(part) else records

    def share(self, info: BatchInfo) -> int:
        """Return how many queues share the bound on prefetched data: each lane has one for each source partition.

        It belongs to the consumer's key, so it must not follow the number of pieces, which small batches have fewer of.
        """
        if info.probe:
            return info.share * WAYS
        return info.share * (max(self.lanes, len(info.parts)) if info.split else 1)

    def request(self, info: BatchInfo, part: int) -> ReadRequest:
        """Return the request for a part's ranges."""
        return ReadRequest(
            pipeline=self.pipeline,
            ranges=info.parts[part],
            isolation=self.isolation,
            reset=self.reset,
            topics={each.topic: info.topics[each.topic] for each in info.parts[part] if each.topic in info.topics},
            columns=tuple(RECORD.names) if info.faulty(part) else self.columns,
            share=self.share(info),
            lane=info.lane if info.lane is not None else part + 1 if info.split else 0,
            options=self.consumer,
        )

    def assignment(self, info: BatchInfo, partition: int, attempt: str = "", *, verdicts: bool = False) -> Assignment:
        """Return the assignment of a sink partition."""
        sink = SinkPartition(partition)
        return Assignment(
            pipeline=self.pipeline,
            batch=info.batch,
            partition=sink,
            sinks=info.sinks,
            digest=info.digest,
            delivery=info.delivery,
            ledger=self.ledger,
            topic=self.topic,
            topics=self.topics,
            rejected=self.rejected,
            run=info.run,
            owner=info.owners.get(sink, ""),
            seen=sink in info.seen,
            at=info.at,
            idle=self.idle,
            attempt=attempt,
            judges=self.judges and not self.shuffles,
            verdicts=verdicts,
            lost=info.gone[partition - info.outputs] if verdicts and info.gone else (),
            options=self.producer,
        )

    # -- the three kinds of tasks ------------------------------------------------------------------

    def read(self, batches: Batches) -> Batches:
        """Yield the records of this task's part; the leaf's own rows are ignored."""
        for _ in batches:
            pass
        info, part, attempt = here()
        if info.batch == WARMING:
            return
        info.refuse_repetition()
        read = client.read("" if info.probe else attempt, self.request(info, part), info.batch, part)

        def take(rows: pa.RecordBatch) -> None:
            if not info.probe:
                _hand_over(Judging(attempt, info.batch, part, whole=False), rows)

        done = yield from self.records(info, part, read, take)
        if self.reads is not None:
            self.reads.add([(part, done)])

    def judge(self, batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        """Hand rejected rows to the gateway; yield for each row whether it was accepted.

        A row is null where the record was accepted and breaks no rule, so such records cost next to nothing here.
        """
        info, part, attempt = here()
        task = self.assignment(info, info.outputs + part, attempt, verdicts=True) if self.shuffles else None
        handing = client.Handing(task or Judging(attempt, info.batch, part))
        if info.batch == WARMING or info.probe:
            yield from (aside(each)[0] for each in batches)
            return
        judged: list[Judged] = []
        try:
            for each in self.end.complete(batches):
                accepted, rejected, broken = aside(each)
                if len(rejected):
                    handing.add(as_rows(rejected))
                if self.rules:
                    judged.append(tally(broken, len(each), self.rules))
                yield accepted
            if self.judged is not None and judged:
                self.judged.add([(part, total(judged))])
            written = handing.end()
            if self.answers is not None:
                self.answers.add([written])
        finally:
            handing.close()

    def all_of_it(self, spec: ArrowSpec) -> Callable[[Batches], Batches]:
        """Return the one stage of a pipeline that needs no DataFrame: from gateway to gateway."""

        def task(batches: Batches) -> Batches:
            for _ in batches:
                pass
            info, number, attempt = here()
            info.refuse_repetition()
            stages = stages_of(spec)
            if info.batch == WARMING:
                time.sleep(_HOLD)
                yield answer(Written(SinkPartition(number), skipped=True))
                return
            taken: list[pa.RecordBatch] = []
            read = client.read("" if info.probe else attempt, self.request(info, number), info.batch, number)
            judged: list[Judged] = []
            records = self.records(info, number, read, taken.append)
            made = itertools.chain(rows(stages, records, judged.append), taken)
            if info.probe:
                collections.deque(made, maxlen=0)
                yield answer(Written(SinkPartition(number), skipped=True))
                return
            written = client.Client().write(self.assignment(info, number, attempt), made)
            yield answer(written if written.skipped else replace(written, judged=total(judged)))

        return task

    def write(self, batches: Batches) -> Batches:
        """Write this task's rows as a sink partition, and yield what was written."""
        info, number, attempt = here()
        if info.batch == WARMING or info.probe:
            for _ in self.end.complete(batches):
                pass
            if not info.probe:
                time.sleep(_HOLD)
            yield answer(Written(SinkPartition(number), skipped=True))
            return
        task = self.assignment(info, number, "" if self.shuffles else attempt)
        yield answer(client.Client().write(task, self.end.complete(batches)))


def _hand_over(question: Judging, rows: pa.RecordBatch) -> None:
    """Hand rejected rows to the gateway, and return once it has them."""
    handing = client.Handing(question)
    try:
        handing.add(rows)
        handing.end()
    finally:
        handing.close()


def here() -> tuple[BatchInfo, int, str]:
    """Return the batch, the number of the task's part in it, and the name of the attempt."""
    info, context = of_task(PROPERTY, BatchInfo)
    task = context.partitionId()
    return info, info.numbers[task] if info.numbers else task, f"{info.run}/{info.batch}/{context.taskAttemptId()}"
