"""New projects: their files are complete and valid, and editors can check them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailrace.admin.code_checks import code
from tailrace.cli.main import app
from tailrace.config.file import load
from tailrace.errors import ConfigInvalid
from tailrace.scaffold.project import Kind, Project
from tailrace.scaffold.schema import schema

EVERY = [(kind, arrow) for kind in Kind for arrow in (False, True)]


@pytest.mark.parametrize(("kind", "arrow"), EVERY)
def test_project_is_valid(tmp_path: Path, kind: Kind, arrow: bool) -> None:
    """Its file loads, its function and its schemas too, and nothing is left of the templates."""
    folder = tmp_path / "orders"
    written = Project("orders", kind, arrow).write(folder)
    loaded = load(folder / "pipeline.yaml")
    assert loaded.pipeline.pipeline == "orders"
    assert {check.state.value for check in code(loaded.pipeline, loaded.folder)} == {"ok"}
    for path in written:
        if path.suffix != ".json":
            text = path.read_text()
            assert "@" not in text, path
            if path.suffix == ".py":
                ast.parse(text)


def test_schema_describes_each_key() -> None:
    """That is what an editor shows."""
    sections = schema()["$defs"]
    lacking = [
        f"{name}.{key}"
        for name, section in sections.items()
        for key, value in section.get("properties", {}).items()
        if "description" not in value and "$ref" not in value
    ]
    assert lacking == []


def test_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    """Whatever is there may be dear to somebody."""
    (tmp_path / "notes").touch()
    with pytest.raises(ConfigInvalid, match="is not empty"):
        Project("orders").write(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["notes"]


@pytest.mark.parametrize("name", ["Orders", "../up", "a_b", "", "-a", "x" * 60])
def test_name_that_no_pipeline_can_have_is_refused(name: str) -> None:
    """Before a folder of that name is made."""
    with pytest.raises(ConfigInvalid, match="is no name for a pipeline"):
        Project(name)


def test_commands_write_the_project_and_print_the_schema(tmp_path: Path) -> None:
    """The last line is the next command."""
    folder = tmp_path / "orders"
    done = CliRunner().invoke(app, ["init", "orders", "--format", "avro", "--folder", str(folder)])
    assert done.exit_code == 0, done.output
    assert f"next: cd {folder} && tailrace dev" in done.output
    assert (folder / "order.avsc").is_file()
    printed = CliRunner().invoke(app, ["schema"])
    assert '"A Tailrace pipeline"' in printed.stdout
