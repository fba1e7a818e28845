"""The doctor's comparison of a pipeline's Avro schemas with the registry's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.registry import SchemaRegistry, schema_registry
from tailrace.admin.checks import Check, State
from tailrace.admin.schema_checks import schemas
from tailrace.config import Pipeline

LACKING = "`b` is in own.avsc without a default, and missing in version"


def order(*fields: str | tuple[str, Any]) -> dict[str, Any]:
    """Return the schema of a record with these fields, each an int unless it has a type."""
    named = [(each, "int") if isinstance(each, str) else each for each in fields]
    return {"type": "record", "name": "Order", "fields": [{"name": name, "type": kind} for name, kind in named]}


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    """Run a schema registry."""
    with schema_registry() as found:
        yield found


def checked(folder: Path, registry: SchemaRegistry, own: dict[str, Any], side: str, **source: Any) -> list[Check]:
    """Return the checks of a pipeline with this schema on one side."""
    (folder / "own.avsc").write_text(json.dumps(own))
    section = {
        "format": "avro",
        "schema": "own.avsc",
        "registry": {"url": registry.url, "options": {"max.retries": "0"}},
    }
    made: dict[str, Any] = {"pipeline": "p", "source": {"topics": ["in"]}, "sink": {"topic": "out", "format": "raw"}}
    if "pattern" in source:
        del made["source"]["topics"]
    made[side] |= section | source
    return list(schemas(Pipeline.model_validate(made), folder, ["in", "in2", "other"]))


def test_schema_that_reads_every_version_passes(tmp_path: Path, registry: SchemaRegistry) -> None:
    """One request lists the versions, and one fetches each."""
    registry.add(order("a", "b"))
    registry.add(order("a", "b", "c"))
    (found,) = checked(tmp_path, registry, order("a"), "source")
    assert (found.state, found.found) == (State.OK, "own.avsc reads all 2 versions of in-value")
    assert len(registry.asked) == 3


def test_latest_version_that_cannot_be_read_fails_until_the_schema_follows(
    tmp_path: Path, registry: SchemaRegistry
) -> None:
    """The words name the field; with a schema that follows, only older records are left to warn of."""
    registry.add(order("a"))
    registry.add(order(("a", "string")))
    (found,) = checked(tmp_path, registry, order("a"), "source")
    assert (found.state, found.found) == (State.FAIL, "in-value: `a` is string in version 2 and int in own.avsc")
    assert found.hint == "change own.avsc so that it reads version 2: its records are rejected"
    (found,) = checked(tmp_path, registry, order(("a", "string")), "source")
    assert (found.state, found.found) == (State.WARN, "in-value: `a` is int in version 1 and string in own.avsc")


def test_older_version_that_cannot_be_read_is_a_warning(tmp_path: Path, registry: SchemaRegistry) -> None:
    """The topic may no longer hold its records."""
    registry.add(order("a"))
    registry.add(order("a", "b"))
    (found,) = checked(tmp_path, registry, order("a", "b"), "source")
    assert found.state is State.WARN
    assert found.found == "in-value: `b` is in own.avsc without a default, and missing in version 1"


def test_value_that_cannot_be_read_is_a_warning(tmp_path: Path, registry: SchemaRegistry) -> None:
    """Other records of that version are read."""
    registry.add(order(("a", ["null", "int"])))
    (found,) = checked(tmp_path, registry, order("a"), "source")
    assert (found.state, found.found) == (
        State.WARN,
        "in-value: `a` may be null in version 1, and is int in own.avsc",
    )


def test_subjects_of_a_pattern_are_those_of_the_topics_it_matches(tmp_path: Path, registry: SchemaRegistry) -> None:
    """A topic without a subject says so, and fails nothing: it may use subjects of other names."""
    registry.add(order("a"))
    found = checked(tmp_path, registry, order("a"), "source", pattern="in.*")
    assert [(each.state, each.found) for each in found] == [
        (State.OK, "own.avsc reads the one version of in-value"),
        (State.OK, "the registry has no in2-value: nothing to compare"),
    ]


def test_schema_that_the_registry_takes_is_not_registered(tmp_path: Path, registry: SchemaRegistry) -> None:
    """A check changes nothing, whether or not the subject exists."""
    (found,) = checked(tmp_path, registry, order("a"), "sink")
    assert (found.state, found.found) == (State.OK, "the registry takes own.avsc for out-value")
    assert registry.subjects == {}


@pytest.mark.parametrize(
    ("level", "reasons"),
    [
        ("BACKWARD", "`b` is in own.avsc without a default, and missing in version 2"),
        (
            "BACKWARD_TRANSITIVE",
            f"{LACKING} 2; `a` is string in version 1 and int in own.avsc; {LACKING} 1",
        ),
        ("FORWARD", "`c` is in version 2 without a default, and missing in own.avsc"),
        (
            "FULL",
            f"{LACKING} 2; `c` is in version 2 without a default, and missing in own.avsc",
        ),
    ],
)
def test_refusal_of_the_registry_is_explained_by_its_level(
    level: str, reasons: str, tmp_path: Path, registry: SchemaRegistry
) -> None:
    """The registry decides; the words say what its level forbids."""
    registry.add(order(("a", "string")), "out-value")
    registry.add(order("a", "c"), "out-value")
    registry.refused.add("out-value")
    registry.levels["out-value"] = level
    (found,) = checked(tmp_path, registry, order("a", "b"), "sink")
    assert found.state is State.FAIL
    assert found.found == f"the registry refuses own.avsc for out-value, at level {level}: {reasons}"
    (found,) = checked(tmp_path, registry, order("a", "b"), "sink", topic="new")
    assert found.state is State.OK


@pytest.mark.parametrize("side", ["source", "sink"])
def test_registry_that_does_not_answer_fails_the_check(side: str, tmp_path: Path, registry: SchemaRegistry) -> None:
    """The check has the registry's address, as the error of a batch would."""
    registry.broken = True
    (found,) = checked(tmp_path, registry, order("a"), side)
    assert found.state is State.FAIL
    assert f"the schema registry at {registry.url} did not return" in found.found
