"""Crash points: named steps of the protocol at which a process kills itself on request, for crash tests.

A test can then check what a crash at each step leaves behind. The environment variable TAILRACE_CRASH lists the crashes
and reaches the driver, the Python workers and the gateway; crash points are inert unless it is set. Each crash happens
once (or `times` times), however often the batch is retried: a file in the named folder records that it has happened.
`tailrace.testing` offers this to users' own tests.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil

ENV = "TAILRACE_CRASH"
ROOT = "TAILRACE_CRASH_ROOT"  # the pid of the driver, which sets it: the root of its process tree


class Point(StrEnum):
    """The steps of the protocol, in order; DRIVER, WORKER, GATEWAY and READER say which process runs each."""

    LEDGER_TAKEN = "ledger_taken"  # a driver starts: older drivers are fenced, nothing is read yet
    SINKS_FENCED = "sinks_fenced"  # the sink partitions of the last plan are fenced too
    OPEN_BATCH_FINISHED = "open_batch_finished"  # an older run's open batch is delivered, the stream has not begun
    PLAN_UNWRITTEN = "plan_unwritten"  # the batch is chosen, its plan is not in the ledger
    PLAN_OPEN = "plan_open"  # the plan is in the driver's transaction, which is not committed
    PLAN_SENT = "plan_sent"  # the commit of that transaction is sent, the answer not read
    PLAN_WRITTEN = "plan_written"  # the plan is committed, no task has begun
    LOOKED_AHEAD = "looked_ahead"  # a batch is in progress, and the driver has looked for the next one
    READ_IN_PART = "read_in_part"  # the gateway has handed over some of the records that a task reads
    READ_WHOLE = "read_whole"  # the task has all records, the gateway has not noted that
    ASIDE_GIVEN = "aside_given"  # the gateway has all rejected rows of a task, but not noted that there are no more
    ASIDE_NOTED = "aside_noted"  # every record of the task has its verdict, the task does not know
    TASK_BEGUN = "task_begun"  # a task has its rows, the gateway has received nothing
    ROWS_IN_PART = "rows_in_part"  # the gateway has some of the task's rows
    ROWS_SENT = "rows_sent"  # the gateway has all rows, but not the message that they are complete
    ROWS_WHOLE = "rows_whole"  # the gateway has that message too, and has not answered
    SINK_FENCED = "sink_fenced"  # the gateway has a fresh producer, and has not read the marker
    MARKER_READ = "marker_read"  # the marker says: write
    TRANSACTION_BEGUN = "transaction_begun"  # no record is sent
    SENT_IN_PART = "sent_in_part"  # the broker has acknowledged some records
    ALL_SENT = "all_sent"  # the broker has acknowledged all records, the marker is not in the transaction
    MARKER_SENT = "marker_sent"  # the marker is in the transaction, the commit is not sent
    COMMIT_SENT = "commit_sent"  # the commit is sent, its answer not read
    COMMIT_ACKNOWLEDGED = "commit_acknowledged"  # the answer is read, but not yet trusted
    BATCH_WRITTEN = "batch_written"  # the gateway trusts the commit, the task does not know
    TASK_ANSWERED = "task_answered"  # the worker knows, Spark does not
    BATCH_DONE = "batch_done"  # every sink partition has answered the driver, which has noted nothing
    BATCH_RETURNED = "batch_returned"  # the driver has finished the batch, Spark has not committed it to its folder
    DONE_OPEN = "done_open"  # the note that the last batch is done is in a transaction that is not committed
    DONE_NOTED = "done_noted"  # that note is committed, the driver has not exited


WORKER = (Point.TASK_BEGUN, Point.ROWS_IN_PART, Point.ROWS_SENT, Point.ROWS_WHOLE, Point.TASK_ANSWERED)
GATEWAY = (
    Point.SINK_FENCED,
    Point.MARKER_READ,
    Point.TRANSACTION_BEGUN,
    Point.SENT_IN_PART,
    Point.ALL_SENT,
    Point.MARKER_SENT,
    Point.COMMIT_SENT,
    Point.COMMIT_ACKNOWLEDGED,
    Point.BATCH_WRITTEN,
)
# These run in the gateway too, before anything is written.
READER = (Point.READ_IN_PART, Point.READ_WHOLE, Point.ASIDE_GIVEN, Point.ASIDE_NOTED)
DRIVER = tuple(each for each in Point if each not in WORKER + GATEWAY + READER)


class Victim(StrEnum):
    """What is killed."""

    PROCESS = "process"  # the process that reached the point
    TREE = "tree"  # its driver, with every process started from there


@dataclass(frozen=True)
class Crash:
    """`crash: {at: commit_sent, batch: 3, partition: 1}`; an omitted batch or partition matches any."""

    at: Point
    batch: int | None = None
    partition: int | None = None
    kills: Victim = Victim.PROCESS
    times: int = 1

    def fits(self, point: Point, batch: int, partition: int | None) -> bool:
        """Return whether this crash applies here."""
        return (
            self.at is point
            and self.batch in {None, batch}
            and (self.partition is None or partition is None or self.partition == partition)
        )

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Crash:
        """Make the crash that a mapping describes."""
        given = dict(data)
        return cls(Point(given.pop("at")), kills=Victim(given.pop("kills", Victim.PROCESS)), **given)


def crashes(folder: Path, *planned: Crash) -> dict[str, str]:
    """Return the environment variable that triggers these crashes; `folder`, best a new one, records which happened."""
    folder.mkdir(parents=True, exist_ok=True)
    return {ENV: json.dumps({"folder": str(folder), "crashes": [asdict(each) for each in planned]})}


def happened(folder: Path) -> list[dict[str, Any]]:
    """Return the crashes that have happened: which, in which process, and when."""
    return sorted((json.loads(file.read_text()) for file in folder.glob("*.crash")), key=lambda each: each["time"])


def _load(text: str | None) -> tuple[Path, list[Crash]]:
    if not text:
        return Path(), []
    data = json.loads(text)
    return Path(data["folder"]), [Crash.of(each) for each in data["crashes"]]


_folder, _crashes = _load(os.environ.get(ENV))


def forked() -> None:
    """Take the crashes from the environment again: this process is a fork of one that had another."""
    global _folder, _crashes
    _folder, _crashes = _load(os.environ.get(ENV))


def root() -> None:
    """Mark this process as the driver: every process started from here belongs to its tree."""
    if _crashes:
        os.environ[ROOT] = str(os.getpid())


def at(point: Point, batch: int, partition: int | None = None, first: Callable[[], object] | None = None) -> None:
    """Die here if a crash is due; call `first` before, so that everything that should be sent is sent."""
    if _crashes:
        _at(point, batch, partition, first)


def halved(
    point: Point,
    batches: Iterator[Any],
    batch: int,
    partition: int | None = None,
    first: Callable[[], object] | None = None,
) -> Iterator[Any]:
    """Yield the Arrow batches; crash after half of the first one if a crash is due."""
    return _halved(point, batches, batch, partition, first) if _crashes else batches


def _halved(
    point: Point, batches: Iterator[Any], batch: int, partition: int | None, first: Callable[[], object] | None
) -> Iterator[Any]:
    for each in batches:
        half = each.num_rows // 2
        yield each.slice(0, half)
        _at(point, batch, partition, first)
        yield each.slice(half)


class Ear:
    """Watches librdkafka's log for the request that ends a transaction, and dies when it has been sent.

    The producer's own thread reads the answer a few milliseconds later, when nothing can act on it any more.
    """

    def __init__(self, point: Point) -> None:
        self._point = point
        self._die: Callable[[str], None] | None = None
        self.options: dict[str, Any] = {}
        if any(each.at is point for each in _crashes):
            logger = logging.Logger(f"{__name__}.{point}")
            logger.addHandler(_Handler(self))
            self.options = {"debug": "protocol", "log_level": 7, "logger": logger}

    def heard(self, text: str) -> None:
        """Handle a line of librdkafka's log."""
        die = self._die
        if die is not None and "Sent EndTxnRequest" in text:
            die("sent")

    @contextlib.contextmanager
    def listening(self, producer: Any, batch: int, partition: int | None = None) -> Iterator[None]:
        """Watch the log while the `with` block ends a transaction."""
        crash = _due(self._point, batch, partition) if self.options else None
        if crash is None:
            yield
            return
        number, wanted = crash
        end = threading.Event()

        def die(how: str) -> None:
            if _claim(number, wanted, batch, partition, how):
                _die(wanted.kills)

        def listen() -> None:
            while not end.is_set():
                producer.poll(0.01)  # the log comes this way

        producer.poll(0)
        self._die = die
        threading.Thread(target=listen, name="crash", daemon=True).start()
        try:
            yield
            self._die = None
            die("answered")  # the log line came later than the answer: a different crash, recorded as such
        finally:
            end.set()
            self._die = None


