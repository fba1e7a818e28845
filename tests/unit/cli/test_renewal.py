"""A driver leaves when its certificates were renewed, and only then."""

from __future__ import annotations

import threading
from pathlib import Path

from tailrace.cli.renewal import Renewal, certificates
from tailrace.config import Pipeline
from tailrace.testing import wait_until

LOOK = 0.01


def test_the_files_are_those_of_the_connections() -> None:
    """Brokers' and offset store's."""
    made = Pipeline.model_validate(
        {
            "pipeline": "copies",
            "kafka": {
                "options": {"ssl.ca.location": "/a/ca.crt", "ssl.key.location": "/a/user.key", "ssl.key.pem": "x"}
            },
            "source": {"topics": ["a"]},
            "sink": {"topic": "b"},
            "offsets": {"store": "zookeeper", "servers": "z:2181", "options": {"ssl.ca.location": "/z/ca.crt"}},
        }
    )
    assert certificates(made) == (Path("/a/ca.crt"), Path("/a/user.key"), Path("/z/ca.crt"))


def test_new_contents_are_a_reason_to_leave(tmp_path: Path) -> None:
    """Told once, with the file's name, also when the file comes by a link that is swapped, as a kubelet does it."""
    (tmp_path / "old").write_text("a")
    (tmp_path / "new").write_text("b")
    file = tmp_path / "user.crt"
    file.symlink_to(tmp_path / "old")
    told: list[str] = []
    with Renewal((file,), told.append, LOOK):
        swapped = tmp_path / "swapped"
        swapped.symlink_to(tmp_path / "new")
        swapped.replace(file)
        wait_until(lambda: told, "the renewal to be seen")
    assert told == [f"{file} was renewed"]


def test_the_same_contents_and_a_file_that_is_away_are_none(tmp_path: Path) -> None:
    """A kubelet writes a Secret anew also when nothing in it has changed."""
    same, away, seen = tmp_path / "same", tmp_path / "away", threading.Event()
    same.write_text("a")
    away.write_text("a")
    told: list[str] = []
    looks = iter(range(1000))

    class Looked(type(same)):  # type: ignore[misc]
        """A path that says when it was read often enough."""

        def read_bytes(self) -> bytes:
            if next(looks) > 8:
                seen.set()
            return bytes(super().read_bytes())

    with Renewal((Looked(same), Looked(away)), told.append, LOOK):
        again = tmp_path / "again"
        again.write_text("a")
        again.replace(same)
        away.unlink()
        assert seen.wait(30)
    assert told == []


def test_without_files_nobody_looks() -> None:
    """No thread is started."""
    before = threading.active_count()
    with Renewal((), lambda reason: None, LOOK):
        assert threading.active_count() == before
