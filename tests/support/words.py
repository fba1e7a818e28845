"""A pipeline with something for every panel: stateful, with counters of its own, rejected records and a pause.

The tests of dashboards and alerts watch it, and so does the script that takes their screenshots.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from support.drivers import count, driver, events, written_file
from support.pipelines import Bench, events_of
from support.prometheus import Prometheus, prometheus
from tailrace.testing import Topics, wait_until

LIMIT = 240.0
NAME = "words"
FUNCTION = """\
from pyspark.sql import functions as F

def count(words):
    seen = words.observe("words", F.count(F.lit(1)).alias("said"))
    counted = seen.withWatermark("at", "1 second").groupBy(F.window("at", "1 second").alias("window"), "word").count()
    return counted.select(F.col("word").alias("key"), "word", "count")
"""


class Words:
    """Words as they are said; one in forty is not JSON. A test can pause them."""

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
    """The run, and the Prometheus that watches it."""

    process: int
    url: str
    prometheus: Prometheus

    def firing(self) -> set[tuple[str, str]]:
        """Return the alerts that fire now, each with its sign, if it has one."""
        found = [dict(labels) for labels in self.prometheus.query('ALERTS{alertstate="firing"}')]
        return {(each["alertname"], each.get("sign", "")) for each in found}

    def fired(self) -> set[str]:
        """Return the alerts that have fired since the beginning."""
        found = self.prometheus.query('max_over_time(ALERTS{alertstate="firing"}[1h])')
        return {dict(labels)["alertname"] for labels in found}


@contextmanager
def watched_words(
    bootstrap: str,
    folder: Path,
    stalled: float = 300.0,
    settings: Mapping[str, Any] | None = None,
    idle: float = 1.0,
) -> Iterator[Watched]:
    """Run the pipeline: it works, is idle for a while and works again; Prometheus scrapes every second.

    With 1 s for `idle` a producer is retired now and then, so that this can be seen too.
    """
    topics = Topics(bootstrap)
    no_spark: Any = None  # the driver is a process with a session of its own
    one = Bench(topics, no_spark, folder, NAME, topics("in", 2), topics("out", 2), 2)
    one.write("words.py", FUNCTION)
    file = written_file(
        one,
        source={"topics": [one.source], "format": "json", "schema": "at TIMESTAMP, word STRING"},
        process={
            "function": "words.py:count",
            "validate": {"short": {"condition": "length(word) < 4", "severity": "warn"}},
        },
        sink={"topic": one.sink, "format": "json", "idle": idle},
        checkpoint=f"file://{folder / 'state'}",
        batch={"target": 5.0},
        metrics={"enabled": True, "port": 0, "gateways": 0, "statistics": 1.0, "stalled": stalled},
    )
    log = folder / "events"
    with driver(file, log) as process:
        wait_until(lambda: count(log, "serving"), "the driver to serve", LIMIT)
        url = events_of(events(log), "serving")[0]["url"]
        with prometheus(folder, url, settings) as seen, Words(one.kafka, one.source) as words:
            wait_until(lambda: count(log, "written") >= 3, "the first batches", LIMIT)
            words.speaking.clear()
            wait_until(lambda: seen.query("tailrace_producers_retired_total"), "an idle producer to be retired", LIMIT)
            words.speaking.set()
            before = count(log, "written")
            wait_until(lambda: count(log, "written") >= before + 5, "a few more batches", LIMIT)
            yield Watched(process.pid, url, seen)
