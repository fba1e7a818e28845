"""The cache: what the watches report while a list is asked for is newer than the list."""

from __future__ import annotations

import pytest

from tailrace.errors import InvariantBroken
from tailrace_operator.cache import Cache
from tailrace_operator.model import Key, Object

KEY = Key("ns", "p")


def pod(name: str, version: str = "5", uid: str = "") -> Object:
    """Return a driver's pod."""
    labels = {"tailrace.dev/pipeline": "p", "tailrace.dev/release": "p", "tailrace.dev/component": "driver"}
    about = {"name": name, "namespace": "ns", "uid": uid or name, "resourceVersion": version, "labels": labels}
    return {"metadata": about, "status": {}}


def cache_of(*names: str) -> Cache:
    """Return a cache that holds these pods."""
    cache = Cache()
    cache.pipeline({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}}, gone=False)
    for name in names:
        cache.put("Pod", pod(name))
    return cache


def held(cache: Cache) -> list[str]:
    """Return the uids of the pods that it holds, with their versions."""
    found = cache.of(KEY)
    assert found is not None
    return sorted("{uid} {resourceVersion}".format(**each["metadata"]) for each in found.drivers)


@pytest.mark.parametrize(
    ("before", "listed", "reports", "after", "agree"),
    [
        pytest.param(["ended"], ["ended"], [("ended", "", True)], [], False, id="deleted"),
        pytest.param([], [], [("new", "", False)], ["new 7"], False, id="added"),
        pytest.param([], ["short"], [("short", "", False), ("short", "", True)], [], False, id="added and deleted"),
        pytest.param([], ["short"], [("short", "", True)], [], False, id="deleted and never held"),
        pytest.param(["p"], ["p"], [("p", "", False)], ["p 7"], True, id="changed"),
        pytest.param(["p"], ["p"], [("p", "", True), ("p", "again", False)], ["again 7"], True, id="made again"),
        pytest.param(["p"], [], [("p", "again", False)], ["again 7"], False, id="made again and not listed"),
        pytest.param(["p"], [], [("other", "", False)], ["other 7"], False, id="deleted without a report"),
        pytest.param([], ["p"], [("other", "", False)], ["other 7", "p 5"], False, id="added without a report"),
    ],
)
def test_report_prevails_over_a_list_that_was_asked_for_before(
    before: list[str], listed: list[str], reports: list[tuple[str, str, bool]], after: list[str], agree: bool
) -> None:
    """A deleted driver that comes back keeps an operation waiting; for one that goes missing no operation waits."""
    cache = cache_of(*before)

    def ask() -> list[Object]:
        answer = [pod(name) for name in listed]
        for name, uid, gone in reports:
            cache.put("Pod", pod(name, "7", uid), gone=gone)
        return answer

    assert cache.replace("Pod", KEY, ask) is agree
    assert held(cache) == after


def test_list_prevails_over_a_late_report_of_an_older_state() -> None:
    """Such a report says nothing of what happened since."""
    cache = cache_of("p")

    def ask() -> list[Object]:
        cache.put("Pod", pod("p", "4"))
        return []

    assert cache.replace("Pod", KEY, ask)
    assert held(cache) == []


def test_list_that_fails_changes_nothing() -> None:
    """The next one is taken as if it had been the first."""
    cache = cache_of("p")

    def fail() -> list[Object]:
        cache.put("Pod", pod("q"))
        raise OSError("the server is away")

    with pytest.raises(OSError, match="away"):
        cache.replace("Pod", KEY, fail)
    assert held(cache) == ["p 5", "q 5"]
    assert cache.replace("Pod", KEY, list)
    assert held(cache) == []


def test_second_list_of_the_same_objects_at_a_time_is_refused() -> None:
    """The first one would miss what is reported during the second."""
    cache = cache_of()

    def ask() -> list[Object]:
        cache.replace("Pod", KEY, list)
        return []

    with pytest.raises(InvariantBroken, match="two lists"):
        cache.replace("Pod", KEY, ask)


def test_pipeline_that_was_made_again_is_not_dropped_with_the_one_that_is_gone() -> None:
    """It would not be seen until its next change."""
    cache = cache_of()
    cache.pipeline({"metadata": {"name": "p", "namespace": "ns", "uid": "again"}}, gone=False)
    cache.drop(KEY, "u")
    assert cache.body(KEY) is not None
    cache.drop(KEY, "again")
    assert cache.body(KEY) is None
