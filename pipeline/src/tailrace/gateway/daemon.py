"""The executor's Python daemon (`spark.python.daemon.module`): Spark's own, which also starts the gateway.

It also makes Python workers and their tasks cheap. Modules that all workers import are loaded here, before the workers
are forked: the driver names them in an environment variable, because this layer may not import those above it. Spark's
daemon collects all garbage after every task, which with Arrow and pandas loaded takes longer than a small task. So the
objects loaded here, and those that a worker holds after its second task, are frozen: they are there to stay.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import socket
import sys
import zipimport

from pyspark import daemon

from tailrace.gateway import client
from tailrace.gateway import message_protocol as wire
from tailrace.telemetry import gateway_settings
from tailrace.telemetry.garbage import OWN

ENV = "TAILRACE_LOADED"  # names of modules, separated by commas

_FREEZE_AFTER = 2

_worker = daemon.worker
_tasks = 0


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Run Spark's worker; freeze the objects that the first tasks leave behind."""
    global _tasks  # of a process forked for this loop alone
    if os.environ.get(gateway_settings.ENV):
        OWN.listen()
    try:
        code = _worker(sock, authenticated)
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


def load(names: str) -> None:
    """Import the named modules; a missing one is left for the worker that needs it to report."""
    for name in filter(None, names.split(",")):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def main() -> None:
    """Start the gateway, then do what Spark's daemon does."""
    executor = wire.executor()
    folder = wire.folder_of(executor)
    os.environ[wire.ENV] = str(folder)
    client.start(folder, executor.pid)
    daemon.worker = worker
    keep_archives()
    load(os.environ.get(ENV, ""))
    daemon.manager()


if __name__ == "__main__":
    main()
