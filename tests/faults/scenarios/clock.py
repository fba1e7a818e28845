"""Clock jumps for driver, workers and gateway, while they run and while they are down.

All processes of a machine share its real clock, so a small preloaded library (tests/support/clock.c) shifts the time of
day that these alone read. It needs a C compiler, which Python itself does not.
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
    """The time of day that the processes read."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise RuntimeError("setting the clock takes a C library, and `cc` was not found. Next: apt-get install gcc")
        folder.mkdir(parents=True, exist_ok=True)
        self._library, self._file = folder / "clock.so", folder / "shift"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(self._library), str(SOURCE)], check=True)
        self._file.write_bytes(bytes(8))

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that reads this clock."""
        return {"LD_PRELOAD": str(self._library), "CLOCK_SHIFT": str(self._file)}

    def set(self, seconds: int) -> None:
        """Shift the clock this far from the true time, from now on."""
        with self._file.open("r+b") as file, mmap.mmap(file.fileno(), 8) as place:
            place[:] = struct.pack("=q", seconds)

    def seen_by(self, process: psutil.Process) -> bool:
        """Whether this process reads this clock."""
        return any(each.path == str(self._library) for each in process.memory_maps())


@contextmanager
def clocked(context: Context, name: str) -> Iterator[tuple[Supervised, Load, Clock]]:
    """Run a pipeline whose processes all read the same clock; at the end, drain its input."""
    clock = Clock(context.folder / name)
    one = Supervised(context.bootstrap, context.bootstrap, context.folder / name, environment=clock.environment)
    with Load(one.direct, one.source, RATE) as load, one:
        one.more(number=3)
        for word in ("java", "pyspark", "tailrace.gateway.server"):
            if not all(clock.seen_by(each) for each in one.tree(word)) or not one.tree(word):
                raise RuntimeError(f"no process {word!r}, or it does not read this clock")
        yield one, load, clock
        load.stop()
        one.drained(load)


def jumps(context: Context) -> Sequence[Result]:
    """Jump forward and back while the pipeline runs, and then between a kill and the replay."""
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
    """Jump a month ahead: brokers refuse the records, and nothing passes until the clock is right again."""
    with clocked(context, "ahead") as (one, _, clock):
        clock.set(FAR)
        wait_until(lambda: one.codes, "a driver to end because its records are refused", LIMIT)
        clock.set(0)
        one.more(number=3)
    said = sorted({each["error"] for each in one.events() if "error" in each})
    note = f"said {', '.join(said)}; {len(one.codes) - 1} restarts until the clock was right"
    return [proven(one, "the clock jumps a month ahead", note=note)]


SCENARIOS = (
    Scenario("clock-jumps", "Time", "promised", jumps, quick=False),
    Scenario("clock-ahead", "Time", "promised", far_ahead, quick=False),
)
