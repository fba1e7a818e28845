"""The driver as a pod: what Spark is told, which executors it deletes, and what it says when none comes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tailrace.config import Pipeline
from tailrace.errors import DriverPodUnknown, ExecutorsMissing
from tailrace.startup.pods import Executors, await_executors, settings

POD = {"POD_IP": "10.1.2.3", "POD_NAME": "copies-abc", "POD_NAMESPACE": "streams"}


def pipeline(**spark: str) -> Pipeline:
    """A pipeline whose executors are pods, if it does not say otherwise."""
    told = {"spark.master": "k8s://https://kubernetes.default.svc"} | {
        f"spark.{name.replace('_', '.')}": value for name, value in spark.items()
    }
    return Pipeline.model_validate(
        {"pipeline": "copies", "source": {"topics": ["a"]}, "sink": {"topic": "b"}, "spark": told}
    )


def test_executors_reach_the_pod_and_belong_to_it() -> None:
    """By its address, and by its name."""
    made = settings(pipeline(), POD)
    assert made["spark.driver.host"] == "10.1.2.3"
    assert made["spark.kubernetes.driver.pod.name"] == "copies-abc"
    assert made["spark.kubernetes.namespace"] == "streams"
    assert made["spark.kubernetes.executor.label.tailrace.dev/driver"] == "copies-abc"


def test_nothing_is_told_where_executors_are_no_pods() -> None:
    """Whatever the variables say."""
    assert settings(pipeline(master="local[2]"), POD) == {}


@pytest.mark.parametrize("lacking", ["POD_IP", "POD_NAME"])
def test_a_driver_that_does_not_know_its_pod_is_refused(lacking: str) -> None:
    """Before it asks for executors that could not reach it, or that nobody would delete."""
    with pytest.raises(DriverPodUnknown, match=f"the variable {lacking} is not set"):
        settings(pipeline(), {name: value for name, value in POD.items() if name != lacking})


def test_what_the_pipeline_says_needs_no_variable() -> None:
    """A driver outside the cluster names an address of its own."""
    made = settings(pipeline(driver_host="192.0.2.1"), {"POD_NAME": "copies-abc"})
    assert "spark.driver.host" not in made


@contextmanager
def api(answers: dict[str, tuple[int, Any]]) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """An API server that answers so to GET and DELETE, and what it was asked."""
    asked: list[tuple[str, str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            asked.append((self.command, self.path, self.headers["Authorization"]))
            status, body = answers[self.command]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        do_GET = do_DELETE = answer  # noqa: N815 - the base class names them

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """What a kubelet mounts for a service account."""
    (tmp_path / "token").write_text("t0ken\n")
    return tmp_path


def test_executors_of_an_earlier_driver_are_deleted(account: Path) -> None:
    """Those of this pod alone."""
    with api({"GET": (200, {"items": [{}, {}]}), "DELETE": (200, {})}) as (url, asked):
        told = Executors(url, "streams", "copies-abc", account).sweep()
    assert told == "2 executors that an earlier driver of this pod has left are deleted"
    assert [method for method, _, _ in asked] == ["GET", "DELETE"]
    for _, path, authorization in asked:
        assert urlsplit(path).path == "/api/v1/namespaces/streams/pods"
        assert parse_qs(urlsplit(path).query) == {"labelSelector": ["tailrace.dev/driver=copies-abc"]}
        assert authorization == "Bearer t0ken"


def test_where_none_are_left_nothing_is_deleted(account: Path) -> None:
    """And nothing is said."""
    with api({"GET": (200, {"items": []})}) as (url, asked):
        assert Executors(url, "streams", "copies-abc", account).sweep() == ""
    assert len(asked) == 1


def test_a_driver_starts_where_it_may_not_look(account: Path) -> None:
    """What is left over costs room, and is no reason to stand still; the token is in no message."""
    with api({"GET": (403, {})}) as (url, _):
        told = Executors(url, "streams", "copies-abc", account).sweep()
    assert "403 Forbidden" in told
    assert "t0ken" not in told


def test_executors_that_do_not_come_are_an_error_that_says_why(account: Path) -> None:
    """In Kubernetes' words."""
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff"}}}
    unplaced = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    items = [
        {"status": {"phase": "Pending", "containerStatuses": [waiting]}},
        {"status": {"phase": "Pending", "conditions": [unplaced]}},
    ]
    with api({"GET": (200, {"items": items})}) as (url, _):
        executors = Executors(url, "streams", "copies-abc", account)
        with pytest.raises(ExecutorsMissing) as caught:
            await_executors(lambda: 0, threading.Event(), executors.why, limit=0)
    assert "Pending: 0/3 nodes are available; Pending: ImagePullBackOff" in caught.value.what


def test_the_first_executor_is_enough() -> None:
    """Spark takes the others when they come."""
    counts = iter([0, 1])
    await_executors(lambda: next(counts), threading.Event(), str, limit=60)
    assert next(counts, None) is None


def test_a_stop_ends_the_waiting() -> None:
    """What follows sees the stop for itself."""
    stopped = threading.Event()
    stopped.set()
    await_executors(lambda: 0, stopped, str, limit=0)


def test_a_driver_that_is_no_pod_looks_for_no_executors() -> None:
    """There is nobody to ask."""
    assert Executors.of(pipeline(), {}) is None
    assert Executors.of(pipeline(master="local[2]"), POD) is None
    assert Executors.of(pipeline(), POD) == Executors("https://kubernetes.default.svc", "streams", "copies-abc")
