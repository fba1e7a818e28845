"""Following the way out that an error names."""

from __future__ import annotations

import json
import re
from typing import Any

from typer.testing import CliRunner

from support.threads import Line
from tailrace import errors
from tailrace.cli.main import app


def follow(one: Line, error: errors.TailraceError, fill: str = "", **sections: Any) -> None:
    """Run the `tailrace offsets …` command that the error prints; `fill` replaces its …."""
    obey(one, error.then, fill, **sections)


def obey(one: Line, advice: str, fill: str = "", **sections: Any) -> None:
    """Run the `tailrace offsets …` command in a text; `fill` replaces its …."""
    found = re.search(r"tailrace (offsets [^`;,]+)", advice)
    assert found is not None, advice
    file = one.folder / f"{one.name}.yaml"
    data = one.pipeline(**sections).model_dump(mode="json", by_alias=True, exclude_defaults=True)
    file.write_text(json.dumps(data))
    words = found[1].strip().replace("FILE", str(file)).replace("…", fill).split()
    done = CliRunner().invoke(app, [*words, "--yes"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
