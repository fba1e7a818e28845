"""Drivers without Spark, forked from a process that has imported what they need.

A world starts several of them, and to start Python and import the engine takes more than two seconds of CPU. A fork has
everything of a new process but that: its own session, environment, folder, output and log. It also begins as late as
one, because a start that is refused at once is repeated, and the number of starts is limited.
"""

from __future__ import annotations

import faulthandler
import functools
import multiprocessing
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import IO

from tailrace import crash_points
from tailrace.demo.driver import Child, Driver

_IMPORTED = ("faults.worlds.thread_driver", "tailrace.cli.main", "tailrace.admin.replay", "faults.worlds.forks")
_START = 1.5  # seconds


class ForkedDriver(Driver):
    """A driver whose command is `-m`, a module and its arguments."""

    def _begun(self, command: Sequence[str], environment: Mapping[str, str], folder: Path, heard: bool) -> Child:
        reader, writer = os.pipe()
        ours = Connection(writer, readable=False)  # the fork server takes only descriptors of such
        child = _server().Process(
            target=_run, args=(tuple(command[1:]), dict(environment), folder, self.log, ours), daemon=True
        )
        child.start()
        ours.close()
        return _Forked(child, reader)


class _Forked:
    """A fork, seen as a `subprocess.Popen`."""

    def __init__(self, child: ForkServerProcess, output: int) -> None:
        self._child = child
        self.pid = child.pid or 0
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] | None = os.fdopen(output, encoding="utf-8")

    def poll(self) -> int | None:
        return self._child.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._child.join(timeout)
        if (code := self._child.exitcode) is None:
            raise subprocess.TimeoutExpired(self._child.name, timeout or 0.0)
        return code

    def send_signal(self, sig: int, /) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)


@functools.cache
def _server() -> ForkServerContext:
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(list(_IMPORTED))
    return found


def _run(command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path, output: Connection) -> None:
    """Become what `python -m MODULE ARGUMENTS` would be in this environment and folder."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    os.dup2(output.fileno(), 1)
    output.close()
    faulthandler.enable()
    crash_points.forked()
    time.sleep(_START)
    sys.path.insert(0, str(folder))
    sys.argv = ["", *command[1:]]
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)
