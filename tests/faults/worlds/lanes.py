"""Worlds in parallel: each lane is a process with a Kafka of its own, and takes every n-th seed.

A world spends most of its time waiting: for a broker that is away, for a pipeline to be idle. A lane's Kafka is
replaced after some worlds, because topics and transactional ids add up in it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.campaign import HEAP, SETTINGS
from faults.worlds.act import CLEANING
from faults.worlds.world import World
from support.kafkaproxy import ProxiedKafka
from tailrace.testing.embedded import EmbeddedOptions

FRESH = 40  # worlds on one Kafka
# An append wakes the fetch of its partition, which costs CPU for each partition of its fetcher. Idle ones cost little.
_FETCHERS = {"num.replica.fetchers": "4", "replica.fetch.wait.max.ms": "1000"}


@dataclass(frozen=True)
class Tally:
    """What some worlds found."""

    worlds: int = 0
    records: int = 0
    bad: int = 0
    unfinished: int = 0  # the harness itself failed in them, as when its machine is too busy: they prove nothing

    def __str__(self) -> str:
        left = f"; {self.unfinished} did not come to an end" if self.unfinished else ""
        return f"{self.worlds} worlds, {self.records:,} records, {self.bad} of them broke a promise{left}"

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.worlds + other.worlds,
            self.records + other.records,
            self.bad + other.bad,
            self.unfinished + other.unfinished,
        )


@contextmanager
def brokers() -> Iterator[ProxiedKafka]:
    """Run the three brokers that worlds share."""
    options = EmbeddedOptions(brokers=3, heap=HEAP, settings={**SETTINGS, **CLEANING, **_FETCHERS})
    with ProxiedKafka(options, apart=True) as kafka:
        yield kafka


def groups(worlds: Sequence[World]) -> Iterator[Sequence[World]]:
    """Split the worlds into those that run on one Kafka."""
    for start in range(0, len(worlds), FRESH):
        yield worlds[start : start + FRESH]


def in_lanes(arguments: Iterable[str], seed: int, count: int, lanes: int, file: Path | None) -> Tally:
    """Run so many worlds from a seed on; pass on what the lanes print, and append their lines to a file."""
    given = [["--seed", str(seed + lane), "--count", str(len(range(lane, count, lanes)))] for lane in range(lanes)]
    codes, lines = _run([[*arguments, "--step", str(lanes), *each] for each in given], file)
    tally = sum(map(_tally, lines), Tally())
    # A lane may also fail without a world that failed.
    return tally + Tally(unfinished=int(any(codes) and not tally.bad))


def mutants_in_lanes(
    arguments: Iterable[str], names: Sequence[str], seed: int, count: int, lanes: int, file: Path | None
) -> bool:
    """Let each lane try every n-th mutant in the same worlds; return whether all were caught."""
    given = [*arguments, "--seed", str(seed), "--count", str(count)]
    codes, _ = _run([[*given, "--mutants", *names[lane::lanes]] for lane in range(min(lanes, len(names)))], file)
    return not any(codes)


def _run(lanes: Sequence[Sequence[str]], file: Path | None) -> tuple[list[int], list[dict[str, Any]]]:
    """Run a process with each of these arguments; return their exit codes, and the lines that they recorded."""
    folder = Path(tempfile.mkdtemp(prefix="tailrace-lanes-"))
    records = [folder / f"{lane}.jsonl" for lane in range(len(lanes))]
    running: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []
    try:
        for arguments, record in zip(lanes, records, strict=True):
            command = [sys.executable, "-m", "faults.worlds", *arguments, "--json", str(record)]
            child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            running.append(child)
            readers.append(threading.Thread(target=_pass_on, args=(child,), daemon=True))
            readers[-1].start()
        codes = [child.wait() for child in running]
        for each in readers:
            each.join(30)
    finally:
        for child in running:
            child.terminate()
        for child in running:
            child.wait(60)
        every = [text for each in records if each.exists() for text in each.read_text(encoding="utf-8").splitlines()]
        if file is not None:
            with file.open("a", encoding="utf-8") as out:
                out.writelines(f"{each}\n" for each in every)
        shutil.rmtree(folder)
    return codes, [json.loads(each) for each in every]


def _tally(line: dict[str, Any]) -> Tally:
    return Tally(1, line["outcome"]["records"], int(not line["good"]))


def _pass_on(child: subprocess.Popen[str]) -> None:
    for line in child.stdout or ():
        sys.stdout.write(line)
        sys.stdout.flush()
