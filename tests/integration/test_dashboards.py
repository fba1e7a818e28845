"""A real Prometheus scrapes a real run: every panel has data, and a hanging driver fires only its own alert."""

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
STALLED = 10.0  # a slow machine may need this long for a batch: this alert may fire at any time, but no other
# Exists only after a broker has throttled a client, which needs a quota.
MAY_BE_EMPTY = (metrics.THROTTLE.name,)


@pytest.fixture(scope="module")
def watched(tailrace_kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Run a stateful pipeline that rejects some records, has an observation, and was idle for a while."""
    folder = tmp_path_factory.mktemp("dashboards")
    rules = {"rule_files": hurried(folder / "rules")}
    with watched_words(tailrace_kafka.bootstrap_servers, folder, STALLED, rules) as found:
        yield found


def targets() -> list[tuple[str, str]]:
    """Return every panel's queries, with each variable set to all, and ranges for a scrape each second."""
    found = []
    for file in sorted(DASHBOARDS.glob("*.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        for panel in content["panels"]:
            for target in panel.get("targets", []):
                asked = target["expr"].replace("$__rate_interval", "1m")
                asked = asked.replace("$namespace", ".*").replace("$pipeline", ".*")
                found.append((f"{file.stem}: {panel['title']}: {target['legendFormat']}", asked))
    return found


def test_every_panel_has_data(watched: Watched) -> None:
    """Each query is valid, and a running pipeline exports metrics that answer it."""
    asked = [(name, query) for name, query in targets() if not any(each in query for each in MAY_BE_EMPTY)]
    assert len(asked) > 90
    empty = dict(asked)

    def shown() -> bool:
        for name in list(empty):
            if watched.prometheus.query(empty[name]):
                del empty[name]
        return not empty

    try:
        wait_until(shown, "every panel to have data", 30, 1.0)
    except TimeoutError:
        assert sorted(empty) == []


@contextmanager
def halted(pid: int) -> Iterator[None]:
    """Pause the process; its connections stay open."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_hanging_driver_fires_its_alert_and_no_other(watched: Watched) -> None:
    """If its JVM is paused, the driver reports it; if all of it is, Prometheus notices. Resuming ends the alert."""
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
