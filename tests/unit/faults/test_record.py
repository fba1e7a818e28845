"""The record of the worlds counts those of the engine as it is, and shows what was never tried."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from faults.worlds import record
from faults.worlds.drawing import draw
from faults.worlds.mutants import MUTANTS, SOURCE
from faults.worlds.oracle import Outcome
from faults.worlds.world import Strike, World


def line(seed: int, digest: str = "now", lost: int = 0, stuck: str = "") -> record.Line:
    """Return a world's line."""
    world = replace(draw(seed), strikes=(Strike.KILL,), crashes=())
    outcome = Outcome(records=100, lost=lost, stuck=stuck)
    return {"world": json.loads(world.line), "outcome": asdict(outcome), "seconds": 36.0, "engine": digest}


def mutant(number: int, worlds: int, caught: bool = True, digest: str = "now") -> record.Line:
    """Return a mutant's line."""
    return {"mutant": MUTANTS[number].name, "caught": caught, "worlds": worlds, "seed": 1, "engine": digest}


def test_only_lines_of_this_engine_count_and_each_world_once() -> None:
    """A world that ran on other code proves nothing about this one."""
    known = [line(1, "before"), mutant(0, 3, digest="before"), line(2)]
    new = [line(2, lost=1), line(3), mutant(1, 5)]
    found = record.merged(known, new, "now")
    assert len(found) == 3
    assert [each["outcome"]["lost"] for each in found if "world" in each] == [1, 0]


def test_recorded_world_names_no_folder_of_the_machine_that_ran_it() -> None:
    """What it is stuck with may hold a driver's traceback."""
    [found] = record.merged([], [line(1, stuck='ended: File "/home/me/.venv/lib/threading.py", line 331')], "now")
    assert found["outcome"]["stuck"] == 'ended: File "threading.py", line 331'


def test_text_has_what_was_lost_and_what_was_not_tried() -> None:
    """A reader sees both without looking at a single line."""
    shown = record.text([line(1, lost=2), line(2), mutant(0, 4), mutant(1, 40, caught=False)])
    assert "2 worlds over 200 records in 0.0 hours: 2 lost, 0 duplicated" in shown
    assert "| strike | kill 2 (200) |" in shown
    assert f"| {MUTANTS[0].name.replace('-', ' ')} | 4 |" in shown
    assert f"| {MUTANTS[1].name.replace('-', ' ')} | not caught in 40 |" in shown
    assert f"| {MUTANTS[2].name.replace('-', ' ')} | not tried since the engine last changed |" in shown
    only_mutants = record.text([mutant(0, 4)])
    assert "No world has run" in only_mutants
    assert f"| {MUTANTS[0].name.replace('-', ' ')} | 4 |" in only_mutants


def test_records_that_a_stuck_world_lacks_are_counted_apart_from_lost_ones() -> None:
    """They may still have come; what it repeated counts like that of any other world."""
    shown = record.text([line(1, lost=2), line(2, lost=7, stuck="the older driver did not end")])
    assert "2 lost, 0 duplicated" in shown
    assert "1 stuck, in whose sinks 7 records were still missing." in shown


@pytest.mark.parametrize(
    ("change", "differs"),
    [(lambda text: f"{text}\n# why\n", False), (lambda text: text.replace("all(done)", "any(done)"), True)],
    ids=["comment", "code"],
)
def test_digest_changes_with_the_code_and_not_with_its_words(tmp_path: Path, change: object, differs: bool) -> None:
    """A better comment must not cost a night of worlds; another condition must."""
    copy = tmp_path / "tailrace"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    file = copy / "driver" / "recovery.py"
    assert callable(change)
    file.write_text(change(file.read_text()))
    assert (record.engine(copy) != record.engine()) is differs


def test_page_and_file_are_of_the_same_lines() -> None:
    """The page is generated."""
    page = record.PAGE.read_text(encoding="utf-8")
    shown = page.partition(record.BEGIN)[2].partition(record.END)[0].strip()
    lines = record.merged(record.read(record.FILE), [], record.engine())
    assert shown == record.text(lines).strip()


def test_world_that_found_a_defect_can_be_run_again_and_its_tests_exist() -> None:
    """The line has nothing that worlds no longer have, and the changelog names its seed."""
    tests = "".join(each.read_text(encoding="utf-8") for each in (record.ROOT / "tests").rglob("test_*.py"))
    changes = (record.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = record.read(record.FOUND)
    assert found
    for each in found:
        world = World.parse(json.dumps(each["world"]))
        given, again = each["world"], json.loads(world.line)
        knobs = given.get("knobs", {})
        assert knobs.items() <= again["knobs"].items()
        assert given.items() <= (again | {"knobs": knobs}).items()
        assert f"{world.seed}" in changes
        assert [name for name in each["tests"] if f"def {name}(" not in tests] == []
