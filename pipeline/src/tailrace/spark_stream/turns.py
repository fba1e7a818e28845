"""Whether a Spark batch is in progress, and whether another may begin.

Spark calls the runner from a thread of its own, while the driver's thread decides when the run ends. What the two share
is here, behind one lock: `taken` is the batch's side, the other methods are the driver's.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator


class Closing(Exception):
    """Raised inside Spark's callback when the pipeline is stopping: the batch was not begun."""


class Turns:
    """The turns of one run's batches."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._lock = threading.Lock()
        self._closed = False
        self._refused = False
        self._busy = False
        self._since = time.monotonic()

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Hold the turn for one batch; raise Closing if no other batch may begin."""
        with self._lock:
            if self._closed or self._stopping.is_set():
                self._refused = True
                raise Closing
            self._busy = True
        try:
            yield
        finally:
            with self._lock:
                self._busy, self._since = False, time.monotonic()

    @contextlib.contextmanager
    def between(self) -> Iterator[bool]:
        """Keep batches from beginning while inside; False if one is in progress."""
        with self._lock:
            yield not self._busy

    def close(self) -> None:
        """Let no other batch begin."""
        with self._lock:
            self._closed = True

    @property
    def refused(self) -> bool:
        """Whether a batch that Spark asked for was refused."""
        return self._refused

    @property
    def busy(self) -> bool:
        """Whether a batch is in progress."""
        return self._busy

    @property
    def idle(self) -> float:
        """Seconds since the last batch ended; 0 while one is in progress."""
        return 0.0 if self._busy else time.monotonic() - self._since
