"""Argo CD and Flux render the chart without a cluster, run no `helm test`, and compare what they rendered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.helm import ENVIRONMENTS, Resource, named, of_kind, render, revision, unfit

JOB: dict[str, Any] = {"jobs": {"doctor": True}}


def doctor(made: list[Resource]) -> Resource:
    """Return the only Job."""
    [found] = of_kind(made, "Job")
    return found


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_rendering_twice_gives_the_same(environment: str) -> None:
    """Otherwise a controller would see a change that nobody made, and apply it for ever."""
    assert render(environment, JOB) == render(environment, JOB)


def test_embedded_store_renders_the_same_with_a_secret_that_is_named() -> None:
    """Without one each rendering makes new keys, which is why values.yaml says to name it."""
    image = {"repository": "s3", "tag": "1"}

    def made(secret: str) -> list[Resource]:
        return render("dev", {"objectStorage": {"mode": "embedded", "embedded": {"image": image, "secret": secret}}})

    assert made("") != made("")
    assert made("store-keys") == made("store-keys")
    assert not of_kind(made("store-keys"), "Secret")


def test_doctor_is_a_job_that_runs_what_helm_test_runs(folder: Path) -> None:
    """It is off unless asked for; Argo CD runs it after a synchronisation, and others as soon as it is there."""
    assert not of_kind(render("dev"), "Job")
    made = render("dev", JOB)
    job, pod = doctor(made), named(made, "Pod", "t-tweets-doctor")
    assert job["spec"]["template"]["spec"] == pod["spec"]
    assert job["metadata"]["annotations"]["argocd.argoproj.io/hook"] == "PostSync"
    selected = named(made, "NetworkPolicy", "t-tweets-test")["spec"]["podSelector"]["matchLabels"]
    assert selected.items() <= job["spec"]["template"]["metadata"]["labels"].items()
    assert unfit(made, folder) == ""


def test_doctor_of_a_changed_pipeline_is_another_job() -> None:
    """A Job's spec is immutable; and a new configuration is to be checked again."""
    before = render("dev", JOB)
    after = render("dev", JOB | {"pipelines": {"tweets": {"config": {"batch": {"max_records": 7}}}}})
    assert revision(before) != revision(after)
    assert doctor(before)["metadata"]["name"] != doctor(after)["metadata"]["name"]


def test_pipeline_that_is_switched_off_has_no_doctor() -> None:
    """Its topics may be gone."""
    assert not of_kind(render("dev", JOB | {"pipelines": {"tweets": {"enabled": False}}}), "Job")
