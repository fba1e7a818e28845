"""The error that ends a run, in a file: Kubernetes shows what a container wrote to its termination log.

A log's last lines are often not the error's: Spark's own come after it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.errors import TailraceError

_LONGEST = 2000  # characters: Kubernetes keeps 4096 bytes


@contextmanager
def last_words(file: Path | None) -> Iterator[None]:
    """Write an error that ends the block to the file, if one is named; it is raised all the same."""
    try:
        yield
    except TailraceError as error:
        if file is not None:
            try:
                file.write_text(str(error)[:_LONGEST], encoding="utf-8")
            except OSError as refused:  # the error itself matters more
                sys.stderr.write(f"{file} could not be written: {refused.strerror}\n")
        raise
