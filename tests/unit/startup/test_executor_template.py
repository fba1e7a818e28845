"""The copy of the executors' pod template: which nodes it leaves out, for how long, and what it keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailrace.startup.executor_template import LEFT_OUT, SETTING, ExecutorTemplate, without

FIELD = {"key": "metadata.name", "operator": "NotIn", "values": ["lost"]}


def terms(template: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a template requires of a node."""
    required = template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    found: list[dict[str, Any]] = required["nodeSelectorTerms"]
    return found


@pytest.mark.parametrize("spec", [{}, {"affinity": None}, {"affinity": {"nodeAffinity": {}}}])
def test_template_without_wishes_leaves_only_the_node_out(spec: dict[str, Any]) -> None:
    """What else it says stays."""
    found = without({"kind": "Pod", "spec": {"containers": [{"name": "executor"}], **spec}}, ["lost"])
    assert terms(found) == [{"matchFields": [FIELD]}]
    assert (found["kind"], found["spec"]["containers"]) == ("Pod", [{"name": "executor"}])


def test_each_term_of_a_template_leaves_the_node_out() -> None:
    """A pod may go where any of them holds."""
    wishes = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": [each]}]} for each in ("a", "b")]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": wishes}}}
    given = {"spec": {"affinity": {**affinity, "podAntiAffinity": {"kept": True}}}}
    found = without(given, ["lost"])
    assert terms(found) == [{**each, "matchFields": [FIELD]} for each in wishes]
    assert found["spec"]["affinity"]["podAntiAffinity"] == {"kept": True}
    assert terms(given) == wishes


def test_node_is_left_out_for_a_while(tmp_path: Path) -> None:
    """It may be back; two nodes are left out by two conditions, as each may name only one."""
    (tmp_path / "executor.yaml").write_text("spec: {containers: []}\n")
    now = [0.0]
    one = ExecutorTemplate(tmp_path / "executor.yaml", tmp_path, lambda: now[0])
    one.leave_out("lost")
    now[0] = LEFT_OUT / 2
    one.leave_out("other")
    one.readmit()
    assert one.left_out == {"lost", "other"}
    [term] = terms(json.loads(one.file.read_text()))
    assert [each["values"] for each in term["matchFields"]] == [["lost"], ["other"]]
    now[0] = LEFT_OUT
    one.readmit()
    assert one.left_out == {"other"}
    one.readmit(every=True)
    assert json.loads(one.file.read_text()) == {"spec": {"containers": []}}


def test_template_that_spark_has_to_fetch_is_left_alone(tmp_path: Path) -> None:
    """It may be in an object store, or there may be none."""
    assert ExecutorTemplate.of({}) is None
    assert ExecutorTemplate.of({SETTING: "s3a://bucket/executor.yaml"}) is None
    (tmp_path / "executor.yaml").write_text("spec: {}\n")
    made = ExecutorTemplate.of({SETTING: str(tmp_path / "executor.yaml")})
    assert made is not None
    assert json.loads(made.file.read_text()) == {"spec": {}}
