"""Configuration files as the tests of `config.file` write them, and the messages about invalid ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tailrace.config.file import Loaded, load
from tailrace.errors import ConfigInvalid

SMALLEST = """\
pipeline: copy
source:
  topics: [orders]
sink:
  topic: copies
"""
SECRET = "hunter2-hunter2"


def loaded(text: str, environment: Mapping[str, str] | None = None) -> Loaded:
    """Load `text` as file.yaml."""
    Path("file.yaml").write_text(text, encoding="utf-8")
    return load(Path("file.yaml"), environment or {})


def problems(text: str, environment: Mapping[str, str] | None = None) -> list[str]:
    """Return the lines of the error message that loading `text` raises."""
    with pytest.raises(ConfigInvalid) as caught:
        loaded(text, environment)
    first, *rest = caught.value.what.split("\n")
    return [line.strip() for line in rest] if rest else [first]
