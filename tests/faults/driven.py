"""A harness for a complete pipeline: start, strike and restart its drivers as processes, and follow their events."""

from __future__ import annotations

import json
import re
import signal
import statistics
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil
import yaml

from faults.checker import Array, Cut
from faults.proof import Proof, plans, prove
from faults.reading import Watching, watching
from faults.records import GOOD, Fed, feed
from faults.scenario import Context
from tailrace import crash_points
from tailrace.demo.batches import Batches
from tailrace.demo.driver import Driver
from tailrace.progress.plan import Plan

LIMIT = 300.0  # seconds without a start or a written batch
STOP_LIMIT = 120.0
PARTITIONS = 4
_MOST_STARTS = 100
SPARK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # short runs: starting fast is what counts
    "spark.master": "local[2,4]",
    "spark.ui.enabled": "false",
}
PLAIN = """
from pyspark.sql import functions as F


def plain(frame):
    return frame.select(F.col("kafka.key").alias("key"), "value")
"""
_RANGE = re.compile(r"(.+)-(\d+):(\d+)-(\d+)")


class Kind(StrEnum):
    """The processes that can be killed."""

    DRIVER = "driver"  # the driver's Python process alone; its JVM and workers live on for a moment
    JVM = "JVM"
    WORKER = "worker"
    GATEWAY = "gateway"
    TREE = "whole tree"


@dataclass(frozen=True)
class Shape:
    """The size of a pipeline's input and topics."""

    per_batch: int
    batches: int
    partitions: int = PARTITIONS
    outputs: int = PARTITIONS

    @property
    def per_partition(self) -> int:
        """Records in each source partition."""
        return self.per_batch * self.batches // self.partitions


