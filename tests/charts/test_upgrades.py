"""An upgrade touches only what has changed: it edits no immutable object, and restarts no broker without need."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.helm import CHART, Resource, named, of_kind, pods, render

EMBEDDED = {"mode": "embedded", "embedded": {"image": {"repository": "s3", "tag": "1"}}}


@pytest.fixture
def newer(tmp_path: Path) -> list[Resource]:
    """Render the chart's next version with the same images."""
    copy = tmp_path / "tailrace"
    shutil.copytree(CHART, copy)
    chart = yaml.safe_load((copy / "Chart.yaml").read_text())
    (copy / "Chart.yaml").write_text(yaml.safe_dump({**chart, "version": "9.9.9"}))
    return render(values={"objectStorage": EMBEDDED}, chart=copy)


def lasting(made: list[Resource]) -> Resource:
    """Return the metadata of all pods but those of `helm test`, which are created for each run."""
    return {name: pod["metadata"] for name, pod in pods(made).items() if not name.endswith("-doctor")}


def test_new_chart_version_restarts_nothing(newer: list[Resource]) -> None:
    """It is not in the labels of pods, nor in those that Strimzi passes on to brokers."""
    before = render(values={"objectStorage": EMBEDDED})
    assert lasting(newer) == lasting(before)
    for kind in ("Kafka", "KafkaNodePool"):
        assert of_kind(newer, kind) == of_kind(before, kind)
    assert named(newer, "Service", "t-tweets") != named(before, "Service", "t-tweets")


@pytest.mark.parametrize(
    "change",
    [
        {"commonLabels": {"team": "a"}},
        {"images": {"pullPolicy": "Always"}},
        {"images": {"pullSecrets": ["registry"]}},
        {"podSecurity": {"runAsUser": 2000}},
        {"images": {"driver": {"tag": "other"}}},
        {"objectStorage": {"embedded": {"bucket": "another"}}},
        {"jobs": {"resources": {"requests": {"cpu": "1"}}}},
    ],
)
def test_changed_job_gets_a_new_name(change: dict[str, Any]) -> None:
    """A Job's spec is immutable; an upgrade that edits it would fail."""

    def job(values: dict[str, Any]) -> Resource:
        storage = EMBEDDED | {"embedded": EMBEDDED["embedded"] | values.get("objectStorage", {}).get("embedded", {})}
        [found] = of_kind(render(values={**values, "objectStorage": storage}), "Job")
        return found

    before, after = job({}), job(change)
    assert before["spec"] != after["spec"]
    assert before["metadata"]["name"] != after["metadata"]["name"]


def test_unchanged_bucket_job_is_not_repeated(newer: list[Resource]) -> None:
    """The same spec keeps the same name."""
    [before] = of_kind(render(values={"objectStorage": EMBEDDED}), "Job")
    [after] = of_kind(newer, "Job")
    assert (before["metadata"]["name"], before["spec"]) == (after["metadata"]["name"], after["spec"])
