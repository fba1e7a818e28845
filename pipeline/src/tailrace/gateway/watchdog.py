"""Whether the gateway still answers, asked by a worker that waits for it.

A gateway that has died closes its connections. One that stands still (stopped, or out of reach of the processor) keeps
them, and its tasks would wait for ever; Spark sees only that they run. Its word of greeting comes from a thread that
does nothing else: where none comes, the gateway is ended, and the attempt that follows starts another. Should it have
been about to go on, nothing is lost: whoever comes next fences it and reads the marker.
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
TRIES = 2  # a worker that stood still as well finds its first question too old when it goes on
_CREDENTIALS = struct.Struct("3i")  # of the process that listens: its number, its user, its group


def greeted(folder: Path) -> bool:
    """Whether a gateway that listens there says hello; one that has gone need not be ended, so that is yes."""
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
    """End the gateway on the other side."""
    pid, *_ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if pid <= 0:  # nobody: the connection was never made; to the system 0 is the caller's own group
        return
    log.warning("the gateway %d has not answered for %.0f s, and is ended", pid, ANSWER_LIMIT)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def watched(connection: socket.socket, folder: Path) -> Iterator[None]:
    """While a worker speaks with its gateway: where that stands still, end it, and with it the conversation."""
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
