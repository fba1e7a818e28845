"""The driver's JVM, in a session of its own, so that a signal to the driver's process group does not end it first.

systemd and `timeout` send SIGTERM to all processes of a service. The driver then finishes the batch in progress, for
which it needs its JVM; that ends when the driver has gone, because its standard input is closed.
"""

from __future__ import annotations

import collections
import os
import re
import threading
from collections.abc import Mapping
from typing import IO, Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from tailrace.errors import SparkDidNotStart

# What the JVM says about a module that Spark itself asks for; nobody can do anything about it.
_EXPECTED = b"WARNING: Using incubator modules: jdk.incubator.vector"
_TRACE = re.compile(rb"\s+at \S+\(.*\)$|\s+\.\.\. \d+ (more|common frames)")
_KEPT = 40  # lines
_SHOWN = 300  # characters of a line


class Errors:
    """What the JVM writes to its standard error: passed on, and its last lines kept.

    Stack traces are shown only if TAILRACE_LOG is set: Tailrace's own error says what they are about.
    """

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self._traces = "TAILRACE_LOG" in os.environ
        self.last: collections.deque[str] = collections.deque(maxlen=_KEPT)

    def follow(self, source: IO[bytes]) -> None:
        """Pass on each line, until the JVM ends."""
        for line in source:
            if line.rstrip() == _EXPECTED or (not self._traces and _TRACE.match(line)):
                continue
            self.last.append(line.decode(errors="replace").rstrip()[:_SHOWN])
            try:
                self._target.write(line)
                self._target.flush()
            except (OSError, ValueError):  # our own is closed; the JVM must not wait for it
                continue

    @property
    def cause(self) -> str:
        """The line that says what went wrong, if one does."""
        lines = [each for each in self.last if each.strip() and not each.lstrip().startswith("at ")]
        marked = [
            each for each in lines if "Exception" in each or each.startswith(("Error", "Unrecognized", "Invalid"))
        ]
        return (marked or lines or [""])[0]


def start(settings: Mapping[str, str]) -> Errors | None:
    """Start the JVM with these settings, unless this process has one; sessions are then made in it."""
    if SparkContext._gateway is not None:
        return None
    conf = SparkConf()
    for name, value in settings.items():
        conf.set(name, value)
    heard = Errors(_stderr())
    reading, writing = os.pipe()
    source = os.fdopen(reading, "rb")
    threading.Thread(target=heard.follow, args=[source], name="tailrace-jvm-errors", daemon=True).start()
    try:
        launch: Any = launch_gateway
        gateway = launch(conf, popen_kwargs={"start_new_session": True, "stderr": writing})
    except Exception as error:
        raise refused(error, heard) from error
    finally:
        os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)
    return heard


def refused(error: Exception, heard: Errors | None) -> SparkDidNotStart:
    """Return the error for a Spark that did not start."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    cause = next((line for line in lines if "Exception:" in line), lines[0])
    said = heard.cause if heard is not None else ""
    return SparkDidNotStart(
        f"{cause[:_SHOWN]}{f'; Java says: {said}' if said and said not in cause else ''}",
        kept="nothing was read or written",
        then="correct `spark:` in the configuration; TAILRACE_LOG=info shows Spark's own log",
    )


def _stderr() -> IO[bytes]:
    """Return our own standard error, also where Python has replaced it."""
    return os.fdopen(os.dup(2), "wb")
