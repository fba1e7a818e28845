"""How a world's drivers are started: their program, their files, and what the environment tells them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from faults.worlds.forks import ForkedDriver
from faults.worlds.history import HISTORY
from faults.worlds.world import Place, World
from tailrace import crash_points
from tailrace.demo.driver import Driver

MOST_STARTS = 20  # of one pipeline, or of a command that is repeated next to it
_FILES = ("pipeline.yaml", "work.py", "in.avsc", "out.avsc")


def copied(folder: Path, name: str) -> Path:
    """Copy a pipeline's files into a folder within its own, which neither a deploy nor another name changes."""
    place = folder / name
    place.mkdir()
    for file in _FILES:
        shutil.copy(folder / file, place / file)
    return place


def program(place: Place, file: Path) -> tuple[str, ...]:
    """Return the module that runs a driver there, and its arguments."""
    if place is Place.THREADS:
        return "faults.worlds.thread_driver", str(file)
    if place is Place.DROPIN:
        return "faults.worlds.dropin_driver", str(file)
    return "tailrace.cli.main", "run", str(file), "--output", "json"


def import_path(package: Path | None) -> str:
    """Return where a driver finds the campaign, and the product if it is another than the installed one."""
    return os.pathsep.join(map(str, filter(None, (package, Path(__file__).parents[2]))))


def launched(command: Sequence[str], environment: Mapping[str, str], folder: Path, place: Place) -> Driver:
    """Start a module with arguments; if nothing there needs a new Python, as a fork."""
    new = place is not Place.THREADS or "LD_PRELOAD" in environment or environment["PYTHONPATH"] != import_path(None)
    return (Driver if new else ForkedDriver)(["-m", *command], environment, folder)


def told(world: World, marks: Path, path: str, history: Path) -> dict[str, str]:
    """Return what a driver's environment adds: its crash points, which leave marks, and where its history belongs."""
    planned = [crash_points.Crash(crash_points.Point(each.at), each.batch, times=each.times) for each in world.crashes]
    environment = crash_points.crashes(marks, *planned) if planned else {}
    environment |= {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    return environment | {"PYTHONPATH": path, HISTORY: str(history)}
