"""SIGTERM and Ctrl-C, passed to a thread that acts on them.

A stop takes locks, and a handler runs in the middle of whatever the main thread is doing, which may hold the same lock:
acting in the handler itself, the process would then never end.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import FrameType

_SAME = 0.5  # seconds within which two signals are one: `timeout` signals its child, and then its whole group

Act = Callable[[str], None]


_STOPS = (signal.SIGTERM, signal.SIGINT)


def on_signals(stop: Act, hurry: Act | None = None, numbers: Sequence[signal.Signals] = _STOPS) -> None:
    """Call `stop` with the reason at the first SIGTERM or Ctrl-C, and `hurry` at the second.

    Where a second one hurries, a third one ends the process, even if it is stuck.
    """
    acts: SimpleQueue[tuple[Act, str]] = SimpleQueue()  # the one queue that a handler may safely put into
    first: list[float] = []

    def handle(number: int, frame: FrameType | None) -> None:
        name, now = signal.Signals(number).name, time.monotonic()
        if not first:
            first.append(now)
            acts.put((stop, f"{name} was received"))
        elif hurry is not None and now - first[0] >= _SAME:
            acts.put((hurry, f"{name} was received twice"))
            for each in numbers:
                signal.signal(each, signal.SIG_DFL)

    def act() -> None:
        while True:
            what, reason = acts.get()
            what(reason)

    threading.Thread(target=act, name="tailrace-signals", daemon=True).start()
    for number in numbers:
        signal.signal(number, handle)
