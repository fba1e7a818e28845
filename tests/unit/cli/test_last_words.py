"""The error that ends a run is where Kubernetes looks for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailrace.cli.last_words import last_words
from tailrace.cli.main import app
from tailrace.errors import ConfigInvalid, FunctionMissing


def test_error_that_ends_a_run_is_in_the_file(tmp_path: Path) -> None:
    """With its code and the next command, as on the terminal."""
    file, wrong = tmp_path / "termination-log", tmp_path / "pipeline.yaml"
    wrong.write_text("pipeline: p\nsorce: {}\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["run", str(wrong), "--error-file", str(file)])
    assert isinstance(done.exception, ConfigInvalid)
    assert file.read_text(encoding="utf-8") == str(done.exception)
    assert "TR-101" in str(done.exception)


def test_file_that_cannot_be_written_does_not_hide_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is raised, and stderr has a line about the file."""
    with pytest.raises(FunctionMissing), last_words(tmp_path / "none" / "file"):
        raise FunctionMissing("no function", kept="nothing")
    assert "could not be written" in capsys.readouterr().err


def test_run_without_an_error_writes_nothing(tmp_path: Path) -> None:
    """So an earlier container's words are not mistaken for this one's."""
    with last_words(tmp_path / "file"):
        pass
    assert not (tmp_path / "file").exists()
