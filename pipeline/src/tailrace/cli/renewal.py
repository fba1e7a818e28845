"""Graceful end of a driver after a certificate is renewed, for environments that start another one.

Kafka clients read their certificates when they are created, and some of a driver's clients live as long as it does. A
driver that outlives its certificate is refused at its next connection, so it exits before that.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tailrace.config import Pipeline

LOOK = 10.0  # seconds; a kubelet takes about a minute to update a Secret's files


def certificates(pipeline: Pipeline) -> tuple[Path, ...]:
    """Return the files that the connections use."""
    options = (*pipeline.kafka.options.items(), *pipeline.offsets.options.items())
    return tuple(sorted({Path(value) for name, value in options if name.endswith(".location")}))


def copies(folder: Path) -> tuple[Path, ...]:
    """Return the files of a folder of secrets, as a kubelet mounts it: its own begin with a dot."""
    return tuple(sorted(each for each in folder.iterdir() if not each.name.startswith(".")))


class Renewal:
    """Context manager that watches the files, and calls `stop` once with the reason when one changes."""

    def __init__(self, files: tuple[Path, ...], stop: Callable[[str], None], look: float = LOOK) -> None:
        self._files, self._stop, self._look = files, stop, look
        self._ended = threading.Event()
        self._digests = {file: _digest(file) for file in files}
        self._thread = threading.Thread(target=self._watch, name="tailrace-renewal", daemon=True)

    def __enter__(self) -> Self:
        if self._files:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._files:
            self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(self._look):
            for file, before in self._digests.items():
                now = _digest(file)
                if now is not None and now != before:
                    self._stop(f"{file} was renewed")
                    return


def _digest(file: Path) -> bytes | None:
    """Digest the contents; None while the file cannot be read, which its clients report."""
    try:
        return hashlib.sha256(file.read_bytes()).digest()
    except OSError:
        return None
