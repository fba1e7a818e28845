"""The record of the worlds counts those of the engine as it is, and shows what was never tried."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from faults.worlds import record
from faults.worlds.drawing import draw
from faults.worlds.engine import WITHOUT_SPARK, engine, modules_of
from faults.worlds.mutants import MUTANTS, SOURCE
from faults.worlds.oracle import Outcome
from faults.worlds.world import Place, Strike, World


def line(seed: int, digest: str = "now", lost: int = 0, stuck: str = "", place: Place = Place.THREADS) -> record.Line:
    """Return a world's line."""
    world = replace(draw(seed), place=place, strikes=(Strike.KILL,), crashes=())
    outcome = Outcome(records=100, lost=lost, stuck=stuck)
    return {"world": json.loads(world.line), "outcome": asdict(outcome), "seconds": 36.0, "engine": digest}


def mutant(number: int, worlds: int, caught: bool = True, digest: str = "now") -> record.Line:
    """Return a mutant's line."""
    return {"mutant": MUTANTS[number].name, "caught": caught, "worlds": worlds, "seed": 1, "engine": digest}


def test_only_lines_of_this_engine_count_and_each_world_once() -> None:
    """A world that ran on other code proves nothing about this one."""
    known = [line(1, "before"), mutant(0, 3, digest="before"), line(2)]
    new = [line(2, lost=1), line(3), mutant(1, 5)]
    found = record.merged(known, new, lambda _: "now")
    assert len(found) == 3
    assert [each["outcome"]["lost"] for each in found if "world" in each] == [1, 0]


def test_recorded_world_names_no_folder_of_the_machine_that_ran_it() -> None:
    """What it is stuck with may hold a driver's traceback."""
    [found] = record.merged(
        [], [line(1, stuck='ended: File "/home/me/.venv/lib/threading.py", line 331')], lambda _: "now"
    )
    assert found["outcome"]["stuck"] == 'ended: File "threading.py", line 331'


def test_text_has_what_was_lost_and_what_was_not_tried() -> None:
    """A reader sees both without looking at a single line."""
    shown = record.text([line(1, lost=2), line(2), mutant(0, 4), mutant(1, 40, caught=False)])
    assert "2 worlds over 200 records in 0.0 hours: 2 lost, 0 duplicated" in shown
    assert "| strike | kill 2 (200) |" in shown
    assert f"| {MUTANTS[0].name.replace('-', ' ')} | 4 |" in shown
    assert f"| {MUTANTS[1].name.replace('-', ' ')} | not caught in 40 |" in shown
    assert f"| {MUTANTS[2].name.replace('-', ' ')} | not tried since the engine changed |" in shown
    only_mutants = record.text([mutant(0, 4)])
    assert "No world has run" in only_mutants
    assert f"| {MUTANTS[0].name.replace('-', ' ')} | 4 |" in only_mutants


def test_records_that_a_stuck_world_lacks_are_counted_apart_from_lost_ones() -> None:
    """They may still have come; what it repeated counts like that of any other world."""
    shown = record.text([line(1, lost=2), line(2, lost=7, stuck="the older driver did not end")])
    assert "2 lost, 0 duplicated" in shown
    assert "1 stuck, in whose sinks 7 records were still missing." in shown


def test_world_counts_until_something_changes_that_it_can_run() -> None:
    """One without Spark, and a mutant that such a world caught, outlast a change of what only Spark's driver runs."""
    now: dict[Place | None, str] = {Place.THREADS: "as before"}
    caught = mutant(0, 3, digest="as before") | {"place": Place.THREADS}
    elsewhere = mutant(1, 3, digest="as before") | {"place": Place.SPARK}
    lines = [line(1, "as before"), line(2, "as before", place=Place.SPARK), caught, elsewhere]
    assert record.merged(lines, [], lambda place: now.get(place, "changed")) == [lines[0], caught]


def changed(folder: Path, file: str, change: Callable[[str], str]) -> Path:
    """Return a copy of the product in which a file is changed."""
    copy = folder / "tailrace"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / file).write_text(change((SOURCE / file).read_text()))
    return copy


@pytest.mark.parametrize(
    ("change", "differs"),
    [(lambda text: f"{text}\n# why\n", False), (lambda text: text.replace("all(done)", "any(done)"), True)],
    ids=["comment", "code"],
)
def test_digest_changes_with_the_code_and_not_with_its_words(
    tmp_path: Path, change: Callable[[str], str], differs: bool
) -> None:
    """A better comment must not cost a night of worlds; another condition must."""
    copy = changed(tmp_path, "driver/recovery.py", change)
    assert (engine(source=copy) != engine()) is differs
    assert (engine(Place.THREADS, copy) != engine(Place.THREADS)) is differs


def test_digest_of_worlds_without_spark_leaves_out_what_only_spark_runs(tmp_path: Path) -> None:
    """Such a world has shown nothing about a stateful pipeline, so a change there takes nothing from it."""
    copy = changed(tmp_path, "spark_stream/checkpoint.py", lambda text: f"{text}\nOTHER = 1\n")
    assert engine(Place.THREADS, copy) == engine(Place.THREADS)
    assert engine(Place.SPARK, copy) != engine(Place.SPARK)


def test_driver_without_spark_loads_nothing_of_the_engine_that_its_digest_leaves_out() -> None:
    """The digest follows the imports in the code; the interpreter knows which there are."""
    asked = (
        f"import sys, {', '.join(WITHOUT_SPARK)}\n"
        "print(*(each.__file__ for name, each in sys.modules.items() if name.startswith('tailrace.')))"
    )
    told = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=True, env=os.environ, timeout=60
    )
    loaded = {Path(each) for each in told.stdout.split()}
    assert SOURCE / "driver" / "loop.py" in loaded
    assert loaded <= modules_of(WITHOUT_SPARK, (SOURCE.parent, record.ROOT / "tests"))


@pytest.mark.parametrize("file", ["admin/replay.py", "admin/backfill.py", "admin/moved_plan.py"])
def test_digest_of_every_place_has_the_commands_that_worlds_run(tmp_path: Path, file: str) -> None:
    """Mutants break them, and worlds judge what they deliver."""
    copy = changed(tmp_path, file, lambda text: f"{text}\nOTHER = 1\n")
    for place in (None, *Place):
        assert engine(place, copy) != engine(place)


def test_page_and_file_are_of_the_same_lines() -> None:
    """The page is generated."""
    page = record.PAGE.read_text(encoding="utf-8")
    shown = page.partition(record.BEGIN)[2].partition(record.END)[0].strip()
    lines = record.merged(record.read(record.FILE), [])
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