class _Handler(logging.Handler):
    def __init__(self, ear: Ear) -> None:
        super().__init__()
        self._ear = ear

    def emit(self, record: logging.LogRecord) -> None:
        self._ear.heard(record.getMessage())


def _due(point: Point, batch: int, partition: int | None) -> tuple[int, Crash] | None:
    for number, crash in enumerate(_crashes):
        if crash.fits(point, batch, partition) and not _file(number, crash.times - 1).exists():
            return number, crash
    return None


def _at(point: Point, batch: int, partition: int | None, first: Callable[[], object] | None) -> None:
    due = _due(point, batch, partition)
    if due is None:
        return
    if first is not None:
        first()
    if _claim(*due, batch, partition, "there"):
        _die(due[1].kills)


def _file(number: int, time: int) -> Path:
    return _folder / f"{number}.{time}.crash"


def _claim(number: int, crash: Crash, batch: int, partition: int | None, how: str) -> bool:
    """Return whether this process is the one that dies for this crash."""
    for attempt in range(crash.times):
        record = {"at": crash.at, "batch": batch, "partition": partition, "how": how}
        record |= {"pid": os.getpid(), "time": time.time()}
        draft = _folder / f"{number}.{attempt}.{os.getpid()}-{threading.get_ident()}"
        draft.write_text(json.dumps(record))
        try:
            os.link(draft, _file(number, attempt))  # atomic: complete or absent
            return True
        except FileExistsError:
            continue
        finally:
            draft.unlink()
    return False


def _die(victim: Victim) -> None:
    if victim is Victim.TREE and ROOT in os.environ:
        with contextlib.suppress(psutil.NoSuchProcess):
            driver = psutil.Process(int(os.environ[ROOT]))
            if driver.pid != os.getpid():
                driver.suspend()  # a stopped process cannot start children that would be missed
            for each in [driver, *driver.children(recursive=True)]:
                if each.pid != os.getpid():
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()
    os.kill(os.getpid(), signal.SIGKILL)
