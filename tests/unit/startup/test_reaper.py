"""The reaper: which executors' pods it removes, and when, against an API server with prepared answers."""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.pod_api import Answer, api, cutting
from tailrace.startup.executor_template import ExecutorTemplate
from tailrace.startup.pods import Executors
from tailrace.startup.reaper import Reaper

NO_ONE: frozenset[str] = frozenset()
LOST = "its node does not answer"


def pod(name: str, number: int, *, ends: float | None = None, phase: str = "Running", node: str = "") -> dict[str, Any]:
    """Return an executor's pod; with `ends`, it should have ended in so many seconds."""
    metadata: dict[str, Any] = {"name": name, "labels": {"spark-exec-id": str(number)}}
    if ends is not None:
        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=ends)
        metadata["deletionTimestamp"] = until.isoformat(timespec="seconds").replace("+00:00", "Z")
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}, "status": {"phase": phase}}


def ticking(*moments: float) -> Iterator[float]:
    """Return these moments, the last one for ever."""
    yield from moments
    while True:
        yield moments[-1]


def deleted(asked: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return the paths that were deleted."""
    return [path for method, path, _ in asked if method == "DELETE"]


def test_executor_whose_node_kept_it_beyond_its_time_is_removed(account: Path) -> None:
    """Spark counts it as running until it is gone, and made no other: the batch waited for the node to come back."""
    pods = [pod("works", 1), pod("ends", 2, ends=20), pod("lost", 3, ends=-30)]
    clock = ticking(0, 6)
    with api({"GET": (200, {"items": pods}), "DELETE": (200, {})}) as (url, asked):
        executors = Executors(url, "streams", "copies-abc", "5e55", account)
        assert Reaper(executors, lambda: NO_ONE, lambda: next(clock)).look() == {"lost": LOST}
    assert deleted(asked) == ["/api/v1/namespaces/streams/pods/lost?gracePeriodSeconds=0"]


def test_executor_that_spark_gave_up_is_removed_before_kubernetes_notices(account: Path) -> None:
    """Its pod looks healthy for a minute after its node was lost."""
    registered = [frozenset({"1", "2"}), frozenset({"1"}), frozenset({"1"}), frozenset({"1"})]
    clock = ticking(0, 1, 2, 3, 5.5)
    pods = [pod("works", 1), pod("lost", 2)]
    with api({"GET": (200, {"items": pods}), "DELETE": (200, {})}) as (url, asked):
        executors = Executors(url, "streams", "copies-abc", "5e55", account)
        reaper = Reaper(executors, lambda: registered.pop(0), lambda: next(clock))
        assert [reaper.look() for _ in range(4)] == [{}, {}, {}, {"lost": LOST}]
    assert deleted(asked) == ["/api/v1/namespaces/streams/pods/lost?gracePeriodSeconds=0"]


def test_executor_that_ended_after_it_was_given_up_is_left(account: Path) -> None:
    """Fewer executors were wanted, and it stopped when Spark told it to."""
    registered = [frozenset({"2"}), NO_ONE, NO_ONE]
    clock = ticking(0, 1, 2, 6)
    with api({"GET": (200, {"items": [pod("done", 2, phase="Succeeded")]}), "DELETE": (200, {})}) as (url, asked):
        executors = Executors(url, "streams", "copies-abc", "5e55", account)
        reaper = Reaper(executors, lambda: registered.pop(0), lambda: next(clock))
        assert [reaper.look() for _ in range(3)] == [{}, {}, {}]
    assert deleted(asked) == []


def test_quiet_driver_seldom_asks_the_api(account: Path) -> None:
    """A hundred pipelines would otherwise be a hundred requests a second."""
    clock = ticking(0, 1, 2, 3, 4, 5.5)
    with api({"GET": (200, {"items": []})}) as (url, asked):
        executors = Executors(url, "streams", "copies-abc", "5e55", account)
        reaper = Reaper(executors, lambda: frozenset({"1"}), lambda: next(clock))
        for _ in range(5):
            reaper.look()
    assert len(asked) == 1


def test_reaping_survives_an_api_that_fails(account: Path) -> None:
    """It asks again, reports each executor, and ends when the driver stops."""
    stopped, notes = threading.Event(), list[str]()

    def heard(text: str) -> None:
        notes.append(text)
        stopped.set()

    lost = pod("lost", 1, ends=-30)
    answers: dict[str, Answer | Sequence[Answer]] = {"GET": [(503, {}), (200, {"items": [lost]})], "DELETE": (200, {})}
    with api(answers) as (url, _), pytest.MonkeyPatch.context() as patch:
        patch.setattr("tailrace.startup.reaper._LOOK", 0.01)
        patch.setattr("tailrace.startup.reaper._SWEEP_EVERY", 0.0)
        Reaper(Executors(url, "streams", "copies-abc", "5e55", account), lambda: NO_ONE).run(stopped, heard)
    assert notes == ["removed the executor lost: its node does not answer"]


CUT = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
    b"of another protocol\r\n\r\n",
    b"",
]


def test_reaping_survives_answers_that_are_cut(account: Path) -> None:
    """An API server that restarts ends its connections in the middle of an answer."""
    stopped, notes = threading.Event(), list[str]()

    def heard(text: str) -> None:
        notes.append(text)
        stopped.set()

    lost = json.dumps({"items": [pod("lost", 1, ends=-30)]}).encode()
    whole = [b"HTTP/1.0 200 OK\r\n\r\n" + body for body in (lost, b"{}")]
    with cutting(*CUT, *whole) as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr("tailrace.startup.reaper._LOOK", 0.01)
        patch.setattr("tailrace.startup.reaper._SWEEP_EVERY", 0.0)
        Reaper(Executors(url, "streams", "copies-abc", "5e55", account), lambda: NO_ONE).run(stopped, heard)
    assert notes == ["removed the executor lost: its node does not answer"]


def nowhere(name: str, number: int) -> dict[str, Any]:
    """Return an executor's pod for which the scheduler finds no node."""
    found = pod(name, number, phase="Pending")
    found["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    return found


def template(folder: Path, clock: Iterator[float]) -> ExecutorTemplate:
    """Return a template that requires nothing of a node."""
    original = folder / "executor.yaml"
    original.write_text("spec: {containers: [{name: executor}]}\n")
    return ExecutorTemplate(original, folder, lambda: next(clock))


def test_new_executor_is_kept_from_the_node_of_one_that_was_given_up(account: Path, tmp_path: Path) -> None:
    """The scheduler prefers that node, which looks empty, and Kubernetes takes a minute to see that it is gone."""
    registered = [frozenset({"1"}), NO_ONE, NO_ONE]
    clock = ticking(0, 1, 2, 6, 7)
    one = template(tmp_path, ticking(0))
    with api({"GET": (200, {"items": [pod("lost", 1, node="node-3")]}), "DELETE": (200, {})}) as (url, _):
        executors = Executors(url, "streams", "copies-abc", "5e55", account)
        reaper = Reaper(executors, lambda: registered.pop(0), lambda: next(clock), one)
        assert [reaper.look() for _ in range(3)] == [{}, {}, {"lost": LOST}]
    assert one.left_out == {"node-3"}
    assert '"values": ["node-3"]' in one.file.read_text()


def test_executor_that_finds_no_other_node_may_use_the_one_that_was_left_out(account: Path, tmp_path: Path) -> None:
    """A small cluster has no other; its node may answer again."""
    one = template(tmp_path, ticking(0))
    one.leave_out("node-3")
    clock = ticking(0, 6, 12)
    with api({"GET": (200, {"items": [nowhere("waits", 2)]}), "DELETE": (200, {})}) as (url, asked):
        executors = Executors(url, "streams", "copies-abc", "5e55", account)
        reaper = Reaper(executors, lambda: NO_ONE, lambda: next(clock), one)
        assert list(reaper.look()) == ["waits"]
        assert reaper.look() == {}  # it waits for a node like any other pod
    assert deleted(asked) == ["/api/v1/namespaces/streams/pods/waits?gracePeriodSeconds=0"]
    assert "NotIn" not in one.file.read_text()
