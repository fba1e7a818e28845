"""Running a pipeline inside a test without Spark: the real loop, ledger and gateway code, on a real Kafka."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.recreation import delete_topic, recreate_topic
from tailrace.config import Pipeline
from tailrace.driver import readable, recovery, start
from tailrace.driver.context import RENEW_EVERY, Context, Unwatched, Watcher
from tailrace.driver.engine import NO_FAULTS, Faults, Parts
from tailrace.driver.offset_mirror import OffsetMirror
from tailrace.driver.shutdown import Stop
from tailrace.driver.thread_engine import ThreadEngine
from tailrace.gateway import Written
from tailrace.kafka.cluster import Cluster
from tailrace.progress.ledger import Ledger
from tailrace.progress.plan import Plan, SinkPartition
from tailrace.progress.stores import open_store
from tailrace.stages.assembly import Assembly
from tailrace.startup.preflight import preflight
from tailrace.status.events import Emit, Event
from tailrace.status.snapshots import Finished
from tailrace.testing import Record, Topics, consume, produce

if TYPE_CHECKING:
    from support.pipelines import Bench  # it imports Spark

Deliver = Callable[[ThreadEngine, Plan, Mapping[SinkPartition, str], frozenset[str]], list[Written]]


class Torn(Exception):
    """Raised by a test's engine in the middle of a batch."""


def first_part_only(
    engine: ThreadEngine, plan: Plan, owners: Mapping[SinkPartition, str], gone: frozenset[str]
) -> list[Written]:
    """Deliver the first sink partition, then fail, as a crash in mid-batch would."""
    engine.part(plan, 0, owners, gone)
    raise Torn


def nothing(
    engine: ThreadEngine, plan: Plan, owners: Mapping[SinkPartition, str], gone: frozenset[str]
) -> list[Written]:
    """Fail before anything is delivered."""
    raise Torn


def killed_before_noting(
    engine: ThreadEngine, plan: Plan, owners: Mapping[SinkPartition, str], gone: frozenset[str]
) -> list[Written]:
    """Deliver the batch, then fail, as a driver that is killed before it has noted that."""
    ThreadEngine.deliver(engine, plan, owners, gone)
    raise Torn


class Tearing(ThreadEngine):
    """An engine that delivers as a test says."""

    def __init__(self, pipeline: Pipeline, folder: Path, run: str, how: Deliver) -> None:
        super().__init__(pipeline, folder, run)
        self._how = how

    def deliver(
        self,
        plan: Plan,
        owners: Mapping[SinkPartition, str],
        gone: frozenset[str] = frozenset(),
        faults: Faults = NO_FAULTS,
        seen: Parts = frozenset(),
    ) -> list[Written]:
        """Deliver as the test says."""
        return self._how(self, plan, owners, gone)


@dataclass(frozen=True)
class Finishing(Unwatched):
    """A watcher that keeps the finished batches, and nothing else."""

    keep: Callable[[Finished], None]

    def finished(self, batch: Finished) -> None:
        """Keep it."""
        self.keep(batch)


def run_in_threads(
    pipeline: Pipeline,
    folder: Path,
    name: str,
    make: Callable[[], ThreadEngine],
    emit: Emit,
    *,
    stop: Stop | None = None,
    watcher: Watcher | None = None,
    renew_every: float = RENEW_EVERY,
    until_read: bool,
) -> None:
    """Run a pipeline as `tailrace run` does, without Spark."""
    cluster = Cluster(pipeline.kafka)
    preflight(pipeline, cluster, folder, emit)
    engine = make()
    with (
        contextlib.closing(engine),
        Ledger.of(pipeline) as ledger,
        contextlib.closing(OffsetMirror(pipeline, lambda: open_store(pipeline, folder), emit)) as mirror,
    ):
        recovered, _ = recovery.take(pipeline, ledger, cluster)
        assembly = Assembly(pipeline, None, folder)
        context = Context(
            name, pipeline, assembly, cluster, ledger, mirror, emit, stop or Stop(), watcher or Unwatched(), renew_every
        )
        start.run(context, engine, recovered, until_read=until_read)
        if until_read:
            readable.wait(context)


