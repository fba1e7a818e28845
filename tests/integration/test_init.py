"""A new project works: its own test passes, and `tailrace dev` shows it, and what an edit changes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass
class Development:
    """A `tailrace dev` in a project's folder, and its log."""

    process: subprocess.Popen[bytes]
    log: Path

    def shown(self, text: str) -> bool:
        """Return whether the log has a text; raise if the process has ended."""
        if self.process.poll() is not None:
            raise RuntimeError(self.log.read_text())
        return text in self.log.read_text()

    def end(self) -> None:
        """End it as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(LIMIT) == 0


@contextmanager
def development(folder: Path, log: Path) -> Iterator[Development]:
    """Run `tailrace dev` in a project's folder, and end it in any case."""
    command = [sys.executable, "-m", "tailrace.cli.main", "dev", "--rate", "50"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TAILRACE_METRICS__ENABLED": "false"}
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, env=environment, start_new_session=True)
    try:
        yield Development(process, log)
    finally:
        kill_tree(process)
        process.wait(30)


def outputs(log: Path) -> list[int]:
    """Return the numbers of the orders that have come out of a `tailrace dev`."""
    found = re.search(r"Kafka is at (\S+);", log.read_text())
    assert found is not None
    return [json.loads(each.value or b"")["id"] for each in consume(found[1], "orders-out")]


@pytest.mark.takes(20)
def test_development_reloads_an_arrow_function_in_the_same_session(tmp_path: Path) -> None:
    """Spark starts once, also after a mistake, and each record comes out once across the reloads."""
    folder = tmp_path / "orders"
    Project("orders", Kind.JSON, arrow=True).write(folder)
    function, log = folder / "functions.py", tmp_path / "log"
    good = function.read_text()
    with development(folder, log) as dev:
        wait_until(lambda: dev.shown('"total":'), "an output", LIMIT)
        function.write_text(good.replace('"total"', '"sum"'))
        wait_until(lambda: dev.shown('"sum":'), "an output of the new function", LIMIT)
        function.write_text(good.replace("def totals", "def total"))
        wait_until(lambda: dev.shown("did you mean 'total'?"), "the mistake to be explained", LIMIT)
        function.write_text(good.replace('"total"', '"price"'))
        wait_until(lambda: dev.shown('"price":'), "an output of the mended function", LIMIT)
        shown = max(outputs(log))
        due = {number for number in range(1, shown) if number % 20}  # each twentieth sample is no JSON
        wait_until(lambda: due.issubset(outputs(log)), f"the outputs before {shown}", LIMIT)
        ids = outputs(log)
        dev.end()
    assert log.read_text().count("starting Spark") == 1
    assert [number for number, times in Counter(ids).items() if times > 1] == []
    assert shown > 50
    assert [number for number in ids if number % 20 == 0] == []


@pytest.mark.takes(40)
def test_development_shows_what_an_edit_changes(tmp_path: Path) -> None:
    """Outputs and rejected records are shown; a mistake is explained, and mended by the next edit."""
    folder = tmp_path / "orders"
    Project("orders").write(folder)
    function, log = folder / "functions.py", tmp_path / "log"
    good = function.read_text()
    with development(folder, log) as dev:
        wait_until(lambda: dev.shown("orders-out: order-"), "an output", LIMIT)
        wait_until(lambda: dev.shown(" not JSON (not json: "), "a rejected record", LIMIT)
        function.write_text(good.replace('F.col("count")', 'F.col("cout")'))
        wait_until(lambda: dev.shown("changed: functions.py"), "the change to be noticed", LIMIT)
        wait_until(lambda: dev.shown("waiting for a change"), "the mistake to be explained", LIMIT)
        assert dev.shown("functions.py:totals raised AnalysisException")
        function.write_text(good.replace('"total"', '"sum"'))
        wait_until(lambda: dev.shown('"sum":'), "an output of the new function", LIMIT)
        dev.end()
    assert "ended; the data of this Kafka is removed" in log.read_text()
