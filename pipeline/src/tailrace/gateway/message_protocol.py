"""What passes between a worker and its executor's gateway, and the folder in which the two find each other.

The gateway says HELLO first, so that a dying one is not taken for a living. A worker sends its assignment, then the
rows as an Arrow stream, then the word WHOLE; the gateway answers with what was written, or with an error. Without the
word the rows are not whole, and nothing of them is committed. The folder is its user's own (mode 0700), and so is what
passes: pickled objects, secrets of the connection among them.
"""

from __future__ import annotations

import os
import pickle
import stat
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from tailrace.errors import GatewayUnavailable
from tailrace.gateway import ReadRequest

ENV = "TAILRACE_GATEWAY"  # the folder, from the executor's Python daemon to its workers
SOCKET = "gateway.sock"
LOCK = "lock"
TURN = "turn"
HELLO, ROWS, NONE, WHOLE = b"H", b"R", b"N", b"W"
STATS = "stats"  # a question instead of an assignment
READ = b"D"  # the worker has taken what it asked to read, to the end
BUFFER = 1 << 18
_LONGEST = 100

_LENGTH = struct.Struct("!I")


class Stream(Protocol):
    """Either side's end of the connection."""

    def read(self, count: int, /) -> bytes:
        """So many bytes, fewer at the end."""

    def write(self, data: bytes, /) -> int:
        """Put these bytes on it."""

    def flush(self) -> None:
        """Let them go."""


@dataclass(frozen=True)
class Reading:
    """A worker asks for source ranges; the answer is an Arrow stream and then a ReadDone, or an error."""

    attempt: str
    request: ReadRequest
    batch: int
    part: int


@dataclass(frozen=True)
class Judging:
    """A worker hands over the rejected rows of an attempt, for the transaction of the same attempt."""

    attempt: str
    batch: int
    part: int


class Closed(Exception):
    """The other side has gone before it had said everything."""


def send(stream: Stream, message: Any) -> None:
    """Put one object on the stream."""
    data = pickle.dumps(message)
    stream.write(_LENGTH.pack(len(data)) + data)


def receive(stream: Stream) -> Any:
    """The next object of the stream."""
    return pickle.loads(take(stream, _LENGTH.unpack(take(stream, _LENGTH.size))[0]))


def take(stream: Stream, count: int) -> bytes:
    """So many bytes, or Closed."""
    data = stream.read(count)
    if len(data) < count:
        raise Closed
    return data


def executor(pid: int | None = None) -> psutil.Process:
    """The process that a worker's gateway lives and dies with: the JVM above it, or else its parent."""
    process = psutil.Process(pid or os.getpid())
    above = process.parents()
    return next((each for each in above if "java" in each.name()), above[0] if above else process)


def folder_of(process: psutil.Process) -> Path:
    """Where the gateway of this executor is found; another executor has another, also one with the same number."""
    name = Path(f"tailrace-{os.getuid()}", f"{process.pid}-{_born(process)}")
    chosen = Path(tempfile.gettempdir()) / name
    # The system takes so many bytes for a socket's path, whatever TMPDIR says.
    return chosen if len(os.fsencode(chosen / SOCKET)) <= _LONGEST else Path("/tmp") / name


def _born(process: psutil.Process) -> str:
    """When a process began, the same for all who ask: the kernel's own count does not move with the clock."""
    try:
        text = Path(f"/proc/{process.pid}/stat").read_text()
    except OSError:
        return f"{process.create_time():.0f}"
    return text.rsplit(")", 1)[1].split()[19]


def own(folder: Path) -> Path:
    """The folder, made where it is missing; refused where somebody else could look into it."""
    for each in (folder.parent, folder):
        each.mkdir(mode=0o700, exist_ok=True)
        state = each.lstat()
        if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o077:
            raise GatewayUnavailable(
                f"the gateway's folder {each} can be read by others, or belongs to somebody else",
                kept="nothing was written",
                then=f"remove {each}, or set TMPDIR to a folder of this user's own",
            )
    return folder
