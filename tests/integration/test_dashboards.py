"""A real Prometheus scrapes a real run: every panel shows something, and a driver that hangs fires its alert alone."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer

from support.alerts import hurried
from support.drivers import count, driver, events, written_file
from support.pipelines import Bench, events_of
from support.prometheus import Prometheus, prometheus
from tailrace import metrics
from tailrace.embedded import EmbeddedKafka
from tailrace.testing import Topics, wait_until

pytestmark = pytest.mark.integration

DASHBOARDS = Path(__file__).parents[2] / "charts" / "tailrace" / "dashboards"
LIMIT = 240.0
STALLED = 10.0  # a batch of a slow machine may take as long: this alert may fire at any time, and no other at all
# Only there when a broker has asked somebody to wait, which needs a quota.
MAY_BE_EMPTY = (metrics.THROTTLE.name,)

FUNCTION = """\
from pyspark.sql import functions as F

def count(words):
    seen = words.observe("words", F.count(F.lit(1)).alias("said"))
    counted = seen.withWatermark("at", "1 second").groupBy(F.window("at", "1 second").alias("window"), "word").count()
    return counted.select(F.col("word").alias("key"), "word", "count")
"""


class Words:
    """Words as they are said; one in forty is no JSON. It can be told to pause."""

    def __init__(self, kafka: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": kafka, "linger.ms": 5})
        self._topic = topic
        self._end = threading.Event()
        self.speaking = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Words:
        self.speaking.set()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(30)
        self._producer.flush(30)

    def _run(self) -> None:
        said = 0
        said = 0
        while not self._end.wait(0.05):
            if not self.speaking.is_set():
                continue
            for number in range(said, said + 10):
                at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                word = json.dumps({"at": at, "word": f"w{number % 7}"}).encode()
                self._producer.produce(self._topic, b"not json" if number % 40 == 3 else word)
            said += 10
            self._producer.poll(0)


@dataclass
class Watched:
    """The run and who watches it."""

    process: int
    prometheus: Prometheus

    def firing(self) -> set[tuple[str, str]]:
        """The alerts that fire now, each with its sign, where it has one."""
        found = [dict(labels) for labels in self.prometheus.query('ALERTS{alertstate="firing"}')]
        return {(each["alertname"], each.get("sign", "")) for each in found}

    def fired(self) -> set[str]:
        """The alerts that have fired since the beginning."""
        found = self.prometheus.query('max_over_time(ALERTS{alertstate="firing"}[1h])')
        return {dict(labels)["alertname"] for labels in found}


@pytest.fixture(scope="module")
def watched(tailrace_kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A stateful pipeline that rejects some records, counts something of its own, and was idle for a while."""
    folder = tmp_path_factory.mktemp("dashboards")
    topics = Topics(tailrace_kafka.bootstrap_servers)
    no_spark: Any = None  # the driver is a process with a session of its own
    one = Bench(topics, no_spark, folder, "words", topics("in", 2), topics("out", 2))
    one.write("words.py", FUNCTION)
    file = written_file(
        one,
        source={"topics": [one.source], "format": "json", "schema": "at TIMESTAMP, word STRING"},
        process={"function": "words.py:count"},
        sink={"topic": one.sink, "format": "json", "idle": 1.0},
        checkpoint=f"file://{folder / 'state'}",
        batch={"target": 5.0},
        metrics={"enabled": True, "port": 0, "writers": 0, "statistics": 1.0, "stalled": STALLED},
    )
    log = folder / "events"
    with driver(file, log) as process:
        wait_until(lambda: count(log, "serving"), "the driver to serve", LIMIT)
        rules = {"rule_files": hurried(folder / "rules")}
        url = events_of(events(log), "serving")[0]["url"]
        with prometheus(folder, url, rules) as seen, Words(one.kafka, one.source) as words:
            wait_until(lambda: count(log, "written") >= 3, "the first batches", LIMIT)
            words.speaking.clear()
            wait_until(lambda: seen.query("tailrace_producers_retired_total"), "an idle producer to be retired", LIMIT)
            words.speaking.set()
            before = count(log, "written")
            wait_until(lambda: count(log, "written") >= before + 5, "some batches more", LIMIT)
            yield Watched(process.pid, seen)


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
