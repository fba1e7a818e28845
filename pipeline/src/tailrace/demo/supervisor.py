"""Runs the demo: Kafka, a generator that outlives every driver, drivers that may be killed, and the final proof.

The supervisor draws nothing: it reports to a `Watcher`, and returns a `Result`.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from tailrace.demo.batches import Batches, Row
from tailrace.demo.driver import STOP_LIMIT, Driver, Heard, Process
from tailrace.demo.example import Shown, shown
from tailrace.demo.feed import count_of, create_topics, kafka_at
from tailrace.demo.kills import KillSchedule
from tailrace.demo.proof import Verdict, compare, source_of
from tailrace.errors import KafkaFailed, QueryFailed
from tailrace.kafka.reader import Message, read
from tailrace.testing.embedded import EmbeddedKafka, EmbeddedOptions

START_LIMIT = 120.0
STILL_LIMIT = 180.0  # seconds without a written batch while the remaining records are read
KILL_LIMIT = 90.0  # seconds for one kill, including the restart until the next batch
QUIET = 5.0  # seconds of an idle driver after which nothing more is expected
SETTLED = 10.0  # seconds without a batch after which Spark has moved the watermark and closed its windows
POLL = 0.1


class SinkKind(StrEnum):
    """The sink that writes."""

    TAILRACE = "tailrace"
    SPARK = "spark"


@dataclass(frozen=True)
class DemoOptions:
    """The options of the demo."""

    seconds: float = 30.0
    rate: float = 1000.0
    kills: int = 0
    sink: SinkKind = SinkKind.TAILRACE
    keep: bool = False
    seed: int = 0
    example: str = "tweets"
    checkpoint: str | None = None  # where a stateful example keeps its state; by default in the demo's own folder


@dataclass(frozen=True)
class Result:
    """The result of the demo."""

    verdict: Verdict
    kills: int
    batches: int
    skipped: int
    seconds: float
    sink: SinkKind
    seed: int
    folder: Path | None
    checkpoint: str | None = None
    checkpoint_stays: bool = False  # outside the demo's own folder


class Watcher(Protocol):
    """Receives what happens."""

    def says(self, text: str) -> None:
        """Take a line about the demo's current step."""

    def wrote(self, row: Row) -> None:
        """Take the row of a written batch."""


