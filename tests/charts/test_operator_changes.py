"""What the table of changes says is what the chart renders: a live key leaves the driver's pod template as it is."""

from __future__ import annotations

from typing import Any

import pytest

from support.helm import CHART, STRIMZI, tool
from tailrace_operator import tell
from tailrace_operator.build import Builder, Built
from tailrace_operator.changes import EFFECTS, Effect
from tailrace_operator.model import Key, Resource, Revision, Seen
from tailrace_operator.observe import rollout
from tailrace_operator.platform import Platform
from tailrace_operator.revisions import wanted

KEY = Key("streams", "orders")
SHARED: dict[str, Any] = {"kafka": {"strimzi": {"create": False, "cluster": "main"}, "existingTopics": ["a", "b", "c"]}}
SPEC: dict[str, Any] = {"config": {"source": {"topics": ["a"]}, "sink": {"topic": "b"}}}
RESOURCES = {"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}
CHANGES: dict[str, Any] = {
    "topics": {"read": ["c"]},
    "executors.instances": 7,
    "disruption": {"executorsMayMiss": 3},
    "serviceAccount": {"annotations": {"role": "other"}},
    "revisions": 9,
    "progressDeadlineSeconds": 77,
    "upgrade": "drain",
    "image": {"driver": {"tag": "other"}},
    "files": {"f.py": "x = 1"},
    "secretEnv": {"A": {"secret": "s", "key": "k"}},
    "env": {"A": "1"},
    "config.source": {"topics": ["a", "c"]},
    "config.process": {"partitions": 3},
    "config.sink": {"topic": "c"},
    "config.batch": {"max_records": 7},
    "config.rejected": "c",
    "config.kafka": {"patience": "7s"},
    "config.ledger": {"lease": 8},
    "config.offsets": {"from": "before"},
    "config.executors": {"patience": "77s"},
    "config.metrics": {"stalled": 777},
    "config.spark": {"spark.sql.shuffle.partitions": "3"},
    "driver.memory": "700m",
    "driver.resources": RESOURCES,
    "driver.scratch": "7Gi",
    "driver.editable": "/opt/pipeline",
    "driver.pod": {"labels": {"a": "b"}},
    "driver.standbys": 1,
    "executors.cores": 7,
    "executors.memory": "700m",
    "executors.memoryOverhead": "700m",
    "executors.cpu": {"request": "7"},
    "executors.scratch": "7Gi",
    "executors.pod": {"annotations": {"a": "b"}},
    "graceSeconds": 77,
    "successorSeconds": 77,
    "nodeLossSeconds": 77,
    "restartOnRenewal": False,
    "podLabels": {"a": "b"},
    "podAnnotations": {"a": "b"},
    "nodeSelector": {"a": "b"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
    "priorityClassName": {"driver": "high"},
}
# A checkpoint on an object store needs a platform with one.
NOT_RENDERED = {"config.checkpoint"}
BUILDER = Builder(Platform(CHART, SHARED), str(tool("helm")), lambda: (STRIMZI,))


def with_change(key: str) -> dict[str, Any]:
    """Return the spec with one key changed."""
    outer, _, inner = key.partition(".")
    if not inner:
        return {**SPEC, outer: CHANGES[key]}
    return {**SPEC, outer: {**SPEC.get(outer, {}), inner: CHANGES[key]}}


def build(spec: dict[str, Any]) -> tuple[Resource, Revision, Built]:
    """Return a Pipeline, its revision, and what it is built to."""
    resource = Resource(KEY, "uid", 1, spec)
    revision = wanted(resource, ())
    return resource, revision, BUILDER.build(resource, revision, running=True)


def test_each_key_that_the_chart_renders_is_tried() -> None:
    """A key without a change here would be classified without proof."""
    assert set(CHANGES) | NOT_RENDERED == {name for name, effect in EFFECTS.items() if effect is not Effect.OPERATOR}


@pytest.mark.parametrize("key", sorted(CHANGES))
def test_driver_is_replaced_by_no_other_change(key: str) -> None:
    """A live change leaves its pod template as it is, and changes something else."""
    _, old, before = build(SPEC)
    _, new, after = build(with_change(key))
    assert (before.template != after.template) is (EFFECTS[key] is Effect.HAND_OVER)
    assert (old.name != new.name) is (EFFECTS[key] is Effect.HAND_OVER)
    if key != "revisions":  # that is what the operator itself keeps
        assert before.digest != after.digest


@pytest.mark.parametrize(
    "shared",
    [
        {"monitoring": {"enabled": True, "labels": {"a": "b"}, "interval": "7s"}},
        {"http": {"from": [{"podSelector": {}}]}},
        {"networkPolicy": {"dnsPorts": [53, 5353]}},
    ],
)
def test_monitoring_of_the_platform_replaces_no_driver(shared: dict[str, Any]) -> None:
    """Scrapes, alerts, dashboards and policies are objects beside it."""
    _, _, before = build(SPEC)
    apis = (STRIMZI, "monitoring.coreos.com/v1")
    resource, revision, _ = build(SPEC)
    after = Builder(Platform(CHART, SHARED | shared), str(tool("helm")), lambda: apis).build(
        resource, revision, running=True
    )
    assert before.digest != after.digest
    assert before.template == after.template


def test_event_says_why_a_driver_is_replaced_and_why_not() -> None:
    """With the names of the keys; a change of the platform is named as such."""
    resource, old, before = build(SPEC)
    body = before.deployment
    body["metadata"]["generation"] = 1
    seen = Seen(resource, (old,), rollout(body))
    for spec, text in (
        (with_change("image"), "hand-over because: image"),
        (with_change("upgrade"), "restart because: upgrade"),
        (with_change("executors.instances"), "without another driver: executors.instances"),
    ):
        changed, new, after = build(spec)
        now = Seen(changed, (old, new), seen.rollout)
        told = tell.news(now, new, after, "")
        assert told is not None
        assert text in told.message
        made = tell.event(changed, told)
        assert (made["involvedObject"]["uid"], made["type"]) == ("uid", "Normal")
    other = Builder(
        Platform(CHART, SHARED | {"images": {"pullPolicy": "Always"}}), str(tool("helm")), lambda: (STRIMZI,)
    )
    after = other.build(resource, old, running=True)
    assert tell.because(seen, old, after) == "the operator's platform or version"
    assert tell.news(seen, old, before, "") is None
    rolled = tell.news(Seen(changed, (old, new), rollout(body)), old, after, "Requested: slow")
    assert rolled is not None
    assert (rolled.warning, "slow" in rolled.message) == (True, True)
