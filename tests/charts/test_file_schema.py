"""The JSON Schema of a pipeline's file, by the validator that Helm has: it knows what a start would refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.helm import helm, render
from tailrace.scaffold.project import SCHEMA, Kind, Project
from tailrace.scaffold.schema import schema

EVERY = [(kind, arrow) for kind in Kind for arrow in (False, True)]
FILE = {"pipeline": "a", "source": {"topics": ["in"]}, "sink": {"topic": "out"}}


def complaint(file: Any, folder: Path) -> str:
    """Return what the validator says about a pipeline's file; empty if it is valid."""
    chart = folder / "chart"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: file\nversion: 0.0.1\n")
    # Helm adds a key of its own to the values.
    made = schema()
    made["properties"]["global"] = {}
    (chart / "values.schema.json").write_text(json.dumps(made))
    done = helm("template", "x", str(chart), values=file)
    return "" if done.returncode == 0 else done.stderr


@pytest.mark.parametrize(("kind", "arrow"), EVERY)
def test_new_project_matches_the_schema_that_it_names(tmp_path: Path, kind: Kind, arrow: bool) -> None:
    """Its first line names a file that is there, and the chart takes its values."""
    folder = tmp_path / "orders"
    Project("orders", kind, arrow).write(folder)
    text = (folder / "pipeline.yaml").read_text()
    assert text.splitlines()[0] == f"# yaml-language-server: $schema={SCHEMA}"
    assert json.loads((folder / SCHEMA).read_text()) == schema()
    assert complaint(yaml.safe_load(text), tmp_path) == ""
    made = render(values=yaml.safe_load((folder / "values.yaml").read_text()))
    assert [each["metadata"]["name"] for each in made if each["kind"] == "Deployment"]


@pytest.mark.parametrize(
    ("change", "right"),
    [
        ({"batch": {"max_records": 5}}, True),
        ({"batch": {"max_records": "${MOST}"}}, True),
        ({"batch": {"max_records": "many"}}, False),
        ({"batch": {"max_record": 5}}, False),
        ({"process": {"on_error": "reject"}}, True),
        ({"process": {"on_error": "rejct"}}, False),
        ({"metrics": {"enabled": "${ON}"}}, True),
    ],
)
def test_schema_finds_what_a_start_would_refuse(tmp_path: Path, change: dict[str, Any], right: bool) -> None:
    """It knows the keys, the choices and the types; a variable may stand for any of them."""
    assert (complaint({**FILE, **change}, tmp_path) == "") is right
