"""Formats and models of a package whose files are edited after this process has imported them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tailrace.config import Pipeline
from tailrace.errors import ConfigInvalid, SchemaInvalid
from tailrace.previews.without_jvm import engine
from tailrace.stages.assembly import Assembly
from tailrace.stages.formats.known import sink_format, source_format

MODULE = """
from pydantic import BaseModel
from tailrace.stages.formats.raw_format import RawSink, RawSource

class Source(RawSource): ...

class Sink(RawSink): ...

class Order(BaseModel):
    id: int
"""


def made(name: str, kind: str) -> Pipeline:
    """Return a pipeline that names something of a module."""
    source: dict[str, Any] = {"topics": ["in"]}
    if kind == "source.format":
        source["format"] = f"{name}:Source"
    elif kind == "source.schema":
        source |= {"format": "json", "schema": f"{name}:Order"}
    sink = {"topic": "out", "format": f"{name}:Sink" if kind == "sink.format" else "json"}
    return Pipeline.model_validate({"pipeline": "p", "source": source, "sink": sink})


def start(pipeline: Pipeline, folder: Path) -> None:
    """Load what a start loads."""
    Assembly(pipeline, None, folder)
    source_format(pipeline.source, folder, jvm=False)
    sink_format(pipeline.sink, folder)


KINDS = [("source.format", ConfigInvalid), ("sink.format", ConfigInvalid), ("source.schema", SchemaInvalid)]


@pytest.mark.parametrize(("kind", "error"), KINDS)
def test_edited_module_of_a_format_or_a_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, error: type[Exception]
) -> None:
    """The process would use the earlier class, with the digest of the new text."""
    name = f"tailrace_test_edited_{kind.replace('.', '_')}"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{name}.py").write_text(MODULE)
    start(made(name, kind), tmp_path)
    start(made(name, kind), tmp_path)
    (tmp_path / f"{name}.py").write_text(f"{MODULE}    more: int\n")
    with pytest.raises(error, match=f"{name} was edited after") as raised:
        start(made(name, kind), tmp_path)
    assert kind in str(raised.value)
    with pytest.raises(error, match=f"{name} was edited after"):
        engine(made(name, kind), tmp_path, [])
    (tmp_path / f"{name}.py").write_text(MODULE)
    start(made(name, kind), tmp_path)


@pytest.mark.parametrize(("kind", "error"), KINDS)
def test_module_of_a_format_or_a_model_that_was_imported_from_another_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, error: type[Exception]
) -> None:
    """The process would use the first folder's class, with the digest of the second's text."""
    name = f"tailrace_test_twice_{kind.replace('.', '_')}"
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        (folder / f"{name}.py").write_text(f"{MODULE}    {folder.name}: int\n")
    monkeypatch.syspath_prepend(tmp_path / "one")
    start(made(name, kind), tmp_path / "one")
    with pytest.raises(error, match=f"has imported another {name} before, from .*one") as raised:
        start(made(name, kind), tmp_path / "two")
    assert kind in str(raised.value)


def test_format_that_is_edited_while_a_pipeline_runs_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame that is planned again uses the class that was loaded."""
    name = "tailrace_test_running_format"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{name}.py").write_text(MODULE)
    pipeline = made(name, "source.format")
    start(pipeline, tmp_path)
    (tmp_path / f"{name}.py").write_text(f"{MODULE}    more: int\n")
    assert type(source_format(pipeline.source, tmp_path, jvm=False)) is sys.modules[name].Source
