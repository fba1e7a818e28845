"""A run of many batches, watched with a real Prometheus, a real browser and the command line."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from support.chromium import dom, picture
from support.drivers import count, driver, events, written_file
from support.pipelines import Bench, events_of
from support.prometheus import Prometheus, prometheus
from tailrace.status.board import HISTORY
from tailrace.telemetry import metrics
from tailrace.testing import Topics, wait_until
from tailrace.testing.embedded import EmbeddedKafka

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.takes(165),
]

BATCHES = 70
WARM = 30  # batches after which every series exists
PARTITIONS = 2
LIMIT = 600.0
LOOK = 0.5  # seconds between two checks of the driver's reports
# States of librdkafka at the moment of its report: there are few, and most are never seen.
STATES = {metrics.IDEMPOTENCE.name, metrics.TRANSACTION_STATE.name}
# Measured over the last second, if there was anything to measure.
WINDOWS = {each.name for each in (metrics.LATENCY, metrics.THROTTLE, metrics.BATCH_BYTES, metrics.BATCH_SIZE)}


class Feed:
    """Sends orders in small transactions, which leave markers; some are invalid JSON, some have a negative amount."""

    def __init__(self, kafka: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": kafka, "transactional.id": f"{topic}.feed", "log_level": 0})
        self._producer.init_transactions(60)
        self._topic = topic
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent = self.broken = self.negative = 0

    def start(self) -> None:
        """Start to send."""
        self._thread.start()

    def stop(self) -> None:
        """Commit all that was sent, then abort one more transaction."""
        self._end.set()
        self._thread.join(60)
        self._producer.begin_transaction()
        for number in range(PARTITIONS):
            self._producer.produce(self._topic, b"aborted", partition=number)
        self._producer.flush(30)
        self._producer.abort_transaction(30)

    def _run(self) -> None:
        while not self._end.wait(0.02):
            self._producer.begin_transaction()
            for number in range(self.sent, self.sent + 10):
                value = json.dumps({"id": number, "amount": -1.0 if number % 50 == 7 else 5.0}).encode()
                broken = number % 40 == 3
                self._producer.produce(self._topic, b"not json" if broken else value, partition=number % PARTITIONS)
                self.broken += broken
                self.negative += number % 50 == 7 and not broken
            self._producer.commit_transaction(30)
            self.sent += 10


@dataclass
class Watched:
    """The run and its observers."""

    url: str
    log: Path
    folder: Path
    feed: Feed
    prometheus: Prometheus
    warm: set[Any]

    def status(self) -> dict[str, Any]:
        """Return the driver's status."""
        with urllib.request.urlopen(f"{self.url}status", timeout=20) as answer:
            return dict(json.load(answer))

    def value(self, expression: str, wanted: float | Callable[[], float]) -> None:
        """Wait until Prometheus has the value; a callable is evaluated at each check."""
        now = wanted if callable(wanted) else lambda: wanted
        wait_until(lambda: self.prometheus.one(expression) == now(), f"{expression} to be {now()}", 60)

    def written(self) -> list[dict[str, Any]]:
        """Return the batches that the driver has reported."""
        return events_of(events(self.log), "written")


