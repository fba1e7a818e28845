"""Processes that are suspended for a while, as on a machine that was asleep, and then resumed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import psutil


def tree(process: psutil.Process) -> list[psutil.Process]:
    """Return a process and all its descendants."""
    return [process, *process.children(recursive=True)]


def resume(processes: Sequence[psutil.Process]) -> None:
    """Resume the processes that still exist."""
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.resume()


@contextmanager
def paused(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Suspend the processes, and resume them at the end."""
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.suspend()
    try:
        yield
    finally:
        resume(processes)
