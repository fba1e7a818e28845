"""A driver whose pod is to end works on until its successor is ready, and does not wait for one that will not come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.pod_api import Answer, api
from tailrace.startup.api_server import Pods
from tailrace.startup.successor import Others, await_successor, resign

OWN = "copies-old"
SELECTOR = "tailrace.dev/pipeline=copies"


def pod(name: str, ready: bool = False, ending: bool = False) -> dict[str, Any]:
    """Return a pod as the API lists it."""
    metadata = {"name": name} | ({"deletionTimestamp": "2026-11-24T10:00:00Z"} if ending else {})
    return {"metadata": metadata, "status": {"conditions": [{"type": "Ready", "status": str(ready)}]}}


def listed(*pods: dict[str, Any]) -> Answer:
    """Return the answer that lists them, with the driver's own pod."""
    return 200, {"items": [pod(OWN, ready=True, ending=True), *pods]}


@pytest.mark.parametrize(
    ("others", "ready", "coming"),
    [
        ([], (), ()),
        ([pod("copies-new")], (), ("copies-new",)),
        ([pod("copies-new", ready=True)], ("copies-new",), ()),
        ([pod("copies-gone", ready=True, ending=True)], (), ()),
        ([{"metadata": {"name": "copies-new"}}], (), ("copies-new",)),
    ],
    ids=["none", "starting", "ready", "ending", "without a status"],
)
def test_only_another_pod_that_stays_is_a_successor(
    others: list[dict[str, Any]], ready: tuple[str, ...], coming: tuple[str, ...]
) -> None:
    """The driver's own pod is not one, although it is ready."""
    assert Others.of([pod(OWN, ready=True), *others], OWN) == Others(ready, coming)


def test_driver_works_on_until_its_successor_is_ready(account: Path) -> None:
    """Its pod is created, starts, and is ready at last; a failed request in between changes nothing."""
    answers = [listed(), listed(pod("copies-new")), (503, {}), listed(pod("copies-new", ready=True))]
    with api({"GET": answers}) as (url, asked):
        found = await_successor(Pods("streams", url, account), SELECTOR, OWN, 60, look=0.01)
    assert found == "copies-new is ready"
    assert len(asked) == len(answers)


@pytest.mark.parametrize("answer", [listed(), (403, {"reason": "Forbidden"})], ids=["removed", "forbidden"])
def test_driver_does_not_wait_for_a_successor_that_nobody_creates(account: Path, answer: Answer) -> None:
    """As when the release is uninstalled, or the API refuses to answer."""
    with api({"GET": answer}) as (url, _):
        found = await_successor(Pods("streams", url, account), SELECTOR, OWN, 60, appears=0.05, look=0.01)
    assert found.startswith("no other driver's pod exists")
    assert ("403 Forbidden" in found) is (answer[0] == 403)


def test_driver_does_not_wait_for_a_successor_longer_than_it_may(account: Path) -> None:
    """The node is to be drained, with or without one."""
    with api({"GET": listed(pod("copies-new"))}) as (url, _):
        found = await_successor(Pods("streams", url, account), SELECTOR, OWN, 0.05, look=0.01)
    assert found == "copies-new is not ready after 0 s"


def test_driver_with_a_renewed_certificate_has_its_pod_replaced(account: Path) -> None:
    """It deletes its own pod, and no other; it is then stopped as any pod is."""
    reasons: list[str] = []
    with api({"DELETE": (200, {})}) as (url, asked):
        resign(Pods("streams", url, account), OWN, reasons.append, "user.crt was renewed")
    assert [(method, path) for method, path, _ in asked] == [("DELETE", f"/api/v1/namespaces/streams/pods/{OWN}")]
    assert reasons == []


def test_driver_whose_pod_cannot_be_replaced_stops(account: Path) -> None:
    """Outside a pod, or without the right to delete it; with its old certificate it would be refused soon."""
    reasons: list[str] = []
    with api({"DELETE": (403, {})}) as (url, _):
        resign(Pods("streams", url, account), OWN, reasons.append, "user.crt was renewed")
    resign(None, "", reasons.append, "user.crt was renewed")
    assert reasons == [
        "user.crt was renewed, and its pod could not be replaced: 403 Forbidden",
        "user.crt was renewed",
    ]


def test_nothing_is_deleted_without_labels_or_a_name(account: Path) -> None:
    """An empty selector would select every pod of the namespace."""
    with api({"DELETE": (200, {})}) as (url, asked), pytest.raises(ValueError, match="neither labels nor a name"):
        Pods("streams", url, account).delete()
    assert asked == []
