"""An upgrade changes what has changed: nothing that Kubernetes keeps as it is, and no broker for nothing."""

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
    """The chart at its next version, with the same images as before."""
    copy = tmp_path / "tailrace"
    shutil.copytree(CHART, copy)
    chart = yaml.safe_load((copy / "Chart.yaml").read_text())
    (copy / "Chart.yaml").write_text(yaml.safe_dump({**chart, "version": "9.9.9"}))
    return render(values={"objectStorage": EMBEDDED}, chart=copy)


def lasting(made: list[Resource]) -> Resource:
    """Of pods, but for those of `helm test`, which are made for each."""
    return {name: pod["metadata"] for name, pod in pods(made).items() if not name.endswith("-doctor")}


def test_another_version_of_the_chart_restarts_nothing(newer: list[Resource]) -> None:
    """Labels of pods, and those that Strimzi hands on to brokers, do not have it."""
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
def test_a_job_that_is_to_do_another_thing_is_another_job(change: dict[str, Any]) -> None:
    """What a Job does cannot be changed; an upgrade that tried would fail."""

    def job(values: dict[str, Any]) -> Resource:
        storage = EMBEDDED | {"embedded": EMBEDDED["embedded"] | values.get("objectStorage", {}).get("embedded", {})}
        [found] = of_kind(render(values={**values, "objectStorage": storage}), "Job")
        return found

    before, after = job({}), job(change)
    assert before["spec"] != after["spec"]
    assert before["metadata"]["name"] != after["metadata"]["name"]


def test_the_bucket_is_not_made_anew_for_nothing(newer: list[Resource]) -> None:
    """The same Job is the same object."""
    [before] = of_kind(render(values={"objectStorage": EMBEDDED}), "Job")
    [after] = of_kind(newer, "Job")
    assert (before["metadata"]["name"], before["spec"]) == (after["metadata"]["name"], after["spec"])
