"""What a signal does, even if it arrives where the process holds the lock that it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

_LIMIT = 60.0  # seconds for an interpreter to start and to end
_START = """
import os, signal, sys, time
from tailrace.cli.run import stops_on_signals
stop = stops_on_signals()
def send(name):
    os.kill(os.getpid(), getattr(signal, name))
"""


def ran(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script that has a stop in a process of its own."""
    return subprocess.run([sys.executable, "-c", _START + script], capture_output=True, text=True, timeout=_LIMIT)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_signal_in_the_middle_of_the_stops_own_lock_stops(name: str) -> None:
    """The main thread waits for that event again and again, and a handler that set it would wait for itself."""
    ended = ran(f"""
with stop.event._cond:
    send("{name}")
    time.sleep(0.01)
sys.exit(0 if stop.event.wait(30) and stop.reason == "{name} was received" else 9)
""")
    assert ended.returncode == 0, ended.stderr


def test_second_signal_at_once_is_the_first_one_again() -> None:
    """`timeout` signals the process, and then its whole group."""
    ended = ran("""
send("SIGINT")
send("SIGINT")
stop.event.wait(30)
sys.exit(9 if stop.hurried.wait(1) else 0)
""")
    assert ended.returncode == 0, ended.stderr


def test_second_signal_hurries_and_a_third_one_ends() -> None:
    """A process that is stuck has a way out."""
    ended = ran("""
send("SIGTERM")
time.sleep(0.7)
send("SIGTERM")
if not stop.hurried.wait(30):
    sys.exit(9)
send("SIGINT")
time.sleep(30)
""")
    assert ended.returncode == -2, ended.stderr
