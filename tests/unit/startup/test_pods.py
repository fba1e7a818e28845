"""The driver as a pod: its Spark settings, the executors that it deletes, and its error if none comes."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from support.helm import ROOT
from support.pod_api import api, cutting
from tailrace.config import Pipeline
from tailrace.driver.tasks import Tasks
from tailrace.errors import DriverPodUnknown, ExecutorsMissing
from tailrace.startup import warming
from tailrace.startup.pods import Executors, await_executors, settings

POD = {"POD_IP": "10.1.2.3", "POD_NAME": "copies-abc", "POD_NAMESPACE": "streams"}


def pipeline(**spark: str) -> Pipeline:
    """Return a pipeline whose executors are pods, unless its settings say otherwise."""
    chosen = {"spark.master": "k8s://https://kubernetes.default.svc"} | {
        f"spark.{name.replace('_', '.')}": value for name, value in spark.items()
    }
    return Pipeline.model_validate(
        {"pipeline": "copies", "source": {"topics": ["a"]}, "sink": {"topic": "b"}, "spark": chosen}
    )


def test_executors_reach_the_pod_and_belong_to_it() -> None:
    """They use its address and its name."""
    made = settings(pipeline(), POD)
    assert made["spark.driver.host"] == "10.1.2.3"
    assert made["spark.kubernetes.driver.pod.name"] == "copies-abc"
    assert made["spark.kubernetes.namespace"] == "streams"
    assert made["spark.kubernetes.executor.label.tailrace.dev/driver"] == "copies-abc"


def test_nothing_is_set_if_executors_are_not_pods() -> None:
    """The variables make no difference."""
    assert settings(pipeline(master="local[2]"), POD) == {}


@pytest.mark.parametrize("lacking", ["POD_IP", "POD_NAME"])
def test_a_driver_that_does_not_know_its_pod_is_refused(lacking: str) -> None:
    """The error comes before it requests executors that could not reach it, or that nothing would delete."""
    with pytest.raises(DriverPodUnknown, match=f"the variable {lacking} is not set"):
        settings(pipeline(), {name: value for name, value in POD.items() if name != lacking})


def test_an_address_in_the_pipeline_needs_no_variable() -> None:
    """A driver outside the cluster configures an address of its own."""
    made = settings(pipeline(driver_host="192.0.2.1"), {"POD_NAME": "copies-abc"})
    assert "spark.driver.host" not in made


def test_executors_of_an_earlier_driver_are_deleted(account: Path) -> None:
    """Only those of this pod and this pipeline are deleted."""
    with api({"GET": (200, {"items": [{}, {}]}), "DELETE": (200, {})}) as (url, asked):
        notice = Executors(url, "streams", "copies-abc", "5e55", account).sweep()
    assert notice == "deleted 2 executors left by an earlier driver of this pod"
    assert [method for method, _, _ in asked] == ["GET", "DELETE"]
    for _, path, authorization in asked:
        assert urlsplit(path).path == "/api/v1/namespaces/streams/pods"
        assert parse_qs(urlsplit(path).query) == {
            "labelSelector": ["tailrace.dev/driver=copies-abc,tailrace.dev/session=5e55"]
        }
        assert authorization == "Bearer t0ken"


def test_executors_of_another_pipeline_in_the_same_pod_are_left(account: Path) -> None:
    """A backfill that was started in a driver's pod deleted the executors of the driver, which ran on."""
    live = pipeline()
    backfill = live.model_copy(update={"pipeline": "copies-backfill-1a2b"})
    swept = []
    for one in (live, backfill, live):  # the last is the driver of a restarted container
        found = Executors.of(one, POD)
        assert found is not None
        with api({"GET": (200, {"items": [{}]}), "DELETE": (200, {})}) as (url, asked):
            replace(found, api=url, account=account).sweep()
        [selector] = {parse_qs(urlsplit(path).query)["labelSelector"][0] for _, path, _ in asked}
        prefix = "spark.kubernetes.executor.label."
        labels = {name.removeprefix(prefix): value for name, value in settings(one, POD).items() if prefix in name}
        assert selector == ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
        assert all(re.fullmatch("[a-z0-9-]{1,63}", value) for value in labels.values())
        swept.append(selector)
    assert swept[0] == swept[2] != swept[1]


def test_nothing_is_deleted_if_no_executors_are_left(account: Path) -> None:
    """Nothing is logged either."""
    with api({"GET": (200, {"items": []})}) as (url, asked):
        assert Executors(url, "streams", "copies-abc", "5e55", account).sweep() == ""
    assert len(asked) == 1


def test_a_driver_starts_without_permission_to_list_pods(account: Path) -> None:
    """Leftover executors take up room but are no reason to stop; the token is in no message."""
    with api({"GET": (403, {})}) as (url, _):
        notice = Executors(url, "streams", "copies-abc", "5e55", account).sweep()
    assert "403 Forbidden" in notice
    assert "t0ken" not in notice


def test_driver_starts_although_the_answer_about_pods_is_cut(account: Path) -> None:
    """As if it had been refused: the note says what came."""
    with cutting(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{") as url:
        notice = Executors(url, "streams", "copies-abc", "5e55", account).sweep()
    assert "could not look for executors" in notice
    assert "IncompleteRead" in notice


def test_missing_executors_are_an_error_with_the_reason(account: Path) -> None:
    """The reason is in Kubernetes' words."""
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff"}}}
    unplaced = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    items = [
        {"status": {"phase": "Pending", "containerStatuses": [waiting]}},
        {"status": {"phase": "Pending", "conditions": [unplaced]}},
    ]
    with api({"GET": (200, {"items": items})}) as (url, _):
        executors = Executors(url, "streams", "copies-abc", "5e55", account)
        with pytest.raises(ExecutorsMissing) as caught:
            await_executors(lambda: 0, threading.Event(), executors.why, limit=0)
    assert "Pending: 0/3 nodes are available; Pending: ImagePullBackOff" in caught.value.what
    assert "executors.patience" in caught.value.then


def test_the_first_executor_is_enough() -> None:
    """Spark uses the others when they come."""
    counts = iter([0, 1])
    await_executors(lambda: next(counts), threading.Event(), str, limit=60)
    assert next(counts, None) is None


def test_a_stop_ends_the_waiting() -> None:
    """The caller sees the stop for itself."""
    stopped = threading.Event()
    stopped.set()
    await_executors(lambda: 0, stopped, str, limit=0)


def test_a_driver_outside_a_pod_looks_for_no_executors() -> None:
    """There is no API server to ask."""
    assert Executors.of(pipeline(), {}) is None
    assert Executors.of(pipeline(master="local[2]"), POD) is None
    found = Executors.of(pipeline(), POD)
    assert found is not None
    assert (found.api, found.namespace, found.owner) == ("https://kubernetes.default.svc", "streams", "copies-abc")


def test_what_workers_unpickle_is_in_the_executors_image() -> None:
    """A standby on Kubernetes was never warm: its warming tasks came from a room that the image leaves out."""
    dockerfile = (ROOT / "images" / "executor" / "Dockerfile").read_text(encoding="utf-8")
    removed = re.findall(r"rm -rf /opt/tailrace/bin/tailrace /opt/tailrace/share ([a-z ]+)", dockerfile)[0].split()
    assert "startup" in removed
    for shipped in (warming.__dict__["hold"], warming.__dict__["drain"], Tasks):
        assert shipped.__module__.split(".")[1] not in removed
