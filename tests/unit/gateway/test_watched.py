"""The gateway's endpoint: each executor has a port of its own, and a failure there never stops it from writing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.config import Delivery
from tailrace.errors import CommitInDoubt
from tailrace.gateway import Assignment
from tailrace.gateway.counting import Counting
from tailrace.gateway.send import Counts
from tailrace.progress.plan import BatchId, SinkPartition
from tailrace.telemetry import metrics
from tailrace.telemetry.gateway_settings import ENV, Watched
from tailrace.telemetry.measure import Measures
from tailrace.telemetry.serving import Port
from tailrace.testing import wait_until

PLACE = ("p", "0-15")


@contextmanager
def gateway(folder: Path, watched: str) -> Iterator[Path]:
    """Run a gateway process; yield the file to which it writes its log."""
    log = folder.with_suffix(".log")
    environment = {**os.environ, "TAILRACE_LOG": "info", ENV: watched}
    with log.open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "tailrace.gateway.server", str(folder), str(os.getpid())],
            env=environment,
            stderr=err,
        )
    try:
        yield log
    finally:
        process.terminate()
        process.wait(30)


def address(log: Path) -> str:
    """Return the address at which it serves."""
    found = wait_until(lambda: re.search(r"metrics at (\S+)", log.read_text()), "the gateway to serve", 60)
    return found[1] if found else ""


def scraped(place: str) -> str:
    """Return what it serves."""
    with urllib.request.urlopen(f"http://{place}/metrics", timeout=20) as answer:
        return str(answer.read().decode())


def test_two_executors_on_one_machine_serve_at_different_ports(tmp_path: Path) -> None:
    """They were configured with the same port."""
    with Port("127.0.0.1", 0, {}) as free:
        pass
    setting = str(Watched("p", "127.0.0.1", free.number, 1.0))
    with gateway(tmp_path / "a", setting) as first, gateway(tmp_path / "b", setting) as second:
        places = [address(first), address(second)]
        assert len(set(places)) == 2
        names = {re.findall(r'gateway_info\{[^}]*gateway="(\w+)"', scraped(place))[0] for place in places}
        assert len(names) == 2
        assert f"{metrics.BATCHES.name}{{" not in scraped(places[0])


@pytest.mark.parametrize("setting", ["no json", '{"unknown": 1}', '{"host": "192.0.2.1"}'])
def test_a_gateway_that_cannot_serve_keeps_running(tmp_path: Path, setting: str) -> None:
    """It logs why, and waits for tasks."""
    folder = tmp_path / "a"
    with gateway(folder, setting) as log:
        wait_until(lambda: (folder / "gateway.sock").exists(), "the gateway to listen", 60)
        wait_until(lambda: re.search("serves no metrics|metrics are not served", log.read_text()), "the log line", 30)


@pytest.fixture
def task() -> Assignment:
    """Return a sink partition of a batch."""
    return Assignment(
        "p", BatchId(1), SinkPartition(3), 8, "digest", Delivery.EXACTLY_ONCE, "ledger", "out", "rejected", "run"
    )


def test_a_transaction_is_counted_by_its_outcome(task: Assignment) -> None:
    """The outcome is committed, aborted or in doubt; until then the transaction is open."""
    now = [100.0]
    measures = Measures(metrics.EXECUTOR)
    counting = Counting(measures, lambda: now[0])
    with counting.transaction(task) as opened:
        now[0] += 7
        counting.look({})
        assert measures.value(metrics.TRANSACTIONS_OPEN, *PLACE) == 1
        assert measures.value(metrics.OLDEST_OPEN, *PLACE) == 7
        counting.committed(opened, 2000)
    for error in (CommitInDoubt("x"), ValueError()):
        with pytest.raises(type(error)), counting.transaction(task):
            raise error
    counting.look({})
    found = {metric.name: measures.value(metric, *PLACE) for metric in (metrics.BEGUN, metrics.COMMITTED)}
    assert found == {metrics.BEGUN.name: 3, metrics.COMMITTED.name: 1}
    assert measures.value(metrics.DOUBTFUL, *PLACE) == measures.value(metrics.ABORTED, *PLACE) == 1
    assert measures.value(metrics.TRANSACTIONS_OPEN, *PLACE) == measures.value(metrics.OLDEST_OPEN, *PLACE) == 0
    spread = measures.spread(metrics.TRANSACTION_SECONDS, *PLACE)
    assert spread is not None
    assert (spread.count, spread.total) == (1, 7)


def test_records_are_counted_with_their_reasons(task: Assignment) -> None:
    """Only delivered records count, for aborted ones are written again."""
    measures = Measures(metrics.EXECUTOR)
    counting = Counting(measures)
    counting.delivered(task, Counts(out=5, rejected=3, size=80, reasons={"bad": 2, "worse": 1}))
    assert measures.value(metrics.GATEWAY_RECORDS, *PLACE) == 8
    assert measures.value(metrics.GATEWAY_REJECTED, *PLACE, "bad") == 2
    assert measures.value(metrics.GATEWAY_BYTES, *PLACE) == 80
