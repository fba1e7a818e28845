"""A real Prometheus scrapes a real run: every panel shows something, and a driver that hangs fires its alert alone."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from support.alerts import hurried
from support.words import LIMIT, Watched, watched_words
from tailrace.telemetry import metrics
from tailrace.testing import wait_until
from tailrace.testing.embedded import EmbeddedKafka

pytestmark = [pytest.mark.integration, pytest.mark.takes(42)]

DASHBOARDS = Path(__file__).parents[2] / "charts" / "tailrace" / "dashboards"
STALLED = 10.0  # a batch of a slow machine may take as long: this alert may fire at any time, and no other at all
# Only there when a broker has asked somebody to wait, which needs a quota.
MAY_BE_EMPTY = (metrics.THROTTLE.name,)


@pytest.fixture(scope="module")
def watched(tailrace_kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A stateful pipeline that rejects some records, counts something of its own, and was idle for a while."""
    folder = tmp_path_factory.mktemp("dashboards")
    rules = {"rule_files": hurried(folder / "rules")}
    with watched_words(tailrace_kafka.bootstrap_servers, folder, STALLED, rules) as found:
        yield found


def targets() -> list[tuple[str, str]]:
    """Every query of every panel, with the variables as they stand for all, and the range for scrapes each second."""
    found = []
    for file in sorted(DASHBOARDS.glob("*.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        for panel in content["panels"]:
            for target in panel.get("targets", []):
                asked = target["expr"].replace("$__rate_interval", "1m")
                asked = asked.replace("$namespace", ".*").replace("$pipeline", ".*")
                found.append((f"{file.stem}: {panel['title']}: {target['legendFormat']}", asked))
    return found


def test_every_panel_shows_something(watched: Watched) -> None:
    """Each of its queries is understood and answered by what a running pipeline exports."""
    asked = [(name, query) for name, query in targets() if not any(each in query for each in MAY_BE_EMPTY)]
    assert len(asked) > 90
    empty = dict(asked)

    def shown() -> bool:
        for name in list(empty):
            if watched.prometheus.query(empty[name]):
                del empty[name]
        return not empty

    try:
        wait_until(shown, "every panel to show something", 30, 1.0)
    except TimeoutError:
        assert sorted(empty) == []


@contextmanager
def halted(pid: int) -> Iterator[None]:
    """Inside, the process stands still; its connections stay."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_driver_that_hangs_fires_its_alert_and_no_other(watched: Watched) -> None:
    """Its JVM halted: the driver says so itself. All of it halted: Prometheus notices. Going on ends the alert."""
    wait_until(lambda: watched.firing() == set(), "a quiet moment", LIMIT)
    [jvm] = [each.pid for each in psutil.Process(watched.process).children() if "java" in each.name()]
    with halted(jvm):
        alert = ("TailraceStalled", "there is lag and no batch is finished")
        wait_until(lambda: watched.firing() == {alert}, f"{alert} to fire", LIMIT)
    wait_until(lambda: watched.firing() == set(), "the alert to end", LIMIT)
    with halted(watched.process):
        alert = ("TailraceStalled", "the driver does not answer")
        wait_until(lambda: watched.firing() == {alert}, f"{alert} to fire", LIMIT)
    wait_until(lambda: watched.firing() == set(), "the alert to end", LIMIT)
    assert watched.fired() == {"TailraceStalled"}
