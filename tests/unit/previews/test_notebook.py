"""The example notebook: its cells run, and its saved outputs are those of a run."""

from __future__ import annotations

import json
from pathlib import Path

from support.notebook import executed, text

NOTEBOOK = Path(__file__).parents[3] / "pipeline" / "examples" / "preview-notebook" / "preview.ipynb"


def test_saved_outputs_of_the_notebook_are_those_of_a_run() -> None:
    """`make docs` writes them."""
    assert text(executed(NOTEBOOK)) == NOTEBOOK.read_text(encoding="utf-8")


def test_notebook_shows_what_is_written_and_what_is_rejected() -> None:
    """Both tables are in its first output."""
    cells = [each for each in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if each["cell_type"] == "code"]
    shown = "".join(cells[0]["outputs"][0]["data"]["text/html"])
    assert "<h4>written</h4>" in shown
    assert "<h4>rejected</h4>" in shown
