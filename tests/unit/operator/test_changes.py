"""Which keys of a spec need another driver: complete, and named when they change."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from support.helm import CHART, ROOT
from tailrace_operator import changes
from tailrace_operator.changes import EFFECTS, NESTED, Effect, changed, combined, part, why
from tailrace_operator.crd import crd

SPEC: dict[str, Any] = {
    "config": {"source": {"topics": ["a"]}, "sink": {"topic": "b"}},
    "executors": {"instances": 2, "memory": "1g"},
    "suspend": True,
}


def keys() -> set[str]:
    """Return the keys of the schema, those of nested ones told apart."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    [version] = crd(schema)["spec"]["versions"]
    found: set[str] = set()
    for name, each in version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"].items():
        found |= {f"{name}.{key}" for key in each["properties"]} if name in NESTED else {name}
    return found


def test_each_key_of_a_spec_has_one_effect() -> None:
    """A new key must be classified, and a removed one must leave the table."""
    assert set(EFFECTS) == keys()
    classes = (changes._OPERATOR, changes._LIVE, changes._HAND_OVER)
    assert sum(map(len, classes)) == len(EFFECTS)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({}, ()),
        ({"suspend": False, "paused": True}, ()),
        ({"executors": {"instances": 5, "memory": "1g"}}, ()),
        ({"executors": {"memory": "2g"}}, ("executors.memory",)),
        ({"executors": {}}, ("executors.memory",)),
        ({"image": {"driver": {"tag": "2"}}}, ("image",)),
        (
            {"config": {"source": {"topics": ["c"]}, "sink": {"topic": "b"}, "process": {}}},
            ("config.process", "config.source"),
        ),
        ({"unheard": 1}, ("unheard",)),
    ],
)
def test_reasons_of_a_hand_over_are_the_changed_keys(change: dict[str, Any], names: tuple[str, ...]) -> None:
    """Only those that need another driver, and any that no table knows."""
    assert why(SPEC, {**SPEC, **change}) == names


def test_live_keys_are_no_part_of_a_revision() -> None:
    """So a changed number of executors is no new revision, and a rollback leaves it as the spec says."""
    assert part(SPEC, Effect.HAND_OVER) == {"config": SPEC["config"], "executors": {"memory": "1g"}}
    old = {"config": {"source": {}}, "executors": {"instances": 9}, "topics": {"read": ["x"]}, "image": {}}
    made = combined(old, SPEC)
    assert made == {"config": {"source": {}}, "executors": {"instances": 2}, "image": {}}
    assert changed(SPEC, {**SPEC, "executors": {"instances": 3, "memory": "1g"}}, Effect.LIVE) == (
        "executors.instances",
    )


def test_revision_that_runs_again_keeps_the_rights_that_it_had() -> None:
    """With those of the spec alone, its topics would be hidden from it; the spec's own hold as well."""
    topics = {"read": ["a"], "readPrefixes": ["a-"]}
    made = combined({"config": {}}, {"topics": {"readPrefixes": ["b-", "a-"], "write": ["x"]}}, topics)
    assert made["topics"] == {"read": ["a"], "readPrefixes": ["b-", "a-"], "write": ["x"]}
    assert "topics" not in combined({"config": {}}, {}, {})
    assert combined({"config": {}}, {}, topics)["topics"] == topics


def test_page_has_each_key_that_needs_no_other_driver() -> None:
    """The others are the rest."""
    page = (ROOT / "docs" / "operator.md").read_text(encoding="utf-8")
    table = page.split("\n## What a change does to the driver\n", 1)[1].split("\n\n| keys |", 1)[1].split("\n\n", 1)[0]
    told = {name for row in table.splitlines()[2:] for name in re.findall(r"`([\w.]+)`", row.split("|")[1])}
    assert told == {name for name, effect in EFFECTS.items() if effect is not Effect.HAND_OVER}
