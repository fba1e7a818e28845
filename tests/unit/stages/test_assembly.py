"""The digests of what decides a pipeline's rows."""

from __future__ import annotations

from pathlib import Path

from tailrace.config import Pipeline
from tailrace.stages.assembly import Assembly


def rules(folder: Path, name: str) -> str:
    """Return the digest of the rules of a pipeline that reads this format."""
    pipeline = Pipeline.model_validate(
        {"pipeline": "p", "source": {"topics": ["in"], "format": name}, "sink": {"topic": "out"}}
    )
    return Assembly(pipeline, None, folder).rules


def test_rules_change_with_the_code_of_an_own_format(tmp_path: Path) -> None:
    """What it refuses decides which records are rejected, as a schema does."""
    file = tmp_path / "own_lines.py"
    file.write_text("class Lines: ...\n")
    before = rules(tmp_path, "own_lines:Lines")
    assert rules(tmp_path, "own_lines:Lines") == before
    file.write_text("class Lines: strict = True\n")
    assert rules(tmp_path, "own_lines:Lines") != before


def test_rules_of_a_known_format_are_those_of_earlier_versions(tmp_path: Path) -> None:
    """Otherwise an upgrade in the middle of a batch would be refused."""
    assert rules(tmp_path, "raw") == "4be046d86ab3b335"


def test_digests_are_of_the_files_that_were_loaded(tmp_path: Path) -> None:
    """A file that changes while a pipeline runs changes nothing of what the process does."""
    (tmp_path / "work.py").write_text("def work(frame):\n    return frame\n")
    (tmp_path / "models.py").write_text("class Order: ...\n")
    pipeline = Pipeline.model_validate(
        {
            "pipeline": "p",
            "source": {"topics": ["in"], "format": "json", "schema": "models.py:Order"},
            "process": {"function": "work.py:work"},
            "sink": {"topic": "out", "format": "json"},
        }
    )
    running = Assembly(pipeline, None, tmp_path)
    before = running.rules, running.code
    (tmp_path / "work.py").write_text("def work(frame):\n    return frame.limit(1)\n")
    (tmp_path / "models.py").write_text("class Order:\n    strict = True\n")
    assert (running.rules, running.code) == before
    started_again = Assembly(pipeline, None, tmp_path)
    assert started_again.rules != before[0]
    assert started_again.code != before[1]
