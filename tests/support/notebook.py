"""Runs a notebook's cells in this process, and saves their outputs: `python -m support.notebook FILE`.

A cell shows its last expression, as text and as HTML if it has a form in HTML. That is all that the notebooks here use,
so they need no Jupyter to run in the tests, and their saved outputs are compared with those of a run.
"""

from __future__ import annotations

import ast
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd


def executed(path: Path) -> dict[str, Any]:
    """Return the notebook with the outputs of running it in its folder."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    # As many columns as Jupyter shows; by default it depends on the terminal.
    with contextlib.chdir(path.parent), pd.option_context("display.max_columns", 20, "display.width", 100):
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                count += 1
                cell["execution_count"] = count
                cell["outputs"] = _outputs("".join(cell["source"]), names, count)
    return notebook


def text(notebook: dict[str, Any]) -> str:
    """Return the notebook as its file has it."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _outputs(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    body = ast.parse(source)
    last = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) else None
    exec(compile(body, f"<cell {count}>", "exec"), names)
    if not isinstance(last, ast.Expr):
        return []
    value = eval(compile(ast.Expression(last.value), f"<cell {count}>", "eval"), names)
    if value is None:
        return []
    data = {"text/plain": repr(value).splitlines(keepends=True)}
    if hasattr(value, "_repr_html_"):
        data = {"text/html": value._repr_html_().splitlines(keepends=True), **data}
    return [{"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"}]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(text(executed(Path(name))), encoding="utf-8")
