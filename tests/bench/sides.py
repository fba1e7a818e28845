"""One side of the benchmark as a separate process: start it from a configuration, read its events, stop it.

Tailrace's side is `tailrace run --output json` with a YAML file, so that the benchmark does not depend on the internals
of that command. Both sides report events as lines of JSON and stop on SIGTERM.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from bench.processes import MARK, Snapshot, end, jvms, live_heap, snapshot
from bench.workloads import FUNCTIONS, NATIVE, Scale, Workload, native, pipeline

TESTS = Path(__file__).parents[1]
STOP_LIMIT = 90.0
READ_LIMIT = 10.0
LOG_LINES = 25


class BenchFailed(RuntimeError):
    """A side ended by itself, or wrote something wrong; its measurements do not count."""


class Side:
    """A running side and its events."""

    def __init__(self, variant: str, command: list[str], folder: Path, broker: int) -> None:
        self.variant = variant
        self.rejected = f"{folder.name}.rejected"  # the topic, if the side is Tailrace
        self.events: list[tuple[float, dict[str, Any]]] = []  # each with the time when it came
        self._mark, self._broker = uuid4().hex, broker
        self._log = folder / "log"
        environment = {**os.environ, MARK: self._mark, "PYTHONPATH": str(TESTS)}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=folder, env=environment, start_new_session=True, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        if self._process.stdout is None:
            return
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    self.events.append((time.monotonic(), event))

    def written(self) -> list[tuple[float, dict[str, Any]]]:
        """Return the batches reported so far."""
        return [each for each in self.events if each[1].get("event") == "written"]

    def check(self) -> None:
        """Raise BenchFailed if the side has ended."""
        code = self._process.poll()
        if code is not None:
            errors = [json.dumps(event) for _, event in self.events if "error" in event]
            raise BenchFailed(
                f"{self.variant} ended by itself with exit code {code}:\n" + "\n".join([*errors, self.log])
            )

    @property
    def log(self) -> str:
        """The end of the log."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES:])

    def look(self) -> Snapshot:
        """Snapshot the CPU and memory of the side and of the broker."""
        return snapshot(self._mark, self._process.pid, self._broker)

    def heaps(self) -> dict[str, float]:
        """Return the bytes in use of the side's JVM and of the broker's, by kind, after a full collection of both."""
        return {kind: live_heap(pid) for kind, pid in jvms(self._mark, self._broker).items()}

    def stop(self) -> None:
        """Ask the side to stop, and wait; raise BenchFailed if it does not, or exits with an error."""
        self.check()
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired as error:
            raise BenchFailed(f"waited {STOP_LIMIT:.0f} s for {self.variant} to stop:\n{self.log}") from error
        if code:
            raise BenchFailed(f"{self.variant} stopped with exit code {code}:\n{self.log}")
        self._reader.join(READ_LIMIT)

    def end(self) -> None:
        """Leave no process of the side behind."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(STOP_LIMIT)
        end(self._mark)
        self._reader.join(READ_LIMIT)
        if self._process.stdout is not None:
            self._process.stdout.close()


@dataclass(frozen=True)
class Stand:
    """What all runs of a workload share: a broker, a folder, and the scale."""

    bootstrap: str
    broker: int  # its process id
    folder: Path
    scale: Scale
    tuned: bool = False

    @contextlib.contextmanager
    def running(self, workload: Workload, variant: str, source: str, target: str) -> Iterator[Side]:
        """Start a side; afterwards leave none of its processes behind, whatever happened."""
        name = f"bench-{uuid4().hex[:8]}"
        folder = self.folder / name
        folder.mkdir()
        if variant == NATIVE:
            file, content = folder / "native.json", native(workload, self.bootstrap, source, target, self.tuned)
            command = ["-m", "bench.native", str(file)]
        else:
            file, content = folder / "pipeline.yaml", pipeline(workload, variant, name, self.bootstrap, source, target)
            (folder / "functions.py").write_text(FUNCTIONS, encoding="utf-8")
            command = ["-m", "tailrace.cli.main", "run", str(file), "--output", "json"]
        file.write_text(json.dumps(content, indent=1), encoding="utf-8")  # which is YAML, too
        side = Side(variant, [sys.executable, *command], folder, self.broker)
        try:
            yield side
        finally:
            side.end()
