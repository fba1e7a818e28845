"""Processes that stand still for a while, as on a machine that was suspended, and then go on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import psutil


def tree(process: psutil.Process) -> list[psutil.Process]:
    """A process and all that it has started."""
    return [process, *process.children(recursive=True)]


def resume(processes: Sequence[psutil.Process]) -> None:
    """They go on, if they are still there."""
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.resume()


@contextmanager
def paused(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """They stand still; at the end they go on."""
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.suspend()
    try:
        yield
    finally:
        resume(processes)
