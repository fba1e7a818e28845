"""Leaving when a certificate was renewed, for where something starts the driver anew.

Kafka's clients read their certificates when they are made, and some of a driver's live as long as it does. A driver
that outlives its certificate is refused at its next connection, so it is better gone before.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tailrace.config import Pipeline

LOOK = 10.0  # seconds; a kubelet takes a minute or so to bring what a Secret holds now


def certificates(pipeline: Pipeline) -> tuple[Path, ...]:
    """The files that the connections are made with."""
    options = (*pipeline.kafka.options.items(), *pipeline.offsets.options.items())
    return tuple(sorted({Path(value) for name, value in options if name.endswith(".location")}))


class Renewal:
    """Inside, the files are looked at; when one has other contents, `stop` is called with the reason, once."""

    def __init__(self, files: tuple[Path, ...], stop: Callable[[str], None], look: float = LOOK) -> None:
        self._files, self._stop, self._look = files, stop, look
        self._ended = threading.Event()
        self._seen = {file: _digest(file) for file in files}
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
            for file, before in self._seen.items():
                now = _digest(file)
                if now is not None and now != before:
                    self._stop(f"{file} was renewed")
                    return


def _digest(file: Path) -> bytes | None:
    """What tells two contents apart; None while the file cannot be read, which is for those who need it to say."""
    try:
        return hashlib.sha256(file.read_bytes()).digest()
    except OSError:
        return None
