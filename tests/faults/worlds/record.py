"""The record of the worlds: how many count for the engine as it is, of which kinds, and what they found.

`make faults … FAULTS_ARGS="--json FILE"` appends a line for each world and each mutant, with the digest of what it can
run of the engine; `python -m faults.worlds.record FILE…` adds the lines that still count to
docs/benchmarks/worlds.jsonl, and writes the tables of docs/guarantees.md.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from faults.worlds.engine import engine
from faults.worlds.mutants import MUTANTS
from faults.worlds.oracle import COUNTS
from faults.worlds.world import Knobs, Place, World

ROOT = Path(__file__).resolve().parents[3]
PAGE, FILE = ROOT / "docs" / "guarantees.md", ROOT / "docs" / "benchmarks" / "worlds.jsonl"
FOUND = FILE.with_name("found.jsonl")  # worlds that have found a defect, and its tests
BEGIN, END = "<!-- worlds: begin -->", "<!-- worlds: end -->"

_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[\w.+-]+/)+")

Line = dict[str, Any]

KINDS: Mapping[str, Callable[[World], Iterable[str]]] = {
    "place": lambda world: [world.place],
    "format": lambda world: [world.encoding],
    "function": lambda world: [world.work],
    "input": lambda world: [world.input],
    "strike": lambda world: world.strikes,
    "crash point": lambda world: [each.at for each in world.crashes],
    "setting": lambda world: (
        [each.name.replace("_", " ") for each in fields(Knobs) if getattr(world.knobs, each.name) != each.default]
        + ["backfill"] * (world.backfill is not None)
        + ["replays"] * (world.replays is not None)
        + ["others after a crash"] * world.unlike
    ),
}


def merged(known: Iterable[Line], new: Iterable[Line], digest: Callable[[Place | None], str] = engine) -> list[Line]:
    """Return the lines that hold for the engine as it is, one for each world and mutant: the last one counts."""
    digests = {place: digest(place) for place in (None, *Place)}
    found: dict[str, Line] = {}
    for line in [*known, *new]:
        if line["engine"] == digests[place_of(line)]:
            key = line.get("mutant") or json.dumps(line["world"], sort_keys=True)
            found[key] = without_folders(line)
    return list(found.values())


def place_of(line: Line) -> Place | None:
    """Return where a world ran, or the one that caught a mutant; None if none did."""
    place = line["world"]["place"] if "world" in line else line.get("place")
    return None if place is None else Place(place)


def without_folders(line: Line) -> Line:
    """Return a line that tells of files only their names: what a world is stuck with may come from a driver's log."""
    stuck = line.get("outcome", {}).get("stuck", "")
    return line | {"outcome": line["outcome"] | {"stuck": _FOLDERS.sub("", stuck)}} if stuck else line


def text(lines: Sequence[Line]) -> str:
    """Return the tables as Markdown."""
    worlds = [each for each in lines if "world" in each]
    parts = _ran(worlds) if worlds else ["No world has run since the engine changed, but for the mutants.\n"]
    caught = {each["mutant"]: each for each in lines if "mutant" in each}
    parts += ["| breakage of the product | caught by world number |\n|---|---:|"]
    parts += [f"| {each.name.replace('-', ' ')} | {_number(caught.get(each.name))} |" for each in MUTANTS]
    return "\n".join(parts) + "\n"


def _ran(worlds: Sequence[Line]) -> list[str]:
    found = [each["outcome"] for each in worlds]
    stuck = [each for each in found if each["stuck"]]
    # What a stuck world's sink lacks is not lost: it may still have come when nobody waited any longer.
    lacking = sum(each["lost"] for each in stuck)
    sums = {name: sum(each.get(name, 0) for each in found) for name in COUNTS}
    totals = ", ".join(f"{count:,} {name}" for name, count in (sums | {"lost": sums["lost"] - lacking}).items())
    records = sum(each["records"] for each in found)
    hours = sum(each["seconds"] for each in worlds) / 3600
    missing = f", in whose sinks {lacking:,} records were still missing" if stuck else ""
    ran = f"{len(worlds):,} worlds over {records:,} records in {hours:.1f} hours"
    return [
        f"Since what they run of the engine last changed: {ran}: {totals}, {len(stuck):,} stuck{missing}.\n",
        "| drawn | worlds with it, and their records |\n|---|---|",
        *_kinds(worlds),
        "",
    ]


def _kinds(worlds: Sequence[Line]) -> Iterable[str]:
    drawn = [(World.parse(json.dumps(each["world"])), each["outcome"]["records"]) for each in worlds]
    for name, traits in KINDS.items():
        count: Counter[str] = Counter()
        records: Counter[str] = Counter()
        for world, size in drawn:
            for trait in set(traits(world)) or {"none"}:
                count[trait] += 1
                records[trait] += size
        yield f"| {name} | {', '.join(f'{each} {count[each]:,} ({records[each]:,})' for each in sorted(count))} |"


def _number(line: Line | None) -> str:
    if line is None:
        return "not tried since the engine changed"
    return str(line["worlds"]) if line["caught"] else f"not caught in {line['worlds']}"


def read(file: Path) -> list[Line]:
    """Read a file of lines; it need not exist."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def write(lines: Sequence[Line], page: Path = PAGE, file: Path = FILE) -> None:
    """Write the lines to the file, and their tables to the page."""
    old = page.read_text(encoding="utf-8")
    found = re.compile(f"{BEGIN}.*{END}", re.DOTALL)
    if not found.search(old):
        raise ValueError(f"{page} has no place between {BEGIN} and {END}")
    page.write_text(found.sub(lambda _: f"{BEGIN}\n\n{text(lines)}\n{END}", old), encoding="utf-8")
    file.write_text("".join(json.dumps(each, separators=(",", ":")) + "\n" for each in lines), encoding="utf-8")


if __name__ == "__main__":
    given = [line for name in sys.argv[1:] for line in read(Path(name))]
    write(merged(read(FILE), given))
