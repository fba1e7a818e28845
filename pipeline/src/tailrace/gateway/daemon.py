"""The executor's Python daemon (`spark.python.daemon.module`): Spark's own, which also starts the gateway.

It also makes Python workers and their tasks cheap. Modules that all workers import are loaded here, before the workers
are forked: the driver names them in an environment variable, because this layer may not import those above it. Spark's
daemon collects all garbage after every task, which with Arrow and pandas loaded takes longer than a small task. So the
objects loaded here, and those that a worker holds after its second task, are frozen: they are there to stay.

Spark puts its archives of PySpark's sources before the installed package. Python does not keep what it compiles from an
archive, so each daemon would compile it again; the package comes first here, if the archives are part of it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import socket
import sys
import zipimport
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path

from tailrace.gateway import client
from tailrace.gateway import message_protocol as wire
from tailrace.telemetry import gateway_settings
from tailrace.telemetry.garbage import OWN

ENV = "TAILRACE_LOADED"  # names of modules, separated by commas

_FREEZE_AFTER = 2

_tasks = 0


def worker(spark_s: Callable[[socket.socket, bool], int], sock: socket.socket, authenticated: bool) -> int:
    """Run Spark's worker; freeze the objects that the first tasks leave behind."""
    global _tasks  # of a process forked for this loop alone
    if os.environ.get(gateway_settings.ENV):
        OWN.listen()
    try:
        code = spark_s(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1  # the JVM has given up the task and reported it; a traceback would hide that
    _tasks += 1
    if _tasks == _FREEZE_AFTER:
        gc.collect()
        gc.freeze()
    return code


def keep_archives() -> None:
    """Keep the directories of Spark's archives cached: its workers would read them again for each task."""
    archives = {each for each in sys.path if each.endswith(".zip")}
    forget = zipimport.zipimporter.invalidate_caches

    def invalidate_caches(importer: zipimport.zipimporter) -> None:
        if importer.archive not in archives:
            forget(importer)

    setattr(zipimport.zipimporter, forget.__name__, invalidate_caches)


def package_first(path: Sequence[str]) -> list[str]:
    """Return the import path with the archives of PySpark last, if they belong to an installed PySpark."""
    archives = [each for each in path if each.endswith(".zip")]
    others = [each for each in path if each not in archives]
    found = PathFinder.find_spec("pyspark", others)
    home = Path(found.origin).parent if found is not None and found.origin is not None else None
    own = [each for each in archives if home is not None and home in Path(each).parents]
    return [*(each for each in path if each not in own), *own]


def load(names: str) -> None:
    """Import the named modules; a missing one is left for the worker that needs it to report."""
    for name in filter(None, names.split(",")):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def main() -> None:
    """Start the gateway, then do what Spark's daemon does."""
    sys.path[:] = package_first(sys.path)
    from pyspark import daemon

    executor = wire.executor()
    folder = wire.folder_of(executor)
    os.environ[wire.ENV] = str(folder)
    client.start(folder, executor.pid)
    daemon.worker = partial(worker, daemon.worker)
    keep_archives()
    load(os.environ.get(ENV, ""))
    daemon.manager()


if __name__ == "__main__":
    main()
