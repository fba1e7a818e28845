"""The state of each task attempt: whether its ranges were read completely, and its rejected rows.

Reading, judging and writing are separate conversations, because Spark may run them in different Python workers. An
attempt may commit only if its source ranges were read completely and every record has a verdict: otherwise a function
that stops early would lose the rejected records it never reached. For the same reason an attempt that was forgotten
never looks like a new one: what was handed over for it is gone.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from tailrace import errors
from tailrace.gateway import Assignment, ReadDone
from tailrace.gateway.schemas import ROW_SCHEMA

IN_MEMORY = 16_000_000  # bytes of rejected rows that an attempt keeps in memory; more go to a file
FORGET_AFTER = 86_400.0  # seconds without a conversation until an attempt counts as abandoned


class Aside:
    """The rejected rows of one attempt, held until its transaction writes them.

    The gate and the reading task may hand rows over at the same time.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._batches: list[Any] = []
        self._size = 0
        self._stream: Any = None
        self._sink: BinaryIO | None = None
        self._spilled = False
        self._discarded = False

    def add(self, batch: Any) -> None:
        """Keep a batch of rows; drop it if the attempt is over."""
        with self._lock:
            if self._discarded:
                return
            self._size += batch.nbytes
            if self._size <= IN_MEMORY:
                self._batches.append(batch)
                return
            if self._stream is None:
                self._sink = self._file.open("wb")
                self._spilled = True
                self._stream = pa.ipc.new_stream(self._sink, ROW_SCHEMA)
            self._stream.write_batch(batch)

    def rows(self) -> Iterator[Any]:
        """Yield the rows in the order they were added."""
        yield from self._batches
        if self._spilled:
            with self._lock:
                self._close()
            with self._file.open("rb") as source, pa.ipc.open_stream(source) as stream:
                yield from stream

    def _close(self) -> None:
        stream, sink = self._stream, self._sink
        self._stream = self._sink = None
        if stream is not None and sink is not None:
            with sink:
                stream.close()

    def discard(self) -> None:
        """Release memory and disk, even if the disk is full; rows that still come are dropped."""
        with self._lock:
            self._discarded = True
            self._batches = []
            with contextlib.suppress(OSError):
                self._close()
            with contextlib.suppress(OSError):
                self._file.unlink(missing_ok=True)


@dataclass
class Attempt:
    """One attempt at one part of a batch."""

    aside: Aside
    read: ReadDone | None = None
    judged: bool = False
    forgotten: str = ""  # why, if it was
    users: int = 0  # open conversations
    since: float = 0.0  # when the last conversation touched it


def place_of(name: str) -> tuple[str, int | None]:
    """Return the run and the batch that an attempt's name tells; no batch if it has another form."""
    run, _, rest = name.partition("/")
    batch = rest.partition("/")[0]
    return (run, int(batch)) if batch.isdecimal() else (name, None)


class Attempts:
    """The attempts of one gateway; each conversation has its own thread.

    A run delivers one batch after another, so the first attempt of a batch ends all attempts of the earlier ones that
    no conversation holds. That bounds what is kept, the names of forgotten attempts included.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._kept: dict[str, Attempt] = {}
        self._over: dict[str, str] = {}  # names of forgotten attempts, with the reasons
        self._begun: dict[str, int] = {}  # the last batch of each run

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[Attempt]:
        """Return the attempt's state, which is not forgotten during this block."""
        with self._lock:
            gone = self._begin(*place_of(name))
            attempt = self._take(name)
        for each in gone:
            each.aside.discard()
        try:
            yield attempt
        finally:
            with self._lock:
                attempt.users -= 1
                attempt.since = self._clock()

    @contextlib.contextmanager
    def ending(self, name: str) -> Iterator[Attempt]:
        """Do the same for the attempt's last conversation: what is left is discarded, however the block ends."""
        with self.held(name) as attempt:
            try:
                yield attempt
            finally:
                with self._lock:
                    self._drop(name, "it has ended already")
                attempt.aside.discard()

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Aside]:
        """Return room for rows of one conversation alone."""
        with self._lock:
            aside = self._room()
        try:
            yield aside
        finally:
            aside.discard()

    def sweep(self) -> None:
        """Forget abandoned attempts."""
        with self._lock:
            gone = self._forget()
        for each in gone:
            each.aside.discard()

    # -- the callers of these hold the lock ----------------------------------------------------------

    def _take(self, name: str) -> Attempt:
        attempt = self._kept.get(name)
        if attempt is None:
            why = self._over.get(name) or self._superseded(name)
            attempt = Attempt(self._room(), forgotten=why)
            if why:
                attempt.aside.discard()
            else:
                self._kept[name] = attempt
        attempt.users += 1
        attempt.since = self._clock()
        return attempt

    def _room(self) -> Aside:
        return Aside(self._folder / f"aside-{next(self._numbers)}.arrow")

    def _begin(self, run: str, batch: int | None) -> list[Attempt]:
        """Note the batch; if it is a new one, forget the attempts of the earlier ones, and return them."""
        if batch is None or batch <= self._begun.get(run, -1):
            return []
        self._begun[run] = batch
        self._over = {name: why for name, why in self._over.items() if not self._superseded(name)}
        return self._forget()

    def _superseded(self, name: str) -> str:
        run, batch = place_of(name)
        begun = self._begun.get(run, -1)
        return f"batch {begun} of the same run has begun" if batch is not None and batch < begun else ""

    def _forget(self) -> list[Attempt]:
        now = self._clock()
        gone = []
        for name, each in list(self._kept.items()):
            if each.users:
                continue
            why = self._superseded(name)
            if not why and now - each.since > FORGET_AFTER:
                why = f"no conversation touched it for {FORGET_AFTER / 3600:.0f} hours"
            if why:
                self._drop(name, why)
                gone.append(each)
        return gone

    def _drop(self, name: str, why: str) -> None:
        self._kept.pop(name, None)
        if not self._superseded(name):  # otherwise the number of the batch tells it
            self._over[name] = why


def completed(attempt: Attempt, task: Assignment) -> Attempt:
    """Return the attempt if it may commit; raise InputUnread if records are unread, unjudged or forgotten."""
    if attempt.forgotten:
        raise errors.InputUnread(
            f"{task}: the gateway had forgotten which records this attempt rejected: {attempt.forgotten}",
            kept="its transaction was aborted; nothing of this attempt is visible to a read_committed reader",
            then="start the pipeline again; if this repeats, lower batch.max_records: a smaller batch takes less time",
        )
    if attempt.read is None or (task.judges and not attempt.judged):
        raise errors.InputUnread(
            f"{task}: the function ended before it had read all of its rows",
            kept="its transaction was aborted; nothing of this attempt is visible to a read_committed reader",
            then="let the function read its input to the end; to drop records, filter them; if it joins an "
            "empty table, set spark.sql.codegen.maxFields to more than the rows' columns: without generated code, "
            "Spark reads nothing then",
        )
    return attempt
