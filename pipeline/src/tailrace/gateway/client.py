"""The client of the executor's gateway, used by Python workers; it starts a gateway if there is none."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from tailrace import crash_points
from tailrace.crash_points import Point
from tailrace.errors import GatewayUnavailable, InvariantBroken, TailraceError
from tailrace.gateway import Assignment, ReadDone, ReadRequest, Written, watchdog
from tailrace.gateway import message_protocol as wire
from tailrace.telemetry.garbage import OWN, Vitals
from tailrace.telemetry.gateway_settings import ENV

_START_LIMIT = 60.0
_TRY_AGAIN = 15.0  # seconds until another gateway is started, if the last one did not come up
_LOOK_EVERY = 0.02
_RETRIED = "the task is tried again: the next attempt fences what is open, reads the marker, and then skips or writes"


class Client:
    """Hands one task's rows to the gateway. It keeps no state between tasks."""

    def write(self, task: Assignment, batches: Iterator[Any]) -> Written:
        """See `Gateway.write`."""
        crash_points.at(Point.TASK_BEGUN, task.batch, task.partition)
        if os.environ.get(ENV):
            task = dataclasses.replace(task, vitals=Vitals(os.getpid(), OWN.taken()))
        written = _converse(task, batches)
        if not isinstance(written, Written):
            raise InvariantBroken(f"{task}: the gateway answered with {type(written).__name__}")
        crash_points.at(Point.TASK_ANSWERED, task.batch, task.partition)
        return written

    def stats(self) -> dict[str, Any]:
        """Return what the gateway holds and has done."""
        answer = _converse(wire.STATS, None)
        return dict(answer)


def read(attempt: str, request: ReadRequest, batch: int, part: int) -> Generator[Any, None, ReadDone]:
    """Yield the records of the ranges as Arrow batches, and return what was read.

    When this returns, the attempt counts as completely read. Without an attempt, nothing is to be written.
    """
    with _conversation(f"reading for {request.pipeline!r}") as (incoming, outgoing):
        wire.send(outgoing, wire.Reading(attempt, request, batch, part))
        outgoing.flush()
        try:
            with pa.ipc.open_stream(incoming) as stream:
                yield from stream
        except (pa.ArrowInvalid, OSError) as error:
            raise wire.Closed from error
        answer = wire.receive(incoming)
        if isinstance(answer, TailraceError):
            raise answer
        outgoing.write(wire.READ)
        outgoing.flush()
        if wire.take(incoming, 1) != wire.READ:
            raise InvariantBroken(f"reading for {request.pipeline!r}: the gateway did not note the end")
        if not isinstance(answer, ReadDone):
            raise InvariantBroken(f"reading for {request.pipeline!r}: the gateway answered {type(answer).__name__}")
        return answer


class Handing:
    """Hands rejected rows to the gateway as they come; call `end` after the last one.

    With an assignment, the gateway writes them in a transaction of their own, and `end` returns once it is committed.
    """

    def __init__(self, question: Assignment | wire.Judging) -> None:
        self._question = question
        self._stack = contextlib.ExitStack()
        self._streams: tuple[wire.Stream, wire.Stream] | None = None
        self._stream: Any = None

    def _open(self) -> wire.Stream:
        if self._streams is None:
            self._streams = self._stack.enter_context(_conversation(str(self._question)))
            wire.send(self._streams[1], self._question)
        return self._streams[1]

    def add(self, batch: Any) -> None:
        """Hand over a batch."""
        outgoing = self._open()
        with contextlib.suppress(BrokenPipeError):  # the gateway has answered already; `end` reads it
            if self._stream is None:
                outgoing.write(wire.ROWS)
                self._stream = pa.ipc.new_stream(outgoing, batch.schema)
            self._stream.write_batch(batch)

    def end(self) -> Any:
        """Report that all rows are handed over, and return the answer."""
        outgoing = self._open()
        with contextlib.suppress(BrokenPipeError):
            if self._stream is None:
                outgoing.write(wire.NONE)
            else:
                self._stream.close()
            outgoing.write(wire.COMPLETE)
            outgoing.flush()
        if self._streams is None:
            raise InvariantBroken("the conversation was not opened")
        try:
            answer = wire.receive(self._streams[0])
        except (wire.Closed, OSError) as error:
            raise _ended(str(self._question), error) from error
        self.close()
        if isinstance(answer, TailraceError):
            raise answer
        return answer

    def close(self) -> None:
        """Close the conversation; without `end`, the gateway forgets the rows, so it may have gone too."""
        with contextlib.suppress(GatewayUnavailable):  # otherwise it would hide why the worker gives up
            self._stack.close()


@contextlib.contextmanager
def _conversation(what: str) -> Iterator[tuple[Any, Any]]:
    """Open both directions of a connection to the gateway of this executor."""
    folder = _folder()
    try:
        with (
            contextlib.closing(_connect(folder)) as connection,
            watchdog.watched(connection, folder),
            connection.makefile("rb", wire.BUFFER) as incoming,
            connection.makefile("wb", wire.BUFFER) as outgoing,
        ):
            yield incoming, outgoing
    except (wire.Closed, OSError) as error:
        raise _ended(what, error) from error