@pytest.fixture(scope="module")
def watched(tailrace_kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Yield a pipeline that has finished its batches and is drained, with everything still running."""
    folder = tmp_path_factory.mktemp("watched")
    topics = Topics(tailrace_kafka.bootstrap_servers)
    no_spark: Any = None  # the driver is a process with its own session
    one = Bench(topics, no_spark, folder, "watched", topics("in", PARTITIONS), topics("out", PARTITIONS), PARTITIONS)
    one.write(
        "orders.py",
        """
        from pyspark.sql import functions as F

        def amounts(orders):
            return orders.observe("orders", F.count_if(F.col("amount") > 1).alias("large")).select("id", "amount")
        """,
    )
    file = written_file(
        one,
        source={"topics": [one.source], "format": "json", "schema": "id long, amount double"},
        process={"validate": {"positive": "amount >= 0"}, "function": "orders.py:amounts"},
        sink={"topic": one.sink, "format": "json", "partitions": PARTITIONS},
        metrics={"enabled": True, "port": 0, "gateways": 0, "statistics": 1.0},
        pipeline="watched",
    )
    feed = Feed(one.kafka, one.source)
    log = folder / "events"
    with driver(file, log):
        wait_until(lambda: count(log, "serving"), "the driver to serve", 60)
        url = events_of(events(log), "serving")[0]["url"]
        with prometheus(folder, url) as seen:
            feed.start()
            wait_until(lambda: count(log, "written") >= WARM, "the first batches", LIMIT, LOOK)
            wait_until(lambda: seen.up() == {"driver", "gateway"}, "driver and gateway to be scraped", 60)
            watched = Watched(url, log, folder, feed, seen, set())
            wait_until(lambda: _steady(watched), "a scrape after the first batches", 60)
            watched.warm = seen.series('{__name__=~"tailrace_.+"}')
            wait_until(lambda: count(log, "written") >= BATCHES, "the batches", LIMIT, LOOK)
            feed.stop()
            wait_until(lambda: watched.status()["totals"]["consumed"] >= feed.sent, "all to be consumed", 60)
            wait_until(lambda: watched.status()["lag"]["records"] == 0, "the lag to be gone", 60)
            wait_until(lambda: events(log)[-1]["event"] == "idle", "the last batch", 60, LOOK)
            yield watched


def _steady(watched: Watched) -> bool:
    begun = watched.prometheus.one("sum(tailrace_transactions_committed_total)")
    return begun is not None and begun > PARTITIONS * WARM / 2


def test_number_of_series_does_not_grow(watched: Watched) -> None:
    """After many batches, the same series exist as after the first ones."""
    assert count(watched.log, "written") >= BATCHES
    now = watched.prometheus.series('{__name__=~"tailrace_.+"}')
    assert len(watched.warm) > 200
    new = {dict(each)["__name__"] for each in now - watched.warm}
    assert new <= STATES | WINDOWS | {metrics.RETIRED.name}
    declared = {each.name for each in metrics.DRIVER + metrics.EXECUTOR + metrics.BOTH}
    seen = {re.sub(r"_(bucket|count|sum)$", "", dict(each)["__name__"]) for each in now}
    assert {name for name in seen if name not in declared} == set()
    # Metrics that this run never sets: it has no state, no watermark and no replaced producer.
    assert {each.name for each in metrics.EXECUTOR} - seen == {metrics.RETIRED.name, metrics.THROTTLE.name} - seen


def test_counters_equal_what_was_sent(watched: Watched) -> None:
    """Consumed equals produced plus rejected, on the driver and the gateway, record for record."""
    feed = watched.feed
    rejected = feed.broken + feed.negative
    watched.value("sum(tailrace_consumed_records_total)", feed.sent)
    watched.value("sum(tailrace_produced_records_total)", feed.sent - rejected)
    watched.value('sum(tailrace_rejected_records_total{reason="not json"})', feed.broken)
    watched.value('sum(tailrace_rejected_records_total{reason="positive"})', feed.negative)
    watched.value("sum(tailrace_rejected_records_total)", rejected)
    watched.value('tailrace_observed_total{observation="orders",counter="large"}', feed.sent - rejected)
    watched.value("sum(tailrace_gateway_records_total)", feed.sent)
    watched.value("sum(tailrace_gateway_rejected_records_total)", rejected)

    def batches() -> int:
        return len(watched.written())

    def sinks() -> int:
        return sum(each["sinks"] for each in watched.written())

    watched.value("tailrace_batches_total", batches)
    watched.value("tailrace_batch_seconds_count", batches)
    watched.value("sum(tailrace_transactions_committed_total) + sum(tailrace_transactions_skipped_total)", sinks)
    ended = "+".join(f"sum(tailrace_transactions_{how}_total)" for how in ("committed", "aborted", "doubtful"))
    watched.value(f"sum(tailrace_transactions_begun_total) - ({ended})", 0)
    watched.value("sum(tailrace_transaction_seconds_count) - sum(tailrace_transactions_committed_total)", 0)


def test_lag_of_a_drained_pipeline_is_exactly_0(watched: Watched) -> None:
    """This holds on every source partition, although each transaction left a marker and the last was aborted."""
    for number in range(PARTITIONS):
        watched.value(f'tailrace_lag_records{{partition="{number}"}}', 0)
    watched.value("tailrace_lag_seconds", 0)
    watched.value("tailrace_driver_stalled", 0)
    ends = sum(each["end"] for each in watched.status()["lag"]["partitions"])
    assert ends > watched.feed.sent  # the difference is markers
    assert (watched.prometheus.one("max_over_time(sum(tailrace_lag_records)[1h:1s])") or 0) > 0


def test_producers_do_not_churn(watched: Watched) -> None:
    """Each sink partition has one, and another only with a reason; librdkafka's own metrics exist."""
    seen = watched.prometheus
    retired = '(sum(tailrace_producers_retired_total{kind="sink"}) or vector(0))'
    watched.value(f'sum(tailrace_producers_created_total{{kind="sink"}}) - {retired}', PARTITIONS)
    watched.value('tailrace_producers_open{kind="sink"}', PARTITIONS)
    assert (seen.one('sum(tailrace_producers_created_total{kind="sink"})') or 0) < BATCHES / 10
    watched.value("sum(tailrace_transactions_open)", 0)
    assert (seen.one('sum(tailrace_broker_requests_total{broker!="bootstrap"})') or 0) > BATCHES
    assert seen.series("tailrace_broker_request_latency_seconds")
    assert seen.series("tailrace_producer_batch_records")


def test_garbage_collections_and_memory_are_exported(watched: Watched) -> None:
    """They cover both JVMs, the driver, the gateway and the workers."""
    seen = watched.prometheus
    memory = seen.query("sum by (process) (tailrace_process_resident_memory_bytes)")
    found = {dict(labels)["process"] for labels, value in memory.items() if value > 0}
    assert found == {"driver", "driver-jvm", "gateway", "executor-jvm", "workers"}
    pauses = seen.query("sum by (process) (tailrace_jvm_gc_pause_seconds_count)")
    assert all(value > 0 for value in pauses.values())
    assert {dict(labels)["process"] for labels in pauses} == {"driver-jvm", "executor-jvm"}
    python = seen.query("sum by (process) (tailrace_python_gc_pause_seconds_count)")
    assert {dict(labels)["process"] for labels in python} == {"driver", "gateway", "workers"}
    assert python[(("process", "workers"),)] > 0


def test_page_shows_the_pipeline(watched: Watched) -> None:
    """A real browser shows source, batches, sink and charts, in light, in dark and on a phone."""
    page = dom(watched.folder, watched.url)
    assert 'data-shown="yes"' in page
    status = watched.status()
    for text in ("watched", *(f"{each['topic']}-{each['partition']}" for each in status["lag"]["partitions"])):
        assert text in page
    assert f"gateway {status['gateways'][0]['name']}" in page
    assert f"#{status['batch']['number']}" in page
    assert len(status["batches"]) == min(HISTORY, len(watched.written()))
    assert page.count('<rect class="in"') == 2 * len(status["batches"])
    assert "not json" in page
    assert not re.search(r'(src|href)="https?://(?!127\.0\.0\.1)', page)
    light = picture(watched.folder, watched.url, "light", 1200, 1100)
    dark = picture(watched.folder, watched.url, "dark", 1200, 1100, dark=True)
    phone = picture(watched.folder, watched.url, "phone", 390, 1900)
    assert all(len(each) > 20_000 and each.startswith(b"\x89PNG") for each in (light, dark, phone))
    assert light != dark


def test_command_line_shows_the_same(watched: Watched) -> None:
    """It finds the driver by its address, and prints text or JSON."""
    command = [sys.executable, "-m", "tailrace.cli.main", "status", watched.url]
    text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert text.startswith("watched: WELL since ")
    assert f"{watched.feed.sent:,} consumed" in text
    assert "lag: 0 records" in text
    status = subprocess.run(
        [*command, "--output", "json"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert json.loads(status)["totals"] == watched.status()["totals"]


def test_health_and_readiness_are_answered(watched: Watched) -> None:
    """Both answer 200 while the pipeline is healthy."""
    host = watched.url.removeprefix("http://").rstrip("/")
    for path in ("/healthz", "/readyz"):
        connection = http.client.HTTPConnection(host, timeout=20)
        connection.request("GET", path)
        assert connection.getresponse().status == 200
        connection.close()
