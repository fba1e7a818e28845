"""A server as a child process: started, waited for until it answers, stopped with the test."""

from __future__ import annotations

import os
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import SystemRandom

from tailrace.testing import wait_until

START_LIMIT = 60.0
END_LIMIT = 20.0
# Below those of outgoing connections, and of embedded brokers: none takes a port before its server does.
PORTS = range(10_000, 14_990)


def free_port(in_a_row: int = 1) -> int:
    """Return a port that nothing listens on now, or the first of several that are next to each other."""
    for first in SystemRandom().sample(PORTS, len(PORTS)):
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + in_a_row):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise RuntimeError(f"no {in_a_row} free ports in {PORTS}")


@contextmanager
def served(
    name: str, command: Sequence[str], ready: str, folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Run a process once its URL `ready` answers with 200; its output is in NAME.log."""
    file = folder / f"{name}.log"
    with file.open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | (environment or {}), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )

    def answers() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"{name} has ended:\n{file.read_text()[-2000:]}")
        with suppress(OSError):
            return bool(urllib.request.urlopen(ready, timeout=5).status == 200)
        return False

    try:
        wait_until(answers, f"{name} to be ready", START_LIMIT)
        yield
    finally:
        process.terminate()
        try:
            process.wait(END_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(END_LIMIT)