@dataclass(frozen=True)
class Running:
    """A pipeline that runs in a thread, and its events."""

    events: list[dict[str, Any]]
    thread: threading.Thread

    @property
    def ended(self) -> bool:
        """Whether it has ended by itself."""
        return not self.thread.is_alive()


@contextlib.contextmanager
def running(one: Line, *, renew_every: float = RENEW_EVERY, **sections: Any) -> Iterator[Running]:
    """Run a pipeline in a thread while the block runs; raise the error that ended it."""
    pipeline, stop, events = one.pipeline(**sections), Stop(), list[dict[str, Any]]()
    one.runs += 1
    name, failed = f"run-{one.runs}", list[BaseException]()

    def run() -> None:
        try:
            run_in_threads(
                pipeline,
                one.folder,
                name,
                lambda: ThreadEngine(pipeline, one.folder, name),
                lambda event: events.append(event.as_dict()),
                stop=stop,
                renew_every=renew_every,
                until_read=False,
            )
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield Running(events, thread)
    finally:
        stop("the test is over")
        thread.join(60)
    if failed:
        raise failed[0]


@dataclass
class Line:
    """One pipeline without Spark: its topics, its folder, its events."""

    topics: Topics
    folder: Path
    name: str
    source: str
    sink: str
    partitions: int
    runs: int = 0
    finished: list[Finished] = field(default_factory=list)

    @property
    def kafka(self) -> str:
        """Return the broker's address."""
        return self.topics.bootstrap_servers

    def pipeline(self, **sections: Any) -> Pipeline:
        """Return a raw pipeline from source to sink, with these sections merged in."""
        base: dict[str, Any] = {
            "pipeline": self.name,
            "kafka": {"bootstrap.servers": self.kafka},
            "source": {"topics": [self.source], "partitions": self.partitions},
            "sink": {"topic": self.sink, "format": "raw"},
            "ledger": {"topic": f"{self.name}.ledger", "partitions": 8},
            "batch": {"target": 0},
        }
        for name, value in sections.items():
            base[name] = {**base[name], **value} if isinstance(base.get(name), dict) else value
        return Pipeline.model_validate(base)

    def run(self, how: Deliver | None = None, **sections: Any) -> list[dict[str, Any]]:
        """Read what the source contains, then end; return the events."""
        pipeline, events = self.pipeline(**sections), list[dict[str, Any]]()
        self.runs += 1
        name = f"run-{self.runs}"

        def emit(event: Event) -> None:
            events.append(event.as_dict())

        def engine() -> ThreadEngine:
            if how is None:
                return ThreadEngine(pipeline, self.folder, name)
            return Tearing(pipeline, self.folder, name, how)

        run_in_threads(
            pipeline, self.folder, name, engine, emit, watcher=Finishing(self.finished.append), until_read=True
        )
        return events

    def send(self, values: list[bytes | None], partition: int | None = None) -> None:
        """Write records to the source topic."""
        produce(self.kafka, self.source, [Record(value, partition=partition) for value in values])

    def values(self, topic: str | None = None) -> list[bytes]:
        """Return what a read_committed consumer finds in the sink topic, sorted."""
        return sorted(each.value or b"" for each in consume(self.kafka, topic or self.sink))

    def rejected(self) -> list[bytes]:
        """Return the rejected values, sorted."""
        return self.values(f"{self.name}.rejected")


def deleted(one: Line | Bench, topic: str) -> None:
    """Delete a topic, and wait until a broker no longer names it."""
    delete_topic(one.kafka, topic)


def recreated(one: Line | Bench, name: str = "", partitions: int = 1, **config: str) -> None:
    """Delete a topic, by default the source, and create it again."""
    recreate_topic(one.kafka, name or one.source, partitions, **config)
