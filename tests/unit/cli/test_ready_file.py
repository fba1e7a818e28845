"""The file that tells a readiness probe that the driver is ready."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.cli.ready import ReadyFile
from tailrace.errors import ConfigInvalid


@pytest.mark.parametrize("kind", ["standby", "started"])
def test_the_file_is_there_from_the_event_to_the_end(tmp_path: Path, kind: str) -> None:
    """And the event itself is told first."""
    file, events = tmp_path / "ready", list[tuple[dict[str, Any], bool]]()
    with ReadyFile(file) as ready:
        emit = ready.after(lambda event: events.append((event, file.exists())))
        emit({"event": "lease"})
        assert not file.exists()
        emit({"event": kind, "run": "ab"})
        assert file.read_text() == f"{kind} ab\n"
    assert not file.exists()
    assert [there for _, there in events] == [False, False]


def test_a_file_that_a_killed_driver_has_left_is_removed(tmp_path: Path) -> None:
    """Otherwise the next one would be ready before it is."""
    file = tmp_path / "ready"
    file.write_text("started old\n")
    with ReadyFile(file):
        assert not file.exists()


def test_the_file_goes_when_the_driver_fails(tmp_path: Path) -> None:
    """Whatever ends it."""
    file = tmp_path / "ready"

    def fails() -> None:
        with ReadyFile(file) as ready:
            ready.after(lambda event: None)({"event": "started", "run": "ab"})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert not file.exists()


def test_a_file_that_cannot_be_there_is_refused(tmp_path: Path) -> None:
    """Before anything starts."""
    with pytest.raises(ConfigInvalid, match="is no folder"), ReadyFile(tmp_path / "no" / "ready"):
        pass


def test_without_a_file_nothing_is_written(tmp_path: Path) -> None:
    """Events pass as they are."""
    events: list[dict[str, Any]] = []
    with ReadyFile(None) as ready:
        ready.after(events.append)({"event": "started", "run": "ab"})
    assert events == [{"event": "started", "run": "ab"}]
