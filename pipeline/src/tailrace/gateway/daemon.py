"""The executor's Python daemon (`spark.python.daemon.module`): Spark's own, with the gateway beside it.

It also makes Python workers and their tasks cheap. What all workers import is loaded here, before they are forked: the
driver names it in an environment variable, because this room knows none above it. And Spark's daemon collects all
garbage after every task, which with Arrow and pandas loaded takes longer than a small task does: what is loaded here,
and what a worker holds after its second task, is there to stay, and is frozen.
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

ENV = "TAILRACE_LOADED"  # names of modules, with commas

_FREEZE_AFTER = 2

_worker = daemon.worker
_tasks = 0


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Spark's, and what is left by the first tasks is frozen."""
    global _tasks  # of a process that was forked for this one loop
    if os.environ.get(gateway_settings.ENV):
        OWN.listen()
    try:
        code = _worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1  # the JVM has given the task up, and has said so; a traceback would hide that
    _tasks += 1
    if _tasks == _FREEZE_AFTER:
        gc.collect()
        gc.freeze()
    return code


def keep_archives() -> None:
    """Let nobody read the directories of the archives on the path anew: Spark's own, and its workers ask each task."""
    archives = {each for each in sys.path if each.endswith(".zip")}
    forget = zipimport.zipimporter.invalidate_caches

    def invalidate_caches(importer: zipimport.zipimporter) -> None:
        if importer.archive not in archives:
            forget(importer)

    setattr(zipimport.zipimporter, forget.__name__, invalidate_caches)


def load(names: str) -> None:
    """Import what is named; what is missing here, a worker will miss where it needs it, and say so."""
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
