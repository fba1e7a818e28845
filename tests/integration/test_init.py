"""A new project works: its own test passes, and `tailrace dev` shows it, and what an edit changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.drivers import kill_tree
from tailrace.scaffold.project import Kind, Project
from tailrace.testing import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
LIMIT = 200.0  # on a busy machine


@pytest.mark.takes(30)
@pytest.mark.parametrize(("kind", "arrow"), [(Kind.JSON, False), (Kind.AVRO, True)])
def test_new_project_passes_its_own_test(tmp_path: Path, kind: Kind, arrow: bool) -> None:
    """On a Kafka of its own."""
    folder = tmp_path / "orders"
    Project("orders", kind, arrow).write(folder)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.takes(40)
def test_development_shows_what_an_edit_changes(tmp_path: Path) -> None:
    """Outputs and rejected records are shown; a mistake is explained, and mended by the next edit."""
    folder = tmp_path / "orders"
    Project("orders").write(folder)
    function, log = folder / "functions.py", tmp_path / "log"
    good = function.read_text()
    command = [sys.executable, "-m", "tailrace.cli.main", "dev", "--rate", "50"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TAILRACE_METRICS__ENABLED": "false"}
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, env=environment, start_new_session=True)

    def shown(text: str) -> bool:
        if process.poll() is not None:
            raise RuntimeError(log.read_text())
        return text in log.read_text()

    try:
        wait_until(lambda: shown("orders-out: order-"), "an output", LIMIT)
        wait_until(lambda: shown(" not JSON (not json: "), "a rejected record", LIMIT)
        function.write_text(good.replace('F.col("count")', 'F.col("cout")'))
        wait_until(lambda: shown("changed: functions.py"), "the change to be noticed", LIMIT)
        wait_until(lambda: shown("waiting for a change"), "the mistake to be explained", LIMIT)
        assert shown("functions.py:totals raised AnalysisException")
        function.write_text(good.replace('"total"', '"sum"'))
        wait_until(lambda: shown('"sum":'), "an output of the new function", LIMIT)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 0
    finally:
        kill_tree(process)
        process.wait(30)
    assert "ended; the data of this Kafka is removed" in log.read_text()
