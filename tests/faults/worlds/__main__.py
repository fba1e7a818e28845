"""`make faults WORLDS=15`: draw worlds, run them, and write a line for each.

`WORLD='…'` replays a line; `FOUND=1` replays those of the worlds that have found a defect.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from faults.scenario import Context
from faults.worlds.act import act
from faults.worlds.drawing import draw
from faults.worlds.engine import engine
from faults.worlds.history import checker
from faults.worlds.lanes import Tally, brokers, groups, in_lanes, mutants_in_lanes
from faults.worlds.mutants import MUTANTS
from faults.worlds.oracle import Outcome
from faults.worlds.record import FOUND, place_of, read
from faults.worlds.world import Place, World
from support import archive
from tailrace.testing.embedded import EmbeddedKafka

_FAILURES = 3  # worlds in a row that the harness could not finish
_SHRINKS = 12  # smaller worlds that are tried for one that fails


def main(arguments: Sequence[str]) -> int:
    """Run the worlds; return 0 if all of them kept every promise."""
    parser = argparse.ArgumentParser(prog="faults.worlds", description="Run random pipelines under random faults.")
    parser.add_argument("--count", type=int, default=15)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the first world's; the next have the next")
    parser.add_argument("--step", type=int, default=1, help="from one seed to the next")
    parser.add_argument("--lanes", type=int, default=1, help="processes, each with a Kafka of its own")
    parser.add_argument("--place", type=Place, choices=list(Place), help="run all of them there")
    parser.add_argument("--minutes", type=float, default=0.0, help="draw no world after so many minutes; 0: no limit")
    parser.add_argument("--world", nargs="+", metavar="LINE", help="the lines of worlds to run again")
    parser.add_argument("--found", action="store_true", help="run those that have found a defect")
    parser.add_argument(
        "--mutants", nargs="*", metavar="NAME", choices=[each.name for each in MUTANTS],
        help="break the product, and count the worlds it takes",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, help="append a line for each world to this file")
    chosen = parser.parse_args(arguments)
    archive.use()
    seeds = range(chosen.seed, chosen.seed + chosen.count * chosen.step, chosen.step)
    again = [json.dumps(each["world"]) for each in read(FOUND)] if chosen.found else chosen.world or []
    worlds = [World.parse(line) for line in again] or [draw(seed, chosen.place) for seed in seeds]
    told = (
        "" if checker() is not None else "; no Go, or no Porcupine: the histories of ledger and markers are not checked"
    )
    sys.stdout.write(f"{len(worlds)} worlds from seed {worlds[0].seed}{told}\n")
    sys.stdout.flush()
    began = time.monotonic()
    place = ["--place", chosen.place] if chosen.place else []
    if chosen.lanes > 1 and chosen.mutants is not None:
        names = chosen.mutants or [each.name for each in MUTANTS]
        return int(not mutants_in_lanes(place, names, chosen.seed, chosen.count, chosen.lanes, chosen.json))
    if chosen.lanes > 1 and not again:
        passed = ["--minutes", str(chosen.minutes), *place]
        tally = in_lanes(passed, chosen.seed, chosen.count, chosen.lanes, chosen.json)
    else:
        folder = Path(tempfile.mkdtemp(prefix="tailrace-worlds-"))
        if chosen.mutants is not None:
            with brokers() as kafka:
                return int(not _all_caught(chosen.mutants, worlds, kafka, folder, chosen.json))
        until = began + chosen.minutes * 60 if chosen.minutes else None
        tally = _every(worlds, folder, chosen.json, until, replayed=bool(again))
        if tally.bad:
            sys.stdout.write(f"their logs are in {folder}\n")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    minutes = (time.monotonic() - began) / 60
    sys.stdout.write(f"{tally}, {minutes:.1f} minutes\n")
    return int(tally.bad > 0 or tally.unfinished > 0)


def _every(worlds: Sequence[World], folder: Path, file: Path | None, until: float | None, *, replayed: bool) -> Tally:
    """Run the worlds one after another, each on a Kafka that some of them share; make those smaller that fail.

    After one that the harness could not finish, the next have another Kafka; after a few in a row, it gives up.
    """
    tally, left, failed = Tally(), [list(group) for group in groups(worlds)], 0
    while left and not _passed(until):
        group = left.pop(0)
        with brokers() as kafka:
            while group and not _passed(until):
                world = group.pop(0)
                try:
                    outcome = _one(world, kafka, folder, file)
                except Exception:
                    traceback.print_exc()
                    sys.stdout.write(f"UNFINISHED {world.seed}: again: make faults WORLD='{world.line}'\n")
                    sys.stdout.flush()
                    tally, failed = tally + Tally(unfinished=1), failed + 1
                    if failed == _FAILURES:
                        return tally
                    left[:0] = [group] if group else []
                    break
                failed = 0
                tally += Tally(1, outcome.records, int(not outcome.good))
                if not outcome.good and not replayed and not _passed(until):
                    smallest = shrunk(world, lambda smaller: not _one(smaller, kafka, folder, None).good, until)
                    told = (
                        f"the smallest that fails: make faults WORLD='{smallest.line}'"
                        if smallest
                        else "kept when it ran again"
                    )
                    sys.stdout.write(f"  {told}\n")
    return tally


def _one(world: World, kafka: EmbeddedKafka, folder: Path, file: Path | None) -> Outcome:
    began, digest = time.monotonic(), engine(world.place)
    outcome, starts = act(world, Context(kafka, folder, world.seed, True, lambda text: None))
    took = time.monotonic() - began
    what = f"{world.place}, {world.encoding}, {world.work}, {len(world.counts)} partitions, {world.input}"
    faults = ", ".join([*world.strikes, *(f"{each.at}@{each.batch}" for each in world.crashes)]) or "no fault"
    faults += "; a backfill" if world.backfill is not None else ""
    faults += "; replays" if world.replays is not None else ""
    kept = "kept" if outcome.good else "BROKEN"
    sys.stdout.write(f"{kept} {world.seed}: {what}; {faults}: {outcome}; {starts} starts, {took:.0f} s\n")
    sys.stdout.flush()
    if not outcome.good:
        sys.stdout.write(f"  again: make faults WORLD='{world.line}'\n")
    line = {
        "world": json.loads(world.line),
        "outcome": asdict(outcome),
        "good": outcome.good,
        "seconds": round(took, 1),
    }
    _append(file, line, digest)
    return outcome


def _append(file: Path | None, line: dict[str, Any], digest: str) -> None:
    """Write a line, unless the code was changed while it ran."""
    if file is not None and digest == engine(place_of(line)):
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({**line, "engine": digest}) + "\n")


def _all_caught(
    names: Sequence[str], worlds: Sequence[World], kafka: EmbeddedKafka, folder: Path, file: Path | None
) -> bool:
    """Run each mutant in the worlds until one breaks a promise; return whether all were caught.

    Only worlds in which the product as it is keeps its promises prove anything.
    """
    left: list[str] = []
    sound: dict[int, bool] = {}
    for mutant in [each for each in MUTANTS if not names or each.name in names]:
        package, verdict = mutant.build(folder), "SURVIVED"
        digests = {place: engine(place) for place in (None, *Place)}
        for number, world in enumerate(worlds, start=1):
            if not mutant.only(world):
                continue
            outcome, _ = act(world, Context(kafka, folder, world.seed, True, lambda text: None), package)
            if outcome.good:
                continue
            if world.seed not in sound:
                sound[world.seed] = _one(world, kafka, folder, None).good
            if sound[world.seed]:
                verdict = f"caught by world {number}, seed {world.seed}: {outcome}"
                break
        else:
            left.append(mutant.name)
        caught = mutant.name not in left
        where = {"place": world.place} if caught else {}
        line = {"mutant": mutant.name, "caught": caught, "worlds": number, "seed": world.seed, **where}
        _append(file, line, digests[place_of(line)])
        sys.stdout.write(f"{mutant.name}: {verdict}\n")
        sys.stdout.flush()
    found = f"{len(left)} mutants survived {len(worlds)} worlds: {', '.join(left)}" if left else "all caught"
    sys.stdout.write(f"{found}\n")
    return not left and all(sound.values())


def shrunk(world: World, fails: Callable[[World], bool], until: float | None = None) -> World | None:
    """Return a smaller world that fails as well, after a bounded number of attempts; None if it is kept this time."""
    if not fails(world):
        return None
    left = _SHRINKS
    while True:
        for smaller in world.smaller():
            if not left or _passed(until):
                return world
            left -= 1
            if fails(smaller):
                world = smaller
                break
        else:
            return world


def _passed(until: float | None) -> bool:
    return until is not None and time.monotonic() > until


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
