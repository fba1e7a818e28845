"""Schedule of kills, and killing a driver with every process it started.

A kill must land mid-batch: it is armed when a batch is planned, and fires after a random fraction of the usual batch
time. If the batch is written first, the kill is postponed, and the next delay is shorter.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
from collections import deque

import psutil

REMEMBERED = 5  # batches whose duration is remembered
FIRST_GUESS = 0.3  # seconds assumed for a driver's first batch before any was measured
EARLIEST, LATEST = 0.02, 0.9  # fraction of a batch after which a kill may come
SHORTER = 0.7
GONE_LIMIT = 15.0


class KillSchedule:
    """Spreads the kills over the run and draws the moment of each. It only decides; the supervisor kills."""

    def __init__(self, wanted: int, seconds: float, chance: random.Random) -> None:
        self.wanted = wanted
        self.landed = 0
        self.at: float | None = None
        self._seconds = seconds
        self._chance = chance
        self._began: float | None = None
        self._planned: float | None = None
        self._since_start = 0
        self._settled = 2
        self._scale = 1.0
        self._usual: deque[float] = deque(maxlen=REMEMBERED)
        self._first: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def done(self) -> bool:
        """Whether every kill has landed."""
        return self.landed >= self.wanted

    def began(self, now: float) -> None:
        """Start the run's clock."""
        self._began = now

    def planned(self, now: float) -> None:
        """Note that a batch was begun: from now on a kill would land in it."""
        self._planned = now
        self.at = None
        if self.done or self._began is None or now < self._began + self._seconds * (self.landed + 0.5) / self.wanted:
            return
        if self._since_start < self._settled:
            return
        known = self._usual if self._since_start else self._first
        typical = statistics.median(known) if known else FIRST_GUESS
        self.at = now + typical * self._scale * self._chance.uniform(EARLIEST, LATEST)

    def written(self, now: float) -> None:
        """Note that the batch is written: a kill now would not land in it."""
        if self._planned is not None:
            (self._usual if self._since_start else self._first).append(now - self._planned)
        if self.at is not None:
            self._scale *= SHORTER
        self._since_start += 1
        self._planned = self.at = None

    def killed(self, in_batch: bool) -> None:
        """Note that the driver was killed, mid-batch or between two; another one will start."""
        if in_batch:
            self.landed += 1
            self._scale = 1.0
        self._planned = self.at = None
        self._since_start = 0
        # Some kills hit the very batch the last kill left open, others a driver at its normal pace.
        self._settled = self._chance.choice((0, 1, 2, 4))


def family(root: int, born: float) -> list[psutil.Process]:
    """Return the process, all its descendants, and every other process of the session it leads.

    A process id may be reused some time after its owner has ended, so it is checked together with the time of birth.
    While any process is left in its session, the id is not reused.
    """
    found: dict[int, psutil.Process] = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        leader = psutil.Process(root)
        if leader.create_time() != born:
            return []
        for process in [leader, *leader.children(recursive=True)]:
            found[process.pid] = process
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            if os.getsid(process.pid) == root:
                found.setdefault(process.pid, process)
    return list(found.values())


def kill_tree(root: int, born: float) -> int:
    """Kill (kill -9) the process and its family, and return how many processes that were.

    Stop them first, the parent before its children: a stopped process cannot start one that would be missed.
    """
    _signal(family(root, born), signal.SIGSTOP)
    processes = family(root, born)
    _signal(processes, signal.SIGKILL)
    # The leader is the caller's own child, so the caller waits for it.
    psutil.wait_procs([each for each in processes if each.pid != root], timeout=GONE_LIMIT)
    return len(processes)


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