class Supervisor:
    """One run of the demo."""

    def __init__(self, options: DemoOptions, watcher: Watcher) -> None:
        self.options = options
        self._watcher = watcher
        self._shown: Shown = shown(options.example)
        self._batches = Batches()
        self._kills = KillSchedule(options.kills, options.seconds, random.Random(options.seed))
        self._folder = Path(tempfile.mkdtemp(prefix="tailrace-demo-"))
        self._checkpoint = self._place()
        self._bootstrap = ""
        self._driver: Driver | None = None
        self._generator: Process | None = None
        self._started = False
        self._idle_since = 0.0
        self._heard_at = 0.0

    def run(self) -> Result:
        """Run the demo. However it ends, it leaves no process and, unless asked to keep them, no files."""
        began = time.monotonic()
        with ExitStack() as stack:
            if not self.options.keep:
                stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            self._watcher.says("starting an embedded Kafka")
            kafka = stack.enter_context(EmbeddedKafka(EmbeddedOptions(folder=self._folder / "kafka")))
            self._bootstrap = kafka.bootstrap_servers
            what = self._shown
            create_topics(self._bootstrap, [what.source], what.partitions)
            create_topics(self._bootstrap, [what.sink, what.rejected])
            stack.callback(self._end_processes)
            self._work()
            self._watcher.says("reading input, output and rejected records with plain consumers")
            return Result(
                verdict=prove(self._bootstrap, self._shown),
                kills=self._kills.landed,
                batches=self._batches.written + 1,
                skipped=self._batches.skipped,
                seconds=round(time.monotonic() - began, 1),
                sink=self.options.sink,
                seed=self.options.seed,
                folder=self._folder if self.options.keep else None,
                checkpoint=self._checkpoint,
                checkpoint_stays=self.options.checkpoint is not None,
            )

    def _place(self) -> str | None:
        """Return where the state goes: a separate folder per run, under the given place."""
        if not self._shown.stateful:
            return None
        given = self.options.checkpoint
        return f"{given.rstrip('/')}/{self._folder.name}" if given else f"file:{self._folder / 'state'}"

    def _work(self) -> None:
        options = self.options
        self._watcher.says(f"starting the pipeline {self._shown.example.pipeline}")
        self._start_driver()
        self._follow(lambda: self._started, START_LIMIT, "the pipeline to start")
        self._generator = self._start_generator()
        began = time.monotonic()
        self._kills.began(began)
        self._watcher.says(f"writing {options.rate:g} {self._shown.records} per second for {options.seconds:g} s")
        self._follow(
            lambda: time.monotonic() - began >= options.seconds and self._kills.done,
            options.seconds + KILL_LIMIT * options.kills + START_LIMIT,
            f"{options.kills} kills to land mid-batch",
        )
        self._stop_generator(self._generator)
        total = count_of(self._bootstrap, self._shown.source)
        stopped = time.monotonic()
        name = self._shown.records
        self._watcher.says(f"the generator has written {total} {name}; the pipeline reads what remains")
        what = f"another batch of the {total} {name} to be written"
        self._follow(lambda: self._drained(total, stopped), STILL_LIMIT, what, while_written=True)
        self._stop_driver()

    def _drained(self, total: int, stopped: float) -> bool:
        batches = self._batches
        if batches.open is not None:
            return False
        if self._shown.stateful:
            # The last records close windows only with the batch that Spark runs, without records, after theirs.
            return batches.consumed >= total and time.monotonic() - self._heard_at > SETTLED
        if batches.consumed >= total:
            return True
        return batches.idle and time.monotonic() - max(stopped, self._idle_since) > QUIET

    def _follow(self, reached: Callable[[], bool], limit: float, what: str, *, while_written: bool = False) -> None:
        """Handle events, and kill when it is time, until the condition holds.

        With `while_written` the limit restarts with each written batch: the total time depends on the machine.
        """
        until, written = time.monotonic() + limit, self._batches.written
        while not reached():
            now = time.monotonic()
            if while_written and self._batches.written != written:
                until, written = now + limit, self._batches.written
            if now > until:
                raise QueryFailed(
                    f"the demo waited {limit:.0f} s for {what}; the end of the driver's log:\n"
                    f"{self._running().last_lines()}",
                    kept="what was committed stays delivered",
                    then="tailrace demo --keep, then read driver.log in the folder it names",
                )
            self._check_generator()
            at = self._kills.at
            if at is not None and now >= at:
                self._kill()
                continue
            driver = self._running()
            ended = driver.code is not None
            heard = driver.next(POLL if at is None else min(POLL, at - now))
            if heard is not None:
                self._take(heard)
            elif ended:
                raise driver.failure()

    def _take(self, heard: Heard) -> None:
        kind = heard.event.get("event")
        was_idle = self._batches.idle
        row = self._batches.apply(heard.event)
        if self._batches.idle and not was_idle:
            self._idle_since = heard.at
        if kind == "started":
            self._started = True
        elif kind == "planned":
            self._heard_at = heard.at
            self._kills.planned(heard.at)
        elif kind == "written":
            self._heard_at = heard.at
            self._kills.written(heard.at)
        elif "error" in heard.event:
            raise self._running().failure()
        if row is not None:
            self._watcher.wrote(row)

    def _take_remaining(self, driver: Driver) -> None:
        for heard in driver.rest():
            row = self._batches.apply(heard.event)
            if row is not None:
                self._watcher.wrote(row)

    def _kill(self) -> None:
        driver = self._running()
        count = driver.kill()
        # Its last events decide whether the kill came mid-batch.
        self._take_remaining(driver)
        batch = self._batches.open
        self._batches.ended()
        self._kills.killed(batch is not None)
        driver.end(0.0)
        if batch is None:
            self._watcher.says(f"killed {count} processes between two batches, which does not count")
        else:
            self._watcher.says(
                f"kill {self._kills.landed} of {self._kills.wanted}: kill -9 of the driver and all it started,"
                f" {count} processes, in batch {batch}; restarting it"
            )
        self._start_driver()

    def _start_driver(self) -> None:
        file = str(self._shown.example.pipeline)
        command = ["-m", "tailrace.cli.main", "run", file, "--output", "json"]
        if self.options.sink is SinkKind.SPARK:
            command = ["-m", "tailrace.demo.spark", file, str(self._folder / "checkpoint")]
        scratch = self._folder / "tmp"
        scratch.mkdir(exist_ok=True)
        environment = {
            "TAILRACE_KAFKA__BOOTSTRAP_SERVERS": self._bootstrap,
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(scratch),  # killed drivers leave temporary files behind
            "SPARK_LOCAL_DIRS": str(scratch),
        }
        if self._checkpoint is not None:
            environment["TAILRACE_CHECKPOINT"] = self._checkpoint
        self._driver = Driver(command, environment, self._folder)

    def _start_generator(self) -> Process:
        options = self.options
        command = [str(self._shown.example.generator), "--bootstrap", self._bootstrap]
        command += ["--topic", self._shown.source]
        command += ["--rate", str(options.rate), "--seed", str(options.seed), "--while-stdin"]
        return Process(command, {}, self._folder, "generator")

    def _check_generator(self) -> None:
        generator = self._generator
        if generator is not None and generator.code is not None:
            raise KafkaFailed(
                f"the generator ended by itself with exit code {generator.code}; the end of its log:\n"
                f"{generator.last_lines()}",
                kept="what the pipeline had committed stays delivered",
            )

    def _stop_generator(self, generator: Process) -> None:
        self._generator = None
        generator.ask_to_stop()
        code = generator.wait(STOP_LIMIT)
        log = generator.last_lines()
        generator.end(0.0)
        if code != 0:
            raise KafkaFailed(f"the generator ended with exit code {code}; the end of its log:\n{log}")

    def _stop_driver(self) -> None:
        driver = self._running()
        driver.ask_to_stop()
        code = driver.wait(STOP_LIMIT)
        if code != 0:
            if code is not None:
                raise driver.failure()
            raise QueryFailed(f"the driver had not ended {STOP_LIMIT:.0f} s after SIGTERM")
        self._take_remaining(driver)
        self._driver = None
        driver.end(0.0)

    def _running(self) -> Driver:
        if self._driver is None:
            raise QueryFailed("the demo has no driver now")
        return self._driver

    def _end_processes(self) -> None:
        for process, limit in ((self._generator, 1.0), (self._driver, 15.0)):
            if process is not None:
                process.end(limit)


def prove(bootstrap: str, chosen: Shown) -> Verdict:
    """Read the three topics with plain consumers, and compare them."""
    kafka = kafka_at(bootstrap)
    count = 0

    def went_in() -> Iterable[Message]:
        nonlocal count
        for record in read(kafka, chosen.source):
            count += 1
            yield record

    expected = chosen.example.expected(went_in())
    outputs = Counter(chosen.example.identity(record) for record in read(kafka, chosen.sink))
    rejected = Counter(source_of(record) for record in read(kafka, chosen.rejected))
    return compare(count, expected, outputs, rejected)
