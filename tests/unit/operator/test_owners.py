"""What a driver needs has the driver's pods as owners, too, so that Kubernetes deletes it last."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace_operator import owners
from tailrace_operator.model import Key, Object, Resource

SPEC: dict[str, Any] = {"config": {}}


def resource(**more: Any) -> Resource:
    """Return a Pipeline."""
    return Resource(Key("ns", "p"), "uid", 1, SPEC | more)


def thing(kind: str, pipeline: Resource, topic: str = "", shared: tuple[str, ...] = ()) -> Object:
    """Return an object of a Pipeline, with its owners; others name the `shared` topics."""
    made: Object = {"kind": kind, "metadata": {"name": "p"}, "spec": {"topicName": topic}}
    if references := owners.of_pipeline(made, pipeline, shared):
        made["metadata"]["ownerReferences"] = references
    return made


@pytest.mark.parametrize("kind", owners.NEEDED)
def test_driver_keeps_what_it_needs_until_it_has_ended(kind: str) -> None:
    """Kubernetes deletes an object when the last of its owners is gone."""
    made = owners.kept_by(thing(kind, resource()), {"p-1": "a", "p-2": "b"})
    found = made["metadata"]["ownerReferences"]
    assert [(each["kind"], each["uid"]) for each in found] == [("Pipeline", "uid"), ("Pod", "a"), ("Pod", "b")]
    # Nothing but the Deployment holds up a deletion, and OpenShift asks for rights on what does.
    assert not any(each["blockOwnerDeletion"] for each in found)


def test_driver_itself_goes_first() -> None:
    """Its Deployment belongs to the Pipeline alone, and a deletion in the foreground waits for it."""
    made = owners.kept_by(thing("Deployment", resource()), {"p-1": "a"})
    [reference] = made["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["blockOwnerDeletion"]) == ("Pipeline", True)
    assert owners.kept([made], {"p-1": "a"}) == []


@pytest.mark.parametrize(
    ("policy", "topic", "goes"),
    [
        (None, "p.rejected", False),
        ("Retain", "p.rejected", False),
        ("Delete", "p.rejected", True),
        ("Delete", "tailrace.ledger", False),
        ("Delete", "shared.rejected", False),
    ],
)
def test_topic_is_kept_unless_the_spec_deletes_it(policy: str | None, topic: str, goes: bool) -> None:
    """Only the one that no other Pipeline shares, and not before the driver that writes there has ended."""
    made = thing("KafkaTopic", resource(**({"deletionPolicy": policy} if policy else {})), topic)
    found = owners.kept_by(made, {"p-1": "a"})["metadata"].get("ownerReferences", [])
    assert [each["kind"] for each in found] == (["Pipeline", "Pod"] if goes else [])


def test_topic_that_another_pipeline_names_is_kept() -> None:
    """It holds the other's records, too, whatever its name."""
    deleted = resource(deletionPolicy="Delete")
    assert "ownerReferences" in thing("KafkaTopic", deleted, "p.rejected", ("q.rejected",))["metadata"]
    assert "ownerReferences" not in thing("KafkaTopic", deleted, "p.rejected", ("p.rejected",))["metadata"]
