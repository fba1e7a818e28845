"""Stateful pipelines that cannot work: refused before a driver that works is fenced, with advice that helps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from support.pipelines import Bench
from tailrace import errors
from tailrace.progress.ledger import Ledger

pytestmark = [pytest.mark.integration, pytest.mark.takes(15)]

MakeBench = Callable[..., Bench]

FUNCTIONS = """
    def by_id(frame):
        return frame.select("id").dropDuplicates(["id"])

    def by_both(frame):
        return frame.dropDuplicates(["id", "kind"]).select("id")

    def counted(frame):
        return frame.groupBy("id").count()
"""


@pytest.fixture
def one(bench: MakeBench) -> Bench:
    """Fill a source partition with ten records."""
    made = bench()
    made.write("keep.py", FUNCTIONS)
    made.send([b'{"id": %d, "kind": "a"}' % number for number in range(10)])
    return made


def sections(one: Bench, function: str = "by_id", folder: str = "state") -> dict[str, Any]:
    """Return the sections of a pipeline with this function and checkpoint."""
    return {
        "source": {"format": "json", "schema": "id long, kind string", "partitions": None},
        "process": {"function": f"keep.py:{function}"},
        "sink": {"format": "json"},
        "checkpoint": str(one.folder / folder),
    }


def ids(one: Bench) -> list[int]:
    """Return what the sink has, sorted."""
    return sorted(json.loads(value or b"")["id"] for value in one.values())


def test_function_that_spark_does_not_run_as_a_stream_fences_nobody(
    one: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark itself says so only when the query starts; by then the driver before would have ended."""
    taken: list[Ledger] = []
    monkeypatch.setattr(Ledger, "take", lambda self: taken.append(self))
    with pytest.raises(errors.FunctionInvalid, match=r"(?s)as a stream: .*watermark"):
        one.run(**sections(one, "counted"))
    assert taken == []


def test_state_of_another_function_is_refused_with_a_way_out(one: Bench) -> None:
    """Starting again, as it was advised, never helped; the function that wrote the state goes on."""
    one.run(**sections(one))
    one.send([b'{"id": 10, "kind": "a"}'])
    with pytest.raises(errors.CheckpointMismatch, match="not that of this function") as refused:
        one.run(**sections(one, "by_both"))
    assert "a new name and a new checkpoint" in refused.value.then
    one.run(**sections(one))
    assert ids(one) == list(range(11))


def test_lost_state_beside_a_log_that_is_there_is_refused_with_a_way_out(one: Bench) -> None:
    """A part of the folder was restored, say."""
    one.run(**sections(one))
    one.send([b'{"id": 10, "kind": "a"}'])
    shutil.move(one.folder / "state" / "state", one.folder / "away")
    with pytest.raises(errors.CheckpointMismatch, match="not that of this function"):
        one.run(**sections(one))
    shutil.rmtree(one.folder / "state" / "state", ignore_errors=True)
    shutil.move(one.folder / "away", one.folder / "state" / "state")
    one.run(**sections(one))
    assert ids(one) == list(range(11))


@pytest.mark.parametrize("folder", ["of a=b, ü%20(1)", "plain"])
def test_state_is_in_the_folder_that_the_pipeline_names(one: Bench, folder: str) -> None:
    """Hadoop takes an escaped letter for itself, and a volume that was mounted for the state stayed empty."""
    one.run(**sections(one, folder=folder))
    assert (one.folder / folder / "offsets" / "0").exists()
    one.send([b'{"id": 10, "kind": "a"}'])
    one.run(**sections(one, folder=folder))
    assert ids(one) == list(range(11))


@pytest.mark.parametrize("mounted", [False, True])
def test_state_that_an_earlier_version_put_beside_the_named_folder_is_found(one: Bench, mounted: bool) -> None:
    """It escaped the name; the named folder may be there, and empty."""
    one.run(**sections(one, folder="a%20b"))
    if mounted:
        (one.folder / "a b").mkdir()
    one.send([b'{"id": 0, "kind": "a"}', b'{"id": 10, "kind": "a"}'])
    one.run(**sections(one, folder="a b"))
    assert ids(one) == list(range(11))
    assert not (one.folder / "a b" / "metadata").exists()
