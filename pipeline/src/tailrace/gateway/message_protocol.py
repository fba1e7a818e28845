"""The message protocol between a worker and its executor's gateway, and the folder in which they find each other.

The gateway sends HELLO first, so that a dying gateway is not mistaken for a live one. A worker sends its assignment,
then the rows as an Arrow stream, then the byte COMPLETE; the gateway answers with what was written, or with an error.
Without that byte the rows are incomplete, and none of them is committed. The folder belongs to its user alone (mode
0700), because the messages are pickled objects that include the connection's secrets.
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
HELLO, ROWS, NONE, COMPLETE = b"H", b"R", b"N", b"W"
STATS = "stats"  # a request that takes the place of an assignment
READ = b"D"  # the worker has taken everything that it asked to read
BUFFER = 1 << 18
_LONGEST = 100

_LENGTH = struct.Struct("!I")


class Stream(Protocol):
    """Either side's end of the connection."""

    def read(self, count: int, /) -> bytes:
        """Read this number of bytes, fewer at the end."""

    def write(self, data: bytes, /) -> int:
        """Write these bytes."""

    def flush(self) -> None:
        """Send what was written."""


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
    whole: bool = True  # all that are rejected before the function; otherwise others follow, or precede


class Closed(Exception):
    """The other side disconnected before it had sent everything."""


def send(stream: Stream, message: Any) -> None:
    """Send one object."""
    data = pickle.dumps(message)
    stream.write(_LENGTH.pack(len(data)) + data)


def receive(stream: Stream) -> Any:
    """Receive one object."""
    return pickle.loads(take(stream, _LENGTH.unpack(take(stream, _LENGTH.size))[0]))


def take(stream: Stream, count: int) -> bytes:
    """Read this number of bytes; raise Closed if there are fewer."""
    data = stream.read(count)
    if len(data) < count:
        raise Closed
    return data


def executor(pid: int | None = None) -> psutil.Process:
    """Return the process that a worker's gateway lives and dies with: the JVM above it, or else its parent."""
    process = psutil.Process(pid or os.getpid())
    above = process.parents()
    return next((each for each in above if "java" in each.name()), above[0] if above else process)


def folder_of(process: psutil.Process) -> Path:
    """Return the folder of this executor's gateway; none other has the same, even if the process id is reused."""
    name = Path(f"tailrace-{os.getuid()}", f"{process.pid}-{_born(process)}")
    chosen = Path(tempfile.gettempdir()) / name
    # The system limits the length of a socket's path, whatever TMPDIR is.
    return chosen if len(os.fsencode(chosen / SOCKET)) <= _LONGEST else Path("/tmp") / name


def _born(process: psutil.Process) -> str:
    """Return when a process started, the same for every caller: the kernel's count does not move with the clock."""
    try:
        text = Path(f"/proc/{process.pid}/stat").read_text()
    except OSError:
        return f"{process.create_time():.0f}"
    return text.rsplit(")", 1)[1].split()[19]


def own(folder: Path) -> Path:
    """Return the folder, creating it if it is missing; refuse one that another user can read."""
    for each in (folder.parent, folder):
        each.mkdir(mode=0o700, exist_ok=True)
        state = each.lstat()
        if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o077:
            raise GatewayUnavailable(
                f"the gateway's folder {each} belongs to another user, or others can read it",
                kept="nothing was written",
                then=f"remove {each}, or set TMPDIR to a folder that only this user can access",
            )
    return folder
