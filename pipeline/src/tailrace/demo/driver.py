"""One driver process: `tailrace run` in its own session, its events as they come, and its end.

The session keeps Ctrl-C in the terminal from reaching the driver before the supervisor has decided what to do, and
identifies the driver and all its descendants by one id.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import psutil

from tailrace.demo.kills import kill_tree
from tailrace.errors import QueryFailed, TailraceError, all_errors

STOP_LIMIT = 60.0
END_LIMIT = 20.0
LOG_LINES = 15


@dataclass(frozen=True)
class Heard:
    """An event of a driver, and when it came."""

    at: float
    event: Mapping[str, Any]


class Child(Protocol):
    """What is used of a `subprocess.Popen`."""

    pid: int
    stdin: IO[str] | None
    stdout: IO[str] | None

    def poll(self) -> int | None:
        """Return the exit code, once there is one."""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, or raise `subprocess.TimeoutExpired`."""

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, unless it has ended."""


class Process:
    """A child in its own session. Its log goes to a file, and so does its output unless `heard` is set."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, name: str, *, heard: bool = False
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._process = self._begun(command, {**os.environ, **environment}, folder, heard)
        self.pid = self._process.pid
        self.born = psutil.Process(self.pid).create_time()

    def _begun(self, command: Sequence[str], environment: Mapping[str, str], folder: Path, heard: bool) -> Child:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *command],
                env=environment,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if heard else log,
                stderr=log,
                text=True,
                encoding="utf-8",
                start_new_session=True,
            )

    @property
    def code(self) -> int | None:
        """The exit code, once there is one."""
        return self._process.poll()

    def ask_to_stop(self) -> None:
        """Send SIGTERM: the process finishes its work, then exits."""
        if self.code is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, limit: float) -> int | None:
        """Return the exit code, or None if the process has not ended in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(limit)
        return None

    def kill(self) -> int:
        """Kill (kill -9) the process and all its descendants, and return how many processes that were."""
        count = kill_tree(self.pid, self.born)
        self._process.wait(END_LIMIT)
        return count

    def end(self, limit: float) -> None:
        """End every process of the session: ask first, then kill."""
        self.ask_to_stop()
        self.wait(limit)
        self.kill()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def last_lines(self, count: int = LOG_LINES) -> str:
        """Return the end of the log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join("    " + line for line in lines[-count:])


class Driver(Process):
    """A driver and its events."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        super().__init__(command, environment, folder, "driver", heard=True)
        self._heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self._error: Mapping[str, Any] | None = None
        self._reader = threading.Thread(target=self._read, name=f"events of driver {self.pid}", daemon=True)
        self._reader.start()

    def next(self, limit: float) -> Heard | None:
        """Return the next event, or None if none comes in time."""
        with contextlib.suppress(queue.Empty):
            return self._heard.get(timeout=max(limit, 0.0))
        return None

    def rest(self) -> list[Heard]:
        """Return the unread events of a driver that has ended."""
        self.kill()  # a child that outlived the driver would hold the other end of its output
        self._reader.join(END_LIMIT)
        left = []
        while (heard := self.next(0.0)) is not None:
            left.append(heard)
        return left

    def failure(self) -> TailraceError:
        """Return why the driver ended by itself: its own error, or the end of its log."""
        code = self.wait(END_LIMIT)
        self.rest()
        kinds = {kind.code: kind for kind in all_errors()}
        error = self._error or {}
        kind = kinds.get(str(error.get("error")))
        if kind is not None:
            return kind(str(error.get("what", "")), kept=str(error.get("kept", "")), then=str(error.get("next", "")))
        return QueryFailed(
            f"the driver ended by itself with exit code {code}; the end of its log:\n{self.last_lines()}",
            kept="what was committed stays delivered",
            then="tailrace demo --keep, then read driver.log in the folder it names",
        )

    def _read(self) -> None:
        stdout = self._process.stdout
        if stdout is None:
            return
        with stdout:
            for line in stdout:
                # A killed driver may leave half a line.
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if isinstance(event, dict):
                        self._error = event if "error" in event else self._error
                        self._heard.put(Heard(time.monotonic(), event))
