"""The clock of the machine on which driver, workers and gateway run is set while they run, and while they are down.

A real clock is the whole machine's, so they are shown another one: a small library (tests/support/clock.c) that is
preloaded shifts what they read as the time of day. It needs a C compiler, which Python itself does not.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from faults.scenario import Context, Result, Scenario
from faults.supervision import proven
from support.drivers import Load, kill_tree
from support.supervised import LIMIT, Supervised
from tailrace.testing import wait_until

SOURCE = Path(__file__).parents[2] / "support" / "clock.c"
RATE = 1000
MINUTE, DAY = 60, 86400
# Kafka refuses records from more than an hour ahead (message.timestamp.after.max.ms); see `far_ahead`.
JUMPS = (50 * MINUTE, 0, -DAY, 0, -30 * DAY, 0)
FAR = 30 * DAY


class Clock:
    """What the processes read as the time of day."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise RuntimeError("the clock is set by a library in C, and there is no `cc`. Next: apt-get install gcc")
        folder.mkdir(parents=True, exist_ok=True)
        self._library, self._file = folder / "clock.so", folder / "shift"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(self._library), str(SOURCE)], check=True)
        self._file.write_bytes(bytes(8))

    @property
    def environment(self) -> dict[str, str]:
        """Of a process that is to be shown this clock."""
        return {"LD_PRELOAD": str(self._library), "CLOCK_SHIFT": str(self._file)}

    def set(self, seconds: int) -> None:
        """So far from the true time, from now on."""
        with self._file.open("r+b") as file, mmap.mmap(file.fileno(), 8) as place:
            place[:] = struct.pack("=q", seconds)

    def seen_by(self, process: psutil.Process) -> bool:
        """Whether this process looks at it."""
        return any(each.path == str(self._library) for each in process.memory_maps())


@contextmanager
def clocked(context: Context, name: str) -> Iterator[tuple[Supervised, Load, Clock]]:
    """A pipeline whose processes all look at the same clock; at the end it is right, and the input is read."""
    clock = Clock(context.folder / name)
    one = Supervised(context.bootstrap, context.bootstrap, context.folder / name, environment=clock.environment)
    with Load(one.direct, one.source, RATE) as load, one:
        one.more(number=3)
        for word in ("java", "pyspark", "tailrace.gateway.server"):
            if not all(clock.seen_by(each) for each in one.tree(word)) or not one.tree(word):
                raise RuntimeError(f"there is no process {word!r}, or it does not look at this clock")
        yield one, load, clock
        load.stop()
        one.drained(load)


def jumps(context: Context) -> Sequence[Result]:
    """Forward and back while it runs; then behind between a kill and the replay, and ahead between two."""
    found = []
    with clocked(context, "running") as (one, _, clock):
        for shift in JUMPS:
            one.more("planned")
            clock.set(shift)
            one.more(number=3)
    found.append(proven(one, "the clock jumps while it runs", runs=len(JUMPS), note=f"{len(one.codes) - 1} restarts"))
    with clocked(context, "down") as (one, _, clock):
        for shift in JUMPS:
            one.more("planned")
            kill_tree(one.runs[-1].process)
            clock.set(shift)
            one.more(number=3)
    found.append(proven(one, "the clock jumps between a kill and the replay", runs=len(JUMPS)))
    return found


def far_ahead(context: Context) -> Sequence[Result]:
    """A month ahead: brokers refuse the records, and nothing passes until the clock is right again."""
    with clocked(context, "ahead") as (one, _, clock):
        clock.set(FAR)
        wait_until(lambda: one.codes, "a driver to be refused, and to end", LIMIT)
        clock.set(0)
        one.more(number=3)
    said = sorted({each["error"] for each in one.events() if "error" in each})
    note = f"said {', '.join(said)}; {len(one.codes) - 1} restarts until the clock was right"
    return [proven(one, "the clock jumps a month ahead", note=note)]


SCENARIOS = (
    Scenario("clock-jumps", "Time", "promised", jumps, quick=False),
    Scenario("clock-ahead", "Time", "promised", far_ahead, quick=False),
)
