"""The file that tells a readiness probe that the driver is ready."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.cli.ready import ReadyFile
from tailrace.errors import ConfigInvalid
from tailrace.status.events import LeaseProblem, Ready, StandingBy, Started


@pytest.mark.parametrize("event", [StandingBy("p", "ab", None, ()), Ready("p", "ab")], ids=["standby", "ready"])
def test_ready_file_exists_from_the_event_until_the_driver_ends(tmp_path: Path, event: StandingBy | Ready) -> None:
    """A driver that has begun may still refuse what the ledger holds, so its start alone makes no file."""
    file = tmp_path / "ready"
    with ReadyFile(file) as ready:
        ready.heard(LeaseProblem("denied"))
        ready.heard(Started("p", "ab", 0))
        assert not file.exists()
        ready.heard(event)
        assert file.read_text() == f"{event.event} ab\n"
    assert not file.exists()


def test_a_file_left_by_a_killed_driver_is_removed(tmp_path: Path) -> None:
    """Otherwise the next driver would seem ready before it is."""
    file = tmp_path / "ready"
    file.write_text("started old\n")
    with ReadyFile(file):
        assert not file.exists()


def test_the_file_is_removed_if_the_driver_fails(tmp_path: Path) -> None:
    """It is removed whatever ends the driver."""
    file = tmp_path / "ready"

    def fails() -> None:
        with ReadyFile(file) as ready:
            ready.heard(Ready("p", "ab"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert not file.exists()


def test_a_file_that_cannot_be_there_is_refused(tmp_path: Path) -> None:
    """Before anything starts."""
    with pytest.raises(ConfigInvalid, match="is not a folder"), ReadyFile(tmp_path / "no" / "ready"):
        pass


def test_no_file_is_written_unless_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither here nor elsewhere."""
    monkeypatch.chdir(tmp_path)
    with ReadyFile(None) as ready:
        ready.heard(Ready("p", "ab"))
        assert list(tmp_path.iterdir()) == []
