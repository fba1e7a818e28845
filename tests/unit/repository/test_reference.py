"""The generated pages of the reference match what the code would generate now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from publish import places
from tailrace.config import Pipeline, Section
from tailrace.config.file.places import ALLOWED_OPTIONS, keys
from tailrace.errors import all_errors
from tailrace.telemetry import metrics
from tailrace.version import DOCUMENTATION

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """Load docs/generate.py, which is a script outside any package."""
    spec = spec_from_file_location("tailrace_docs_generate", DOCS / "generate.py")
    if spec is None or spec.loader is None:
        pytest.fail("docs/generate.py cannot be loaded")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["configuration", "errors"])
def test_page_is_up_to_date(generate: ModuleType, page: str) -> None:
    """After a change of the schema or of an error, run `python docs/generate.py`."""
    written = (DOCS / "reference" / f"{page}.md").read_text(encoding="utf-8")
    assert written == getattr(generate, page)(), f"run: python docs/generate.py, to regenerate {page}.md"


@pytest.mark.parametrize("name", ["pipeline", "values"])
def test_schema_is_up_to_date(generate: ModuleType, name: str) -> None:
    """After a change of the configuration, run `python docs/generate.py`. Its id is its place on the site."""
    written = (DOCS / "reference" / f"{name}.schema.json").read_text(encoding="utf-8")
    made = getattr(generate, f"{name}_schema")()
    assert written == made, f"run: python docs/generate.py, to regenerate {name}.schema.json"
    assert json.loads(made)["$id"] == DOCUMENTATION + places.place(f"docs/reference/{name}.schema.json")


@pytest.mark.parametrize("page", ["configuration", "errors"])
def test_page_says_that_it_is_generated(generate: ModuleType, page: str) -> None:
    """A reader who opens it to edit it learns what to edit instead."""
    assert "generated from" in getattr(generate, page)().split("\n")[2]


def _names(section: type[Section]) -> Iterator[str]:
    for key in keys(section).values():
        yield key.name
        if key.section is not None:
            yield from _names(key.section)


def test_every_key_and_option_is_on_the_page(generate: ModuleType) -> None:
    """No setting is left out."""
    text = generate.configuration()
    wanted = {*_names(Pipeline), *(name for allowed in ALLOWED_OPTIONS.values() for name in allowed)}
    assert [name for name in sorted(wanted) if f"`{name}`" not in text] == []


def test_the_metrics_are_up_to_date(generate: ModuleType) -> None:
    """After a change of a declaration, run `python docs/generate.py`; the page has every metric."""
    text = generate.metric_pages()
    assert (DOCS / "metrics.md").read_text(encoding="utf-8") == text, "run: python docs/generate.py"
    assert [
        each.name for each in metrics.DRIVER + metrics.EXECUTOR + metrics.BOTH if f"`{each.name}`" not in text
    ] == []


def test_every_error_is_on_the_page(generate: ModuleType) -> None:
    """Each has its code and title."""
    text = generate.errors()
    assert [kind.code for kind in all_errors() if f"### {kind.code} {kind.title}" not in text] == []


def test_links_of_the_page_resolve(generate: ModuleType) -> None:
    """Each section that a table names has its heading."""
    text = generate.configuration()
    headings = {line[3:].replace(".", "").lower() for line in text.split("\n") if line.startswith("## ")}
    links = {part.split(")")[0] for part in text.split("](#")[1:]}
    assert links
    assert links <= headings
