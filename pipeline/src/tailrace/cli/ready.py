"""Ready file for a readiness probe: it exists while the driver is ready.

A driver is ready when it reads new records, or when it stands by and could take over at once: a rolling upgrade may
then end the old one. The file is removed when the driver exits; one that a killed driver left behind is removed at the
next start.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from tailrace.errors import ConfigInvalid
from tailrace.status.events import Event, Ready, StandingBy


class ReadyFile:
    """The ready file; does nothing without a path."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def __enter__(self) -> Self:
        self._remove()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def heard(self, event: Event) -> None:
        """Make the file appear when the driver is ready."""
        match event:
            case StandingBy() | Ready() if self._path is not None:
                self._path.write_text(f"{event.event} {event.run}\n", encoding="utf-8")

    def _remove(self) -> None:
        if self._path is None:
            return
        try:
            self._path.unlink(missing_ok=True)
            if not self._path.parent.is_dir():
                raise FileNotFoundError(f"{self._path.parent} is not a folder")
        except OSError as error:
            raise ConfigInvalid(
                f"the ready file {self._path} cannot be used: {error.strerror or error}",
                kept="nothing was read or written",
                then="name a file in an existing, writable folder",
            ) from error