def _ended(what: str, error: BaseException) -> GatewayUnavailable:
    return GatewayUnavailable(
        f"{what}: the gateway in {_folder()} ended in mid-task ({type(error).__name__})", kept=_RETRIED
    )


class _InputFailed(Exception):
    """The task's input raised; its error is kept in `_Input`."""


class _Input:
    """A task's input that keeps its own error, which may be of the same class as one of the connection."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            raise _InputFailed from error


def _converse(question: Any, batches: Iterator[Any] | None) -> Any:
    """Return the answer; if the input raises, raise its error unchanged, whatever becomes of the connection."""
    source = _Input(iter(()) if batches is None else batches)
    try:
        return _answer(question, source)
    except Exception:
        if source.error is None:
            raise
    raise source.error


def _answer(question: Any, batches: Iterator[Any]) -> Any:
    answers: list[Any] = []
    try:
        with _conversation(str(question)) as (incoming, outgoing):
            with contextlib.suppress(BrokenPipeError):  # the gateway answered before it had read everything
                wire.send(outgoing, question)
                if isinstance(question, Assignment):
                    _send(outgoing, question, batches)
                outgoing.flush()
            answers.append(wire.receive(incoming))
    except GatewayUnavailable:
        if not answers:  # with one, only the rest of the rows could not be sent
            raise
    if isinstance(answers[0], TailraceError):
        raise answers[0]
    return answers[0]


def _send(outgoing: wire.Stream, task: Assignment, batches: Iterator[Any]) -> None:
    batches = crash_points.halved(Point.ROWS_IN_PART, batches, task.batch, task.partition, outgoing.flush)
    first = next(batches, None)
    if first is None:
        outgoing.write(wire.NONE)
    else:
        outgoing.write(wire.ROWS)
        with pa.ipc.new_stream(outgoing, first.schema) as stream:
            stream.write_batch(first)
            for batch in batches:
                stream.write_batch(batch)
    # Only now: `batches` raises if the task's input was cut off, and then the gateway must not get this byte.
    crash_points.at(Point.ROWS_SENT, task.batch, task.partition, outgoing.flush)
    outgoing.write(wire.COMPLETE)
    crash_points.at(Point.ROWS_WHOLE, task.batch, task.partition, outgoing.flush)


def _folder() -> Path:
    given = os.environ.get(wire.ENV)
    return Path(given) if given else wire.folder_of(wire.executor())


def _connect(folder: Path) -> socket.socket:
    with contextlib.ExitStack() as turn:
        return _connected(folder, turn)


def _connected(folder: Path, turn: contextlib.ExitStack) -> socket.socket:
    end = time.monotonic() + _START_LIMIT
    started: float | None = None
    unanswered = 0
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(watchdog.ANSWER_LIMIT)
            connection.connect(str(folder / wire.SOCKET))
            if connection.recv(1) == wire.HELLO:
                connection.settimeout(None)
                return connection
            raise ConnectionResetError("it ended before it said hello")
        except OSError as error:
            if isinstance(error, TimeoutError):
                unanswered += 1
                if unanswered % watchdog.TRIES == 0:
                    watchdog.end(connection)
            connection.close()
            now = time.monotonic()
            if now > end:
                raise GatewayUnavailable(
                    f"no gateway answers in {folder} after {_START_LIMIT:.0f} s ({error})",
                    kept="nothing was written",
                    then="look for the gateway's messages in the executor's log",
                ) from error
            if (started is None or now - started > _TRY_AGAIN) and not _locked(folder):
                # Each start costs a second of CPU, just when all tasks of a first batch need it.
                if started is not None or _first(folder, turn) is not None:
                    start(folder, wire.executor().pid)
                started = now
            time.sleep(_LOOK_EVERY)


def _locked(folder: Path) -> bool:
    """Return whether a gateway is running: it holds the lock as long as it lives."""
    try:
        with (wire.own(folder) / wire.LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True


def _first(folder: Path, turn: contextlib.ExitStack) -> IO[str] | None:
    """Hold the lock on starting a gateway until the stack ends; None if another process of this executor holds it."""
    mine = turn.enter_context((wire.own(folder) / wire.TURN).open("w"))
    try:
        fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    return mine


def start(folder: Path, executor: int) -> None:
    """Start a gateway for the executor with this process id; if several are started, one of them stays.

    It inherits the start lock, if that is free: while it starts, which takes a second of CPU, no worker starts another.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with contextlib.ExitStack() as turn:
        mine = _first(folder, turn)
        started = subprocess.Popen(
            [sys.executable, "-m", "tailrace.gateway.server", str(folder), str(executor)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # a worker's and a daemon's own stdout speaks to the JVM
            pass_fds=() if mine is None else (mine.fileno(),),
        )
    started.returncode = 0  # it outlives this object and is never waited for
