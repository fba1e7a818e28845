"""Crash points: declared as data, each in one place, and inert unless requested."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tailrace import crash_points
from tailrace.config.file import load
from tailrace.crash_points import DRIVER, GATEWAY, READER, WORKER, Crash, Point, Victim

DIES = -int(signal.SIGKILL)


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, which may die."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


AT = """
    from tailrace import crash_points
    from tailrace.crash_points import Point

    for batch in range(3):
        crash_points.at(Point.COMMIT_ACKNOWLEDGED, batch, 1)
    print("alive")
"""


def test_crash_points_are_inert_without_the_variable() -> None:
    """Nothing changes at a point, for the batches that pass one, or in a producer's options."""
    assert run(AT).stdout == "alive\n"
    batches = iter([1, 2])
    assert crash_points.halved(Point.SENT_IN_PART, batches, 1, 1) is batches
    assert crash_points.Ear(Point.COMMIT_SENT).options == {}


def test_a_process_dies_at_its_point_and_only_once(tmp_path: Path) -> None:
    """The second attempt gets through."""
    variables = crash_points.crashes(tmp_path, Crash(Point.COMMIT_ACKNOWLEDGED, batch=1, partition=1))
    assert run(AT, **variables).returncode == DIES
    [event] = crash_points.happened(tmp_path)
    assert (event["at"], event["batch"], event["partition"], event["how"]) == ("commit_acknowledged", 1, 1, "there")
    assert run(AT, **variables).stdout == "alive\n"


def test_a_crash_may_happen_several_times(tmp_path: Path) -> None:
    """A replay can be made to die as well."""
    variables = crash_points.crashes(tmp_path, Crash(Point.COMMIT_ACKNOWLEDGED, times=2))
    assert [run(AT, **variables).returncode for _ in range(3)] == [DIES, DIES, 0]


@pytest.mark.parametrize(
    "other",
    [
        Crash(Point.COMMIT_SENT),
        Crash(Point.COMMIT_ACKNOWLEDGED, batch=7),
        Crash(Point.COMMIT_ACKNOWLEDGED, partition=0),
    ],
)
def test_a_crash_for_another_place_does_not_strike(other: Crash, tmp_path: Path) -> None:
    """The step, batch and sink partition must all match."""
    assert run(AT, **crash_points.crashes(tmp_path, other)).stdout == "alive\n"


def test_a_crash_in_mid_batch_comes_after_half_of_the_first_rows(tmp_path: Path) -> None:
    """What should have left the process by then has left it."""
    code = """
        import sys
        import pyarrow as pa
        from tailrace import crash_points
        from tailrace.crash_points import Point

        rows = pa.RecordBatch.from_pydict({"n": list(range(10))})
        gone = lambda: (sys.stdout.write("flushed "), sys.stdout.flush())
        for each in crash_points.halved(Point.ROWS_IN_PART, iter([rows, rows]), 4, 0, gone):
            sys.stdout.write(f"{each.num_rows} ")
            sys.stdout.flush()
    """
    variables = crash_points.crashes(tmp_path, Crash(Point.ROWS_IN_PART, batch=4))
    found = run(code, **variables)
    assert (found.returncode, found.stdout) == (DIES, "5 flushed ")
    assert run(code, **variables).stdout == "5 5 5 5 "


def test_a_crash_can_kill_the_process_tree(tmp_path: Path) -> None:
    """The driver declares itself the root; a descendant that reaches the point kills the driver too."""
    code = """
        import subprocess, sys
        from tailrace import crash_points

        crash_points.root()
        below = "from tailrace import crash_points; crash_points.at(crash_points.Point.TASK_BEGUN, 0, 0)"
        subprocess.run([sys.executable, "-c", below])
        print("alive")
    """
    found = run(code, **crash_points.crashes(tmp_path, Crash(Point.TASK_BEGUN, kills=Victim.TREE)))
    assert (found.returncode, found.stdout) == (DIES, "")
    assert len(crash_points.happened(tmp_path)) == 1


def test_crashes_are_read_from_data(tmp_path: Path) -> None:
    """They have the form of the file: a key that is left out matches anything."""
    assert Crash.of({"at": "commit_sent", "batch": 3, "partition": 1}) == Crash(Point.COMMIT_SENT, 3, 1)
    with pytest.raises(ValueError, match="is not a valid Point"):
        Crash.of({"at": "nowhere"})
    text = crash_points.crashes(tmp_path, Crash(Point.PLAN_SENT))[crash_points.ENV]
    assert json.loads(text)["crashes"][0]["at"] == "plan_sent"


def test_each_point_belongs_to_one_kind_of_process() -> None:
    """No point is forgotten."""
    assert sorted([*DRIVER, *WORKER, *READER, *GATEWAY]) == sorted(Point)


def test_the_variable_is_not_taken_for_a_configuration_key(tmp_path: Path) -> None:
    """A driver starts with it."""
    file = tmp_path / "pipeline.yaml"
    file.write_text("pipeline: p\nsource: {topics: [in]}\nsink: {topic: out}\n")
    assert load(file, {**crash_points.crashes(tmp_path / "c"), crash_points.ROOT: "1"}).pipeline.pipeline == "p"