class Driven:
    """One pipeline and its successive drivers."""

    def __init__(
        self,
        context: Context,
        shape: Shape,
        topics: tuple[str, str],
        watch: Watching,
        *,
        native: bool,
        crashes: Sequence[crash_points.Crash],
        sections: Mapping[str, Any],
    ) -> None:
        self.context, self.shape, self.native = context, shape, native
        self.name = f"f-{uuid.uuid4().hex[:8]}"
        self.folder = context.folder / self.name
        self.folder.mkdir()
        self.source, self.sink = topics
        self.rejected = context.topic("rejected", 1)
        self.ledger = f"{self.name}.ledger"
        self.marks = self.folder / "crashes"
        self.batches = Batches()
        self.starts = 0
        self.events: list[Mapping[str, Any]] = []
        self.fed = Fed({}, topic=self.source)
        self.code: int | None = None  # exit code of the last driver that ended by itself
        self.error: Mapping[str, Any] = {}
        self.before_start: Callable[[], None] | None = None  # called once, before the next start
        self.sinks: dict[int, int] = {}  # batch → number of sink partitions in its plan
        self._watch = watch
        self._crashes = crashes
        self._sections = dict(sections)
        self._drivers: list[Driver] = []
        self._struck = 0  # crashes before this start; -1 if the driver was killed
        self._planned: float | None = None
        self._durations: deque[float] = deque(maxlen=5)
        (self.folder / "plain.py").write_text(PLAIN)

    # -- input and configuration --------------------------------------------------------------------

    def feed(self, per_partition: int | None = None, partitions: int | None = None, first: int = 0) -> None:
        """Append input."""
        start = self.fed.counts.get(first, 0)
        count = self.shape.per_partition if per_partition is None else per_partition
        made = feed(self.context.bootstrap, self.source, count, partitions or self.shape.partitions, start, first=first)
        self.fed = self.fed.more(made)
        self.batches.idle = False  # reported before this input existed

    def configure(self, **sections: Any) -> None:
        """Change sections of the configuration from the next start on."""
        for name, value in sections.items():
            old = self._sections.get(name)
            self._sections[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value

    def _file(self) -> Path:
        base: dict[str, Any] = {
            "pipeline": self.name,
            "kafka": {"bootstrap.servers": self.context.bootstrap},
            # A sink partition for each source partition, even in a small batch, because strikes name them.
            "source": {"topics": [self.source], "format": "raw", "partitions": self.shape.partitions},
            "process": {"function": "plain.py:plain", "validate": {"good": GOOD}},
            "sink": {"topic": self.sink, "format": "raw"},
            "rejected": self.rejected,
            "ledger": {"topic": self.ledger, "partitions": 16},
            "batch": {"max_records": self.shape.per_batch, "target": 0},
            "spark": SPARK,
        }
        for name, value in self._sections.items():
            base[name] = {**base[name], **value} if isinstance(base.get(name), dict) else value
        file = self.folder / "pipeline.yaml"
        file.write_text(yaml.safe_dump(base))
        return file

    # -- the drivers --------------------------------------------------------------------------------

    @property
    def driver(self) -> Driver:
        """The driver that is running, or ran last."""
        return self._drivers[-1]

    def start(self, changed: bool = True) -> None:
        """Start a driver as a supervisor would, after applying the pending change if there is one."""
        if changed and self.before_start is not None:
            change, self.before_start = self.before_start, None
            change()
        scratch = self.folder / "tmp"
        scratch.mkdir(exist_ok=True)
        command = ["-m", "tailrace.cli.main", "run", str(self._file()), "--output", "json"]
        if self.native:
            command = ["-m", "tailrace.demo.spark", str(self._file()), str(self.folder / "checkpoint")]
        environment = {"PYTHONUNBUFFERED": "1", "TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)}
        if self._crashes:
            environment |= crash_points.crashes(self.marks, *self._crashes)
        self._drivers.append(Driver(command, environment, self.folder))
        self._struck = self.happened
        self._planned = None
        self.starts += 1
        if self.starts > 1:
            self.context.say(f"start {self.starts}, after batch {self.batches.written} and {self.happened} crashes")

    @property
    def happened(self) -> int:
        """The number of planned crashes that have happened."""
        return len(list(self.marks.glob("*.crash")))

    def follow(self, until: Callable[[], bool], what: str, limit: float = LIMIT) -> None:
        """Take in events until the condition holds, restarting drivers that were struck."""
        ends, before = time.monotonic() + limit, (0, 0)
        while not until():
            self.step()
            if (self.starts, self.batches.written) != before:
                before, ends = (self.starts, self.batches.written), time.monotonic() + limit
            if time.monotonic() > ends:
                raise TimeoutError(f"{self.name}: waited in vain for {what}\n{self.driver.last_lines(40)}")

    def step(self, wait: float = 0.2) -> None:
        """Wait for an event, or for the driver's end."""
        ended = self.driver.code
        heard = self.driver.next(wait)
        if heard is not None:
            self._take(heard.at, heard.event)
        elif ended is not None:
            self._ended(ended)

    def _take(self, at: float, event: Mapping[str, Any]) -> None:
        self.events.append(event)
        self.batches.apply(event)
        kind = event.get("event")
        if kind == "planned":
            self._planned = at
        elif kind == "written" and self._planned is not None:
            self._durations.append(at - self._planned)
            self._planned = None
        elif "error" in event:
            self.error = event

    def _ended(self, code: int) -> None:
        self.code = code
        self.batches.ended()
        # The native sink's driver may fail because its predecessor's JVM still writes to the same folder.
        if self.happened == self._struck and not (self.native and self.starts < _MOST_STARTS):
            raise RuntimeError(
                f"{self.name}: the driver ended by itself: {dict(self.error)}"
            ) from self.driver.failure()
        # The processes it left behind live on for a moment, as they would in production.
        self.start()

    def drained(self) -> bool:
        """Whether everything has been read and written."""
        if self.native:
            return self._native_end() >= self.fed.total
        return self.batches.open is None and (self.batches.consumed >= self.fed.total or self.batches.idle)

    def _native_end(self) -> int:
        """Count the records in batches that Spark's checkpoint folder lists as committed."""
        folder = self.folder / "checkpoint"
        commits = [int(each.name) for each in (folder / "commits").glob("[0-9]*")] if folder.is_dir() else []
        return sum(self._native_offsets(max(commits)).values()) if commits else 0

    def _native_offsets(self, batch: int) -> dict[str, int]:
        text = (self.folder / "checkpoint" / "offsets" / str(batch)).read_text()
        return dict(json.loads(text.splitlines()[2])[self.source])

    def drain(self) -> None:
        """Follow until everything has been read and written, and every planned crash has happened."""
        wanted = sum(each.times for each in self._crashes)
        self.follow(
            lambda: self.happened >= wanted and self.drained(),
            f"the end of {self.fed.total} records, and {wanted} crashes",
        )

    def stop(self) -> None:
        """Send SIGTERM; the driver must exit cleanly, unless a planned crash comes just then."""
        self.driver.ask_to_stop()
        while (code := self.driver.wait(STOP_LIMIT)) != 0:
            if code is None:
                raise self.driver.failure()
            self._ended(code)
            self.follow(lambda: self.batches.idle, "the restarted driver to become idle")
            self.driver.ask_to_stop()
        while (heard := self.driver.next(0.0)) is not None:
            self._take(heard.at, heard.event)

    def close(self) -> None:
        """Leave no process of any driver behind."""
        for each in self._drivers:
            each.end(0.0)

    # -- kills --------------------------------------------------------------------------------------

    def kill(self, kind: Kind) -> bool:
        """Kill −9 one process of this kind, or the complete tree; return whether there was one."""
        found = self.processes(kind)
        if kind is Kind.TREE:
            self.driver.kill()
        elif not found:
            return False
        else:
            with suppress(psutil.NoSuchProcess):
                self.context.chance.choice(found).send_signal(signal.SIGKILL)
        if kind in {Kind.DRIVER, Kind.JVM, Kind.TREE}:
            self._struck = -1  # so its end is expected
        return True

    def processes(self, kind: Kind) -> list[psutil.Process]:
        """Find the live processes of this kind."""
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.driver.pid)
            below = root.children(recursive=True)
            match kind:
                case Kind.DRIVER | Kind.TREE:
                    return [root]
                case Kind.JVM:
                    return [each for each in below if each.ppid() == root.pid and "java" in each.name()]
                case Kind.GATEWAY:  # an orphan once the worker that started it is dead
                    jvms = {str(each.pid) for each in self.processes(Kind.JVM)}
                    return [
                        each
                        for each in psutil.process_iter()
                        if _runs(each, "tailrace.gateway.server") and each.cmdline()[-1] in jvms
                    ]
                case Kind.WORKER:
                    daemons = {each.pid for each in below if _runs(each, "daemon")}
                    return [each for each in below if each.pid in daemons and each.ppid() in daemons]
        return []

    def kill_in_batch(self, kind: Kind) -> int:
        """Kill at a random moment in the middle of a batch; return the batch."""
        while True:
            self.follow(lambda: self.batches.open is None, "the end of a batch")
            self.follow(lambda: self.batches.open is not None or self.drained(), "the beginning of a batch")
            if self.batches.open is None:
                raise RuntimeError(f"{self.name}: the input was too short for all kills")
            number = self.batches.open
            usual = statistics.median(self._durations) if self._durations else 0.5
            until = time.monotonic() + self.context.chance.uniform(0.02, 0.9) * usual
            self.follow(lambda until=until, number=number: time.monotonic() > until or self.batches.open != number, "")  # type: ignore[misc]
            if self.batches.open == number and self.driver.code is None and self.kill(kind):
                return number

    # -- the end ------------------------------------------------------------------------------------

    def cuts(self) -> list[Cut]:
        """Return the content of each transaction, from the plans in the ledger."""
        if self.native:
            return self._native_cuts()
        found: list[Cut] = []
        for batch, plan in sorted(plans(self.context.bootstrap, self.ledger, self.name).items()):
            self.sinks[batch] = plan.sinks
            if isinstance(plan, Plan):
                spans = [tuple((each.partition, each.start, each.end) for each in part) for part in plan.parts]
                found += [Cut(batch, sink, mine, plan.judges) for sink, mine in enumerate(spans) if not plan.shuffles]
                continue
            # Spark's own cut: good and rejected records come from two branches that each read the same range.
            times = Counter(plan.slices)
            found += [Cut(batch, sink, _spans(text), n > 1) for sink, (text, n) in enumerate(times.items())]
        return found

    def _native_cuts(self) -> list[Cut]:
        before: dict[int, int] = {}
        found: list[Cut] = []
        folder = self.folder / "checkpoint" / "offsets"
        for number in sorted(int(each.name) for each in folder.iterdir() if each.name.isdigit()):
            ends = self._native_offsets(number)
            spans = [(int(each), before.get(int(each), 0), int(end)) for each, end in ends.items()]
            found.append(Cut(number, 0, tuple(span for span in spans if span[2] > span[1])))
            before = {int(each): int(end) for each, end in ends.items()}
        return found

    def prove(self, *, ever: int | None = None) -> Proof:
        """Compare everything."""
        cuts = self.cuts()
        last = max(each.batch for each in cuts)
        ever = ever or max(self.sinks.values(), default=0)
        return prove(
            self.context.bootstrap, self.name, self.fed, self.sink, self.rejected, self._seen(),
            ledger=self.ledger, last=last, sinks=self.sinks.get(last, 0), ever=ever,
            transactional=not self.native,
        )  # fmt: skip

    def _seen(self) -> dict[int, Array]:
        return self._watch.finish()


def _runs(process: psutil.Process, module: str) -> bool:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return any(module in part for part in process.cmdline())
    return False


def _spans(text: str) -> tuple[tuple[int, int, int], ...]:
    """Parse the spans of a slice; return none if a shuffle hides them."""
    found = [_RANGE.fullmatch(part) for part in text.split("+")]
    return tuple((int(each[2]), int(each[3]), int(each[4])) for each in found if each is not None)


@contextmanager
def driven(
    context: Context,
    shape: Shape,
    *,
    native: bool = False,
    crashes: Sequence[crash_points.Crash] = (),
    **sections: Any,
) -> Iterator[Driven]:
    """Offer a pipeline whose input is written; whatever happens, leave no process behind."""
    topics = context.topic("in", shape.partitions), context.topic("out", shape.outputs)
    with watching(context.bootstrap, topics[1]) as watch:
        one = Driven(context, shape, topics, watch, native=native, crashes=crashes, sections=sections)
        try:
            one.feed()
            yield one
        finally:
            one.close()
