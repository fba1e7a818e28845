"""A driver stops when its certificates were renewed, and only then."""

from __future__ import annotations

import threading
from pathlib import Path

from tailrace.cli.renewal import Renewal, certificates, copies
from tailrace.config import Pipeline
from tailrace.testing import wait_until

LOOK = 0.01


def test_the_watched_files_are_those_of_the_connections() -> None:
    """They are the brokers' and the offset store's."""
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


def test_copies_of_secrets_are_watched_without_the_kubelets_own_files(tmp_path: Path) -> None:
    """It swaps a link to a folder when it renews them."""
    (tmp_path / "..2026_11_24").mkdir()
    (tmp_path / "..data").symlink_to(tmp_path / "..2026_11_24")
    for name in ("REGISTRY_KEY", "KAFKA_PASSWORD"):
        (tmp_path / "..2026_11_24" / name).write_text("x")
        (tmp_path / name).symlink_to(tmp_path / "..data" / name)
    assert copies(tmp_path) == (tmp_path / "KAFKA_PASSWORD", tmp_path / "REGISTRY_KEY")


def test_new_contents_are_a_reason_to_stop(tmp_path: Path) -> None:
    """It is reported once, with the file's name, even if a kubelet replaces the file by swapping a symbolic link."""
    (tmp_path / "old").write_text("a")
    (tmp_path / "new").write_text("b")
    file = tmp_path / "user.crt"
    file.symlink_to(tmp_path / "old")
    reports: list[str] = []
    with Renewal((file,), reports.append, LOOK):
        swapped = tmp_path / "swapped"
        swapped.symlink_to(tmp_path / "new")
        swapped.replace(file)
        wait_until(lambda: reports, "the renewal to be seen")
    assert reports == [f"{file} was renewed"]


def test_unchanged_contents_and_a_missing_file_are_no_reason_to_stop(tmp_path: Path) -> None:
    """A kubelet rewrites a Secret even if nothing in it has changed."""
    same, away, seen = tmp_path / "same", tmp_path / "away", threading.Event()
    same.write_text("a")
    away.write_text("a")
    reports: list[str] = []
    looks = iter(range(1000))

    class Looked(type(same)):  # type: ignore[misc]
        """A path that records when it was read often enough."""

        def read_bytes(self) -> bytes:
            if next(looks) > 8:
                seen.set()
            return bytes(super().read_bytes())

    with Renewal((Looked(same), Looked(away)), reports.append, LOOK):
        again = tmp_path / "again"
        again.write_text("a")
        again.replace(same)
        away.unlink()
        assert seen.wait(30)
    assert reports == []


def test_nothing_is_watched_without_files() -> None:
    """No thread is started."""
    before = threading.active_count()
    with Renewal((), lambda reason: None, LOOK):
        assert threading.active_count() == before
