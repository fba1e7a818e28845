"""`tailrace init` and `tailrace schema`: a new project, and the schema by which editors check its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.terminal import done, say
from tailrace.scaffold.project import Kind, Project
from tailrace.scaffold.schema import schema as made


def init(
    name: Annotated[str, typer.Argument(help="The pipeline's name, and the folder's.")],
    kind: Annotated[Kind, typer.Option("--format", help="How the records are encoded.")] = Kind.JSON,
    arrow: Annotated[bool, typer.Option("--arrow", help="A function on Arrow batches instead of a DataFrame.")] = False,
    folder: Annotated[Path | None, typer.Option("--folder", help="Where to write it; by default NAME.")] = None,
) -> None:
    """Write a new pipeline that works: its file, a function, samples, a test, and what Kubernetes needs."""
    place = folder or Path(name)
    for path in Project(name, kind, arrow).write(place):
        say(str(path))
    done(f"written: {place}", f"cd {place} && tailrace dev")


def schema() -> None:
    """Print the JSON Schema of a pipeline's file."""
    say(json.dumps(made(), indent=2))
