"""`tailrace demo` as a newcomer runs it, up to its proof."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tailrace.testing import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(500)]

LIMIT = 450.0


def environment(folder: Path) -> dict[str, str]:
    """Return an environment that puts the demo's files into the test's folder, which must be empty afterwards."""
    return {**os.environ, "TMPDIR": str(folder)}


def demo(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run the demo to completion; return the JSON object of its last line."""
    done = subprocess.run(
        [sys.executable, "-m", "tailrace.cli.main", "demo", *arguments, "--output", "json"],
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def left_in(folder: Path) -> list[Path]:
    """Return the demo's folders that still exist."""
    return list(folder.glob("tailrace-demo-*"))


@pytest.mark.slow
def test_demo_proves_its_records_after_a_kill_in_mid_batch(tmp_path: Path) -> None:
    """Killing the driver with -9 loses and duplicates nothing, some records are rejected, and no folder is left."""
    result = demo(tmp_path, "--for", "8s", "--rate", "1000", "--kills", "1")
    assert (result["lost"], result["duplicated"], result["unexpected"], result["kills"]) == (0, 0, 0, 1)
    assert result["in"] > 0
    assert result["out"] > 0
    assert result["rejected"] > 0
    assert not left_in(tmp_path)


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    """Interrupted while its driver works, the demo exits with code 130 and leaves no process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tailrace.cli.main", "demo", "--for", "10m"],
        env=environment(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        leader = psutil.Process(process.pid)
        wait_until(lambda: any(map(is_generator, leader.children())), "the demo's generator", limit=150)
        family = leader.children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(90) == 128 + signal.SIGINT
        wait_until(lambda: not [each for each in family if each.is_running()], "the end of all processes", limit=30)
        assert not left_in(tmp_path)
    finally:
        process.kill()
        process.wait(10)


def is_generator(process: psutil.Process) -> bool:
    """Return whether this is the script that writes the tweets."""
    try:
        return any(part.endswith("generate.py") for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False
