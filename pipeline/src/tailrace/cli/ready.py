"""The sign for a readiness probe: a file that is there for as long as the driver is ready.

A driver is ready when it runs, or when it stands by and could take over at once: a rolling upgrade may then end the old
one. The file is gone when the driver leaves; one that a killed driver has left behind is removed at the next start.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tailrace.errors import ConfigInvalid

_READY = frozenset({"standby", "started"})


class ReadyFile:
    """A file, or none where nobody asked for one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def __enter__(self) -> Self:
        self._remove()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def after(self, emit: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
        """The same events; the file appears after the one that says that the driver is ready."""

        def told(event: dict[str, Any]) -> None:
            emit(event)
            if self._path is not None and event["event"] in _READY:
                self._path.write_text(f"{event['event']} {event['run']}\n", encoding="utf-8")

        return told

    def _remove(self) -> None:
        if self._path is None:
            return
        try:
            self._path.unlink(missing_ok=True)
            if not self._path.parent.is_dir():
                raise FileNotFoundError(f"{self._path.parent} is no folder")
        except OSError as error:
            raise ConfigInvalid(
                f"the ready file {self._path} cannot be there: {error.strerror or error}",
                kept="nothing was read or written",
                then="name a file in a folder that exists and can be written to",
            ) from error
