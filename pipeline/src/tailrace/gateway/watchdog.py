"""A watchdog for the gateway, run by each worker that waits for it.

A gateway that dies closes its connections. One that hangs (stopped, or starved of CPU) keeps them, and its tasks would
wait forever: to Spark they look busy. The gateway's greeting comes from a thread of its own. If there is none, the
worker kills the gateway, and the next attempt starts another. If it was about to recover, nothing is lost: the next
attempt fences its producers and reads the marker.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

from tailrace.gateway import message_protocol as wire

log = logging.getLogger(__name__)

ASK_EVERY = 10.0
ANSWER_LIMIT = 10.0
TRIES = 2  # a worker that was paused too finds its first question timed out when it resumes
_CREDENTIALS = struct.Struct("3i")  # of the listening process: its pid, its user, its group


def greeted(folder: Path) -> bool:
    """Return whether the gateway says hello; True too if it has gone, because then there is nothing to kill."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as asking:
        asking.settimeout(ANSWER_LIMIT)
        try:
            asking.connect(str(folder / wire.SOCKET))
            return asking.recv(1) == wire.HELLO
        except TimeoutError:
            return False
        except OSError:
            return True


def end(connection: socket.socket) -> None:
    """Kill the gateway on the other side."""
    pid, *_ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if pid <= 0:  # the connection was never made; to `kill`, 0 is the caller's own process group
        return
    log.warning("gateway %d did not answer within %.0f s: killing it", pid, ANSWER_LIMIT)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def watched(connection: socket.socket, folder: Path) -> Iterator[None]:
    """Watch the gateway while a worker talks to it; kill it if it hangs, which ends the conversation."""
    done = threading.Event()

    def look() -> None:
        while not done.wait(ASK_EVERY):
            if not any(greeted(folder) for _ in range(TRIES)) and not done.is_set():
                end(connection)
                return

    watcher = threading.Thread(target=look, name="tailrace-alive", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
