"""The schemas of a pipeline beside the registry's, before anything starts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.registry import SchemaRegistry, schema_registry
from tailrace.config import Pipeline
from tailrace.errors import SchemaInvalid
from tailrace.startup.preflight import schemas
from tailrace.status.events import Event, Noted


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    """Run a schema registry."""
    with schema_registry() as found:
        yield found


def order(*fields: str) -> dict[str, Any]:
    """Return the schema of a record with these fields."""
    return {"type": "record", "name": "Order", "fields": [{"name": each, "type": "int"} for each in fields]}


def noted(folder: Path, registry: SchemaRegistry, own: dict[str, Any], *sides: str) -> list[str]:
    """Compare a pipeline with this schema on these sides; return what is noted."""
    (folder / "own.avsc").write_text(json.dumps(own))
    section = {
        "format": "avro",
        "schema": "own.avsc",
        "registry": {"url": registry.url, "options": {"max.retries": "0"}},
    }
    made: dict[str, Any] = {"pipeline": "p", "source": {"topics": ["in"]}, "sink": {"topic": "out", "format": "raw"}}
    for side in sides:
        made[side] |= section
    events: list[Event] = []
    schemas(Pipeline.model_validate(made), folder, ["in"], events.append)
    return [each.what for each in events if isinstance(each, Noted)]


def test_sink_schema_that_the_registry_refuses_ends_the_start(tmp_path: Path, registry: SchemaRegistry) -> None:
    """The error says which field breaks the subject's level, and nothing is registered."""
    registry.add(order("a"), "out-value")
    registry.refused.add("out-value")
    with pytest.raises(SchemaInvalid, match=r"`b` is in own\.avsc without a default"):
        noted(tmp_path, registry, order("a", "b"), "sink")
    assert registry.subjects == {"out-value": [1]}


def test_sink_schema_that_is_registered_starts_whatever_came_later(tmp_path: Path, registry: SchemaRegistry) -> None:
    """A driver of an older revision restarts, although its schema would not be taken as the next version."""
    registry.add(order("a", "b"), "out-value")
    registry.add(order("a"), "out-value")
    registry.refused.add("out-value")
    assert noted(tmp_path, registry, order("a", "b"), "sink") == []


def test_source_schema_that_cannot_read_the_newest_version_is_noted(tmp_path: Path, registry: SchemaRegistry) -> None:
    """Its records are rejected, and others are not: the start goes on."""
    registry.add(order("a", "b"))
    registry.add(order("a"))
    (found,) = noted(tmp_path, registry, order("a", "b"), "source", "sink")
    assert found == (
        "in-value: `b` is in own.avsc without a default, and missing in version 2; "
        "the records of version 2 will be rejected"
    )


def test_older_version_that_cannot_be_read_is_no_news(tmp_path: Path, registry: SchemaRegistry) -> None:
    """The topic may hold none of its records any more; the doctor names it."""
    registry.add(order("a"))
    registry.add(order("a", "b"))
    assert noted(tmp_path, registry, order("a", "b"), "source") == []


def test_registry_that_is_away_does_not_keep_a_pipeline_from_its_start(
    tmp_path: Path, registry: SchemaRegistry
) -> None:
    """Records may come later than the registry is back."""
    registry.broken = True
    (found,) = noted(tmp_path, registry, order("a"), "source", "sink")
    assert found.startswith(f"the schemas were not compared: the schema registry at {registry.url} did not return")


def test_pipeline_without_a_registry_asks_none(tmp_path: Path, registry: SchemaRegistry) -> None:
    """A raw or plain format has no subjects."""
    assert noted(tmp_path, registry, order("a")) == []
    assert registry.asked == []
