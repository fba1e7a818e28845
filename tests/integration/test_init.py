"""A new project works: its own test passes, and `tailrace dev` shows it, and what an edit changes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from support.drivers import kill_tree
from tailrace.scaffold.project import Kind, Project
from tailrace.testing import consume, wait_until

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


def _development(folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start `tailrace dev` in a project's folder."""
    command = [sys.executable, "-m", "tailrace.cli.main", "dev", "--rate", "50"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TAILRACE_METRICS__ENABLED": "false"}
    with log.open("wb") as out:
        return subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, env=environment, start_new_session=True)


@pytest.mark.takes(20)
def test_development_reloads_an_arrow_function_in_the_same_session(tmp_path: Path) -> None:
    """Spark starts once, also after a mistake, and each record comes out once across the reloads."""
    folder = tmp_path / "orders"
    Project("orders", Kind.JSON, arrow=True).write(folder)
    function, log = folder / "functions.py", tmp_path / "log"
    good = function.read_text()
    process = _development(folder, log)

    def shown(text: str) -> bool:
        if process.poll() is not None:
            raise RuntimeError(log.read_text())
        return text in log.read_text()

    try:
        wait_until(lambda: shown('"total":'), "an output", LIMIT)
        function.write_text(good.replace('"total"', '"sum"'))
        wait_until(lambda: shown('"sum":'), "an output of the new function", LIMIT)
        function.write_text(good.replace("def totals", "def total"))
        wait_until(lambda: shown("did you mean 'total'?"), "the mistake to be explained", LIMIT)
        function.write_text(good.replace('"total"', '"price"'))
        wait_until(lambda: shown('"price":'), "an output of the mended function", LIMIT)
        found = re.search(r"Kafka is at (\S+);", log.read_text())
        assert found is not None
        ids = [json.loads(each.value or b"")["id"] for each in consume(found[1], "orders-out")]
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 0
    finally:
        kill_tree(process)
        process.wait(30)
    assert log.read_text().count("starting Spark") == 1
    assert [number for number, times in Counter(ids).items() if times > 1] == []
    settled = max(ids) - 50  # those of the last second may still be on their way
    assert settled > 50
    assert set(range(1, settled)) - set(ids) == set(range(20, settled, 20))  # each twentieth sample is no JSON


@pytest.mark.takes(40)
def test_development_shows_what_an_edit_changes(tmp_path: Path) -> None:
    """Outputs and rejected records are shown; a mistake is explained, and mended by the next edit."""
    folder = tmp_path / "orders"
    Project("orders").write(folder)
    function, log = folder / "functions.py", tmp_path / "log"
    good = function.read_text()
    process = _development(folder, log)

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
