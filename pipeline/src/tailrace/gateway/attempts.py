"""The state of each task attempt: whether its ranges were read completely, and its rejected rows.

Reading, judging and writing are separate conversations, because Spark may run them in different Python workers. An
attempt may commit only if its source ranges were read completely and every record has a verdict: otherwise a function
that stops early would lose the rejected records it never reached.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from tailrace import errors
from tailrace.gateway import Assignment, ReadDone
from tailrace.gateway.schemas import ROW_SCHEMA

IN_MEMORY = 16_000_000  # bytes of rejected rows that an attempt keeps in memory; more go to a file
FORGET_AFTER = 3600.0  # seconds until an attempt counts as abandoned


class Aside:
    """The rejected rows of one attempt, held until its transaction writes them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._batches: list[Any] = []
        self._size = 0
        self._stream: Any = None
        self._sink: BinaryIO | None = None
        self._spilled = False

    def add(self, batch: Any) -> None:
        """Keep a batch of rows."""
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
            self._close()
            with self._file.open("rb") as source, pa.ipc.open_stream(source) as stream:
                yield from stream

    def _close(self) -> None:
        if self._stream is not None and self._sink is not None:
            self._stream.close()
            self._sink.close()
            self._stream = self._sink = None

    def discard(self) -> None:
        """Release memory and disk."""
        self._batches = []
        self._close()
        self._file.unlink(missing_ok=True)


@dataclass
class Attempt:
    """One attempt at one part of a batch."""

    aside: Aside
    read: ReadDone | None = None
    judged: bool = False
    since: float = field(default_factory=time.monotonic)


class Attempts:
    """The attempts of one gateway; each conversation has its own thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._kept: dict[str, Attempt] = {}

    def _of(self, name: str) -> Attempt:
        with self._lock:
            if name not in self._kept:
                self._kept[name] = Attempt(Aside(self._folder / f"aside-{next(self._numbers)}.arrow"))
            return self._kept[name]

    def read(self, name: str, done: ReadDone) -> None:
        """Note that the attempt's ranges were read completely."""
        self._of(name).read = done

    def aside(self, name: str, batch: Any) -> None:
        """Keep rejected rows for the attempt's transaction."""
        self._of(name).aside.add(batch)

    def judged(self, name: str) -> None:
        """Note that every record of the attempt has a verdict."""
        self._of(name).judged = True

    def finish(self, name: str) -> Attempt | None:
        """Return the attempt's state and forget it; the caller discards its rejected rows."""
        with self._lock:
            return self._kept.pop(name, None)

    def sweep(self) -> None:
        """Forget abandoned attempts."""
        now = time.monotonic()
        with self._lock:
            old = [name for name, each in self._kept.items() if now - each.since > FORGET_AFTER]
            gone = [self._kept.pop(name) for name in old]
        for each in gone:
            each.aside.discard()


def completed(attempt: Attempt | None, task: Assignment) -> Attempt:
    """Return the attempt if it may commit; raise InputUnread if records are unread or have no verdict."""
    if attempt is None or attempt.read is None or (task.judges and not attempt.judged):
        raise errors.InputUnread(
            f"{task}: the function ended before it had read all of its rows",
            kept="its transaction was aborted; nothing of this attempt is visible to a read_committed reader",
            then="let the function read its input to the end; to drop records, filter them",
        )
    return attempt
