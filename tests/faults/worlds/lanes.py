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


@dataclass(frozen=True)
class Tally:
    """What some worlds found."""

    worlds: int = 0
    records: int = 0
    bad: int = 0

    def __str__(self) -> str:
        return f"{self.worlds} worlds, {self.records:,} records, {self.bad} of them broke a promise"

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.worlds + other.worlds, self.records + other.records, self.bad + other.bad)


@contextmanager
def brokers() -> Iterator[ProxiedKafka]:
    """Run the three brokers that worlds share."""
    options = EmbeddedOptions(brokers=3, heap=HEAP, settings={**SETTINGS, **CLEANING})
    with ProxiedKafka(options, apart=True) as kafka:
        yield kafka


def groups(worlds: Sequence[World]) -> Iterator[Sequence[World]]:
    """Split the worlds into those that run on one Kafka."""
    for start in range(0, len(worlds), FRESH):
        yield worlds[start : start + FRESH]


def in_lanes(arguments: Iterable[str], seed: int, count: int, lanes: int, file: Path | None) -> Tally:
    """Run so many worlds from a seed on; pass on what the lanes print, and append their lines to a file."""
    folder = Path(tempfile.mkdtemp(prefix="tailrace-lanes-"))
    found = [folder / f"{lane}.jsonl" for lane in range(lanes)]
    command = [sys.executable, "-m", "faults.worlds", *arguments, "--step", str(lanes)]
    running: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []
    try:
        for lane, lines in enumerate(found):
            given = ["--seed", str(seed + lane), "--count", str(len(range(lane, count, lanes))), "--json", str(lines)]
            child = subprocess.Popen([*command, *given], stdout=subprocess.PIPE, text=True)
            running.append(child)
            readers.append(threading.Thread(target=_pass_on, args=(child,), daemon=True))
            readers[-1].start()
        broken = [child.wait() for child in running]
        for each in readers:
            each.join(30)
    except BaseException:
        for child in running:
            child.terminate()
        for child in running:
            child.wait(60)
        raise
    every = [text for lines in found if lines.exists() for text in lines.read_text(encoding="utf-8").splitlines()]
    if file is not None:
        with file.open("a", encoding="utf-8") as out:
            out.writelines(f"{each}\n" for each in every)
    shutil.rmtree(folder)
    tally = sum((_tally(json.loads(each)) for each in every), Tally())
    # A lane that fails without a world that failed has come to its end too soon.
    return tally + Tally(bad=int(any(broken) and not tally.bad))


def _tally(line: dict[str, Any]) -> Tally:
    return Tally(1, line["outcome"]["records"], int(not line["good"]))


def _pass_on(child: subprocess.Popen[str]) -> None:
    for line in child.stdout or ():
        sys.stdout.write(line)
        sys.stdout.flush()
